//go:build linux

package sys

import (
	"errors"

	"golang.org/x/sys/unix"
)

// NewMemfd makes an empty anonymous memory file that cannot be executed (where the kernel
// knows that flag). Its size can only grow: a peer that has checked the size once can
// never be hit by SIGBUS. The name only shows in /proc.
func NewMemfd(name string) (*FD, error) { return newMemfd(name, 0) }

// NewHugeMemfd is NewMemfd in huge pages of HugePageBytes, which the
// administrator has reserved: Map fails with ENOMEM where there are too few.
func NewHugeMemfd(name string) (*FD, error) {
	return newMemfd(name, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
}

func newMemfd(name string, flags int) (*FD, error) {
	if err := injected("memfd_create"); err != nil {
		return nil, wrap("memfd_create", err)
	}
	raw, err := unix.MemfdCreate(name, flags|unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		raw, err = unix.MemfdCreate(name, flags|unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, wrap("memfd_create", err)
	}
	fd := newFD(raw)
	if _, err := unix.FcntlInt(uintptr(raw), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		return nil, errors.Join(wrap("fcntl F_ADD_SEALS", err), fd.Close())
	}
	return fd, nil
}

// Grow sets the size of a memfd, in bytes; in huge pages, to whole ones. New
// bytes are zero and take no memory until they are touched.
func Grow(fd *FD, sizeBytes int64) error {
	sizeBytes, err := wholePages(fd, sizeBytes)
	if err != nil {
		return err
	}
	if err := injected("ftruncate"); err != nil {
		return wrap("ftruncate", err)
	}
	return wrap("ftruncate", retry(func() error { return unix.Ftruncate(fd.Raw(), sizeBytes) }))
}

// Size returns the size of a file in bytes.
func Size(fd *FD) (int64, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstat(fd.Raw(), &st) })
	return st.Size, wrap("fstat", err)
}

// SameFile reports whether two descriptors lead to one file.
func SameFile(a, b *FD) (bool, error) {
	var s, t unix.Stat_t
	if err := retry(func() error { return unix.Fstat(a.Raw(), &s) }); err != nil {
		return false, wrap("fstat", err)
	}
	if err := retry(func() error { return unix.Fstat(b.Raw(), &t) }); err != nil {
		return false, wrap("fstat", err)
	}
	return s.Dev == t.Dev && s.Ino == t.Ino, nil
}

// CannotShrink reports whether the file is a memfd whose size can only grow.
func CannotShrink(fd *FD) (bool, error) {
	seals, err := unix.FcntlInt(uintptr(fd.Raw()), unix.F_GET_SEALS, 0)
	if err != nil {
		return false, wrap("fcntl F_GET_SEALS", err)
	}
	return seals&unix.F_SEAL_SHRINK != 0, nil
}

// Inode returns the number that names the file while any process has it open.
func Inode(fd *FD) (uint64, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstat(fd.Raw(), &st) })
	return st.Ino, wrap("fstat", err)
}
