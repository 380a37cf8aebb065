//go:build linux

package sys

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// HugePageBytes is the size of the huge pages of NewHugeMemfd.
const HugePageBytes = 2 << 20

// wholePages rounds a length up as files in huge pages need it; others take
// any.
func wholePages(fd *FD, n int64) (int64, error) {
	unit, err := hugePageBytes(fd)
	if unit == 0 {
		return n, err
	}
	return (n + unit - 1) / unit * unit, nil
}

// InHugePages reports whether the file is made of reserved huge pages. Its
// owner can take them away again, so that touching a mapping raises SIGBUS.
func InHugePages(fd *FD) (bool, error) {
	unit, err := hugePageBytes(fd)
	return unit != 0, err
}

// hugePageBytes is 0 for files in ordinary pages.
func hugePageBytes(fd *FD) (int64, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd.Raw(), &st) }); err != nil {
		return 0, wrap("fstatfs", err)
	}
	if int64(st.Type) != unix.HUGETLBFS_MAGIC {
		return 0, nil
	}
	return int64(st.Bsize), nil
}

// AdviseHuge asks the kernel for huge pages in a mapping. Whether it grants
// any is its own decision.
func AdviseHuge(m *Mapping) error {
	return wrap("madvise MADV_HUGEPAGE", unix.Madvise(m.data, unix.MADV_HUGEPAGE))
}

// CurrentNode is the NUMA node of the processor that this thread runs on; 0
// where the kernel knows of none.
func CurrentNode() (int, error) {
	var cpu, node uint32
	_, _, errno := unix.Syscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), uintptr(unsafe.Pointer(&node)), 0)
	if errno != 0 {
		return 0, wrap("getcpu", errno)
	}
	return int(node), nil
}

// Memory policies of the kernel; package unix does not name them.
const mpolPreferred = 1

// maxNodes is how many nodes a kernel can be built for.
const maxNodes = 1024

// PreferNode makes the kernel take the memory of a shared mapping from a NUMA node as
// long as that has some, whichever thread touches it first. It does nothing on kernels
// without NUMA.
func PreferNode(m *Mapping, node int) error {
	var mask [maxNodes / 64]uint64
	mask[node/64] = 1 << (node % 64)
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(m.data))), uintptr(len(m.data)),
		mpolPreferred, uintptr(unsafe.Pointer(&mask)), maxNodes+1, 0)
	if errno == 0 || errors.Is(errno, unix.ENOSYS) {
		return nil
	}
	return wrap("mbind", errno)
}
