//go:build linux

package sys

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// ErrWaits means that a file cannot be read without the risk of a wait for its disk: the file system, or the kernel,
// does not say whether there would be one.
var ErrWaits = errors.New("preadv2 RWF_NOWAIT: not supported by the file system")

// ReadAtNow is ReadAt for what the kernel has in its memory. ErrAgain: a part of it is not there, and a disk would have to
// be waited for; what is in p then has no meaning.
func ReadAtNow(fd *FD, off int64, p []byte) error {
	for len(p) > 0 {
		n, err := 0, injected("preadv2")
		if err == nil {
			err = retry(func() (err error) {
				n, err = unix.Preadv2(fd.Raw(), [][]byte{p}, off, unix.RWF_NOWAIT)
				return err
			})
		}
		switch {
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return ErrWaits
		case err != nil:
			return wrapHot("preadv2", err)
		case n == 0:
			return fmt.Errorf("preadv2 of %d bytes at %d: the file ends before: %w", len(p), off, io.ErrUnexpectedEOF)
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// HasNoDisk reports whether a file lies in memory alone, as those of tmpfs do: no read waits for a disk.
func HasNoDisk(fd *FD) (bool, error) {
	var s unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd.Raw(), &s) }); err != nil {
		return false, wrap("fstatfs", err)
	}
	return s.Type == unix.TMPFS_MAGIC || s.Type == unix.RAMFS_MAGIC || s.Type == unix.HUGETLBFS_MAGIC, nil
}

// unreadable are what reads fail with where a disk, or a page of memory, has lost what it had: the errors of
// block devices and of file systems' checks, and that of pages.
var unreadable = []error{
	unix.EIO, unix.ENODATA, unix.EILSEQ, unix.EBADE, unix.EBADMSG, unix.EUCLEAN, unix.ENOLINK, unix.EREMOTEIO,
	unix.ETIMEDOUT, unix.EHWPOISON, unix.EFAULT,
}

// IsUnreadable reports whether an error is about the bytes that were to be read, and says nothing of others.
func IsUnreadable(err error) bool {
	for _, e := range unreadable {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
