//go:build linux

package sys

import "golang.org/x/sys/unix"

// Read takes what has come over a stream socket; ErrAgain when nothing has; 0
// without an error at its end.
func Read(fd *FD, buf []byte) (n int, err error) {
	err = retry(func() error {
		n, _, err = unix.Recvfrom(fd.Raw(), buf, unix.MSG_DONTWAIT)
		return err
	})
	if err != nil {
		return 0, wrapHot("recvfrom", err)
	}
	return n, nil
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
