//go:build linux

package sys

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mapping is a shared, readable and writable mapping of a file. Its bytes
// must not be touched after Unmap.
type Mapping struct {
	data  []byte // in whole pages of the file
	bytes int
	unmap sync.Once
	err   error
}

// Map maps n bytes of fd at offset off, a multiple of the file's page size. The
// mapping stays after fd is closed. Touching bytes beyond the end of the file
// raises SIGBUS: check Size first.
func Map(fd *FD, off, n int64) (*Mapping, error) {
	return mapFile(fd, off, n, unix.PROT_READ|unix.PROT_WRITE)
}

// MapReadOnly is Map for memory that this process only looks at: to write to
// it is a fault.
func MapReadOnly(fd *FD, off, n int64) (*Mapping, error) {
	return mapFile(fd, off, n, unix.PROT_READ)
}

func mapFile(fd *FD, off, n int64, protection int) (*Mapping, error) {
	if off < 0 || n <= 0 || int64(int(n)) != n {
		return nil, fmt.Errorf("mmap of %d bytes at %d: %w", n, off, unix.EINVAL)
	}
	whole, err := wholePages(fd, n)
	if err != nil {
		return nil, err
	}
	if err := injected("mmap"); err != nil {
		return nil, wrap("mmap", err)
	}
	at, err := unix.MmapPtr(fd.Raw(), off, nil, uintptr(whole), protection, unix.MAP_SHARED)
	if err != nil {
		return nil, wrap("mmap", err)
	}
	mappings.Add(1)
	mappedBytes.Add(whole)
	return &Mapping{data: unsafe.Slice((*byte)(at), whole), bytes: int(n)}, nil
}

// Bytes is the mapped memory.
func (m *Mapping) Bytes() []byte { return m.data[:m.bytes:m.bytes] }

// Offset says where in the mapping part begins, and whether it lies wholly
// inside.
func (m *Mapping) Offset(part []byte) (off int64, inside bool) {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(part))) - uintptr(unsafe.Pointer(unsafe.SliceData(m.data)))
	size := uintptr(m.bytes)
	return int64(start), start <= size && uintptr(len(part)) <= size-start // one before it is a large number
}

// KeepFromChildren has forked children not get the mapping.
func (m *Mapping) KeepFromChildren() error {
	return wrap("madvise MADV_DONTFORK", unix.Madvise(m.data, unix.MADV_DONTFORK))
}

// Unmap ends the mapping. Idempotent.
func (m *Mapping) Unmap() error {
	m.unmap.Do(func() {
		mappings.Add(-1)
		mappedBytes.Add(-int64(len(m.data)))
		m.err = wrap("munmap", unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(m.data)), uintptr(len(m.data))))
	})
	return m.err
}

// Word returns the 64-bit word at data[off]. It panics when the word is not
// wholly inside or not aligned to 8 bytes.
func Word(data []byte, off int64) *atomic.Uint64 {
	if off&7 != 0 || uint64(off) >= uint64(len(data))&^7 { // a negative one is a large one
		panic(noWord{off, len(data)})
	}
	return (*atomic.Uint64)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(data)), off))
}

// noWord is what Word panics with. Its text is made elsewhere, so that Word is
// small enough to be inlined.
type noWord struct {
	off   int64
	bytes int
}

func (e noWord) Error() string {
	return fmt.Sprintf("word at byte offset %d of a segment of %d bytes", e.off, e.bytes)
}

// Prefault makes the pages of data, part of a mapping, present and writable.
func Prefault(data []byte) {
	if len(data) == 0 {
		return
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(data)))
	ahead := start & uintptr(PageSize()-1) // madvise wants a page boundary
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, start-ahead, uintptr(len(data))+ahead, unix.MADV_POPULATE_WRITE)
	if errno != 0 {
		touch(data)
	}
}

// touch faults in every page of data without changing a byte, also when
// others write to it at the same time (kernels before 5.14).
func touch(data []byte) {
	ahead := -uintptr(unsafe.Pointer(unsafe.SliceData(data))) & 7
	if uintptr(len(data)) < ahead+8 {
		return // less than a word: not worth a fault now
	}
	data = data[ahead:]
	last := int64(len(data)-8) &^ 7
	for off := int64(0); off < last; off += int64(PageSize()) {
		Word(data, off).Add(0)
	}
	Word(data, last).Add(0)
}
