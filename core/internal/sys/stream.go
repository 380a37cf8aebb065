//go:build linux

package sys

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// StreamPair makes two connected unix stream sockets.
func StreamPair() (a, b *FD, err error) {
	defer holdForks().release()
	if err := injected("socketpair"); err != nil {
		return nil, nil, wrap("socketpair", err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, wrap("socketpair", err)
	}
	return newFD(pair[0]), newFD(pair[1]), nil
}

// File gives a descriptor to package os, also if it fails: fd is closed.
func File(fd *FD) (*os.File, error) {
	raw, err := unix.FcntlInt(uintptr(fd.Raw()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(wrap("fcntl F_DUPFD_CLOEXEC", err), fd.Close())
	}
	return os.NewFile(uintptr(raw), "socket"), fd.Close()
}

// Read takes what has come over a stream socket; ErrAgain when nothing has; 0
// without an error at its end. It takes no memory: package unix makes some for a
// sender's address.
func Read(fd *FD, buf []byte) (int, error) {
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd.Raw()), uintptr(unsafe.Pointer(unsafe.SliceData(buf))),
			uintptr(len(buf)), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, ErrAgain
		default:
			return 0, wrap("recvfrom", errno)
		}
	}
}

// Write hands bytes to a stream socket and returns how many it took; ErrAgain
// when it takes none.
func Write(fd *FD, data []byte) (n int, err error) {
	err = retry(func() error {
		n, err = unix.SendmsgN(fd.Raw(), data, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return err
	})
	if err != nil {
		return 0, wrapHot("sendmsg", err)
	}
	return n, nil
}
