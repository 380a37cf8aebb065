//go:build linux

package sys

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SealForReaders makes a memfd one that nothing can change any more but the mappings that are there: it
// keeps its size, and no descriptor of it writes, in any process. Linux 5.1 or later.
func SealForReaders(fd *FD) error {
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
	_, err := unix.FcntlInt(uintptr(fd.Raw()), unix.F_ADD_SEALS, seals)
	return wrap("fcntl F_ADD_SEALS", err)
}

// SealedForReaders reports whether a file is a memfd that SealForReaders has sealed.
func SealedForReaders(fd *FD) (bool, error) {
	seals, err := unix.FcntlInt(uintptr(fd.Raw()), unix.F_GET_SEALS, 0)
	if errors.Is(err, unix.EINVAL) { // a file that knows no seals
		return false, nil
	}
	const wanted = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE
	return seals&wanted == wanted, wrap("fcntl F_GET_SEALS", err)
}

// ReadOnly is another descriptor of the same file, which can only be read.
func ReadOnly(fd *FD) (*FD, error) {
	path := fmt.Sprintf("/proc/self/fd/%d", fd.Raw())
	if err := injected("open"); err != nil {
		return nil, wrap("open "+path, err)
	}
	raw, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, wrap("open "+path, err)
	}
	return newFD(raw), nil
}

// CanPopulate is an error where the kernel does not know Populate.
func CanPopulate() error {
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, 0, 0, unix.MADV_POPULATE_READ)
	err := injected("madvise MADV_POPULATE_READ")
	if err == nil && errno != 0 {
		err = errno
	}
	return wrap("madvise MADV_POPULATE_READ", err)
}

// Populate makes the pages of a part of a mapping present for reading, as the kernel does it: where there
// is no page it is an error, not a signal. Linux 5.14 or later.
func Populate(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	if err := injected("madvise"); err != nil {
		return wrap("madvise", err)
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(data)))
	ahead := start & uintptr(PageSize()-1) // madvise wants a page boundary
	err := retry(func() error {
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, start-ahead, uintptr(len(data))+ahead, unix.MADV_POPULATE_READ)
		if errno != 0 {
			return errno
		}
		return nil
	})
	return wrap("madvise MADV_POPULATE_READ", err)
}
