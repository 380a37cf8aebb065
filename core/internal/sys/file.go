//go:build linux

package sys

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/moewire/moewire/core/origin"
)

// ErrLocked means that another open file holds the lock.
var ErrLocked error = unix.EWOULDBLOCK

// OpenFile opens a regular file for reading and writing, and makes it (mode 0600) if it is not there.
// It follows no symbolic link at the end of the path.
func OpenFile(path string) (*FD, error) {
	raw, err := 0, injected("open")
	if err == nil {
		raw, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	}
	if err != nil {
		return nil, spaceError("open "+path, err, func(s *unix.Statfs_t) error { return unix.Statfs(filepath.Dir(path), s) })
	}
	return Own(raw), nil
}

// LockFile takes the lock of a file, until it is closed. ErrLocked if another one has it.
func LockFile(fd *FD) error {
	return wrap("flock", retry(func() error { return unix.Flock(fd.Raw(), unix.LOCK_EX|unix.LOCK_NB) }))
}

// ReadAt fills p from an offset of a file. The error is io.ErrUnexpectedEOF if the file ends before.
func ReadAt(fd *FD, off int64, p []byte) error {
	for len(p) > 0 {
		n, err := 0, injected("pread")
		if err == nil {
			err = retry(func() (err error) { n, err = unix.Pread(fd.Raw(), p, off); return err })
		}
		if err != nil {
			return wrap("pread", err)
		}
		if n == 0 {
			return fmt.Errorf("pread of %d bytes at %d: the file ends before: %w", len(p), off, io.ErrUnexpectedEOF)
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// WriteAt writes pieces one behind the other, all of them. With an error a part may have been written.
func WriteAt(fd *FD, off int64, pieces ...[]byte) error {
	for _, p := range pieces {
		for len(p) > 0 {
			n, err := 0, injected("pwrite")
			if err == nil {
				err = retry(func() (err error) { n, err = unix.Pwrite(fd.Raw(), p, off); return err })
			}
			if err != nil {
				return diskError("pwrite", fd, err)
			}
			p, off = p[n:], off+int64(n)
		}
	}
	return nil
}

// diskError is wrap for a regular file, where a want of space is the disk's.
func diskError(call string, fd *FD, err error) error {
	return spaceError(call, err, func(s *unix.Statfs_t) error { return unix.Fstatfs(fd.Raw(), s) })
}

// spaceError is diskError with the call that asks the file system.
func spaceError(call string, err error, ask func(*unix.Statfs_t) error) error {
	errno, ok := err.(syscall.Errno)
	if !ok || errno != unix.ENOSPC && errno != unix.EDQUOT {
		return wrap(call, err)
	}
	var s unix.Statfs_t
	free := "what its file system has free cannot be read"
	if retry(func() error { return ask(&s) }) == nil {
		block := uint64(max(s.Frsize, 1))
		free = fmt.Sprintf("%d of %d bytes and %d of %d files of its file system are free", s.Bavail*block, s.Blocks*block, s.Ffree, s.Files)
	}
	if errno == unix.ENOSPC {
		free += ", if no quota says less"
	}
	return origin.Mark(fmt.Errorf("%s: %w", call, &shortage{errno, free}))
}

// Datasync returns once what was written is on the disk.
func Datasync(fd *FD) error {
	if err := injected("fdatasync"); err != nil {
		return diskError("fdatasync", fd, err)
	}
	return diskError("fdatasync", fd, retry(func() error { return unix.Fdatasync(fd.Raw()) }))
}

// Reserve makes a part of a file exist on the disk, so that a write there does not lack room. Where
// the file system cannot, the file only gets that long.
func Reserve(fd *FD, off, n int64) error {
	err := injected("fallocate")
	if err == nil {
		err = retry(func() error { return unix.Fallocate(fd.Raw(), 0, off, n) })
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		return diskError("fallocate", fd, err)
	}
	size, err := Size(fd)
	if err != nil || size >= off+n {
		return err
	}
	return Truncate(fd, off+n)
}

// Punch gives the room of a part of a file back, which reads as zeros then. Where the file system cannot, nothing happens.
func Punch(fd *FD, off, n int64) error {
	const call = "fallocate punch"
	err := injected(call)
	if err == nil {
		err = retry(func() error {
			return unix.Fallocate(fd.Raw(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		})
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return diskError(call, fd, err)
}

// Truncate sets the length of a file.
func Truncate(fd *FD, n int64) error {
	if err := injected("ftruncate"); err != nil {
		return diskError("ftruncate", fd, err)
	}
	return diskError("ftruncate", fd, retry(func() error { return unix.Ftruncate(fd.Raw(), n) }))
}
