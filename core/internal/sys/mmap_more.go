//go:build linux

package sys

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrBeyondEnd means that a file ends before the bytes that shall be mapped.
var ErrBeyondEnd = errors.New("the file ends before")

// MapMore maps n bytes at offset off, a multiple of the page size, of the file that m maps
// from its beginning. It takes no descriptor: the file's other mappings need none to stay.
// The last page is made present, so that no byte of a file that cannot shrink raises
// SIGBUS. Kernels before 5.14, and files in reserved huge pages, know no MapMore.
func (m *Mapping) MapMore(off, n int64) (*Mapping, error) {
	if off < 0 || n <= 0 || off%int64(PageSize()) != 0 || off+n < 0 || int64(int(off+n)) != off+n {
		return nil, fmt.Errorf("mremap of %d bytes at %d: %w", n, off, unix.EINVAL)
	}
	data, err := m.remap(off, n)
	if (err == unix.ENOMEM || err == unix.EINVAL) && m.endsBefore(off+n) { // EINVAL: no process can map so much
		err = ErrBeyondEnd
	}
	if err != nil {
		return nil, wrap("mremap", err)
	}
	mappings.Add(1)
	mappedBytes.Add(n)
	more := &Mapping{data: data, bytes: int(n)}
	if err := populateLast(data); err != nil {
		return nil, errors.Join(err, more.Unmap())
	}
	return more, nil
}

// endsBefore looks for the file's end where so many bytes cannot be mapped: in half as many,
// or half of these. It reports false if all that can be mapped is there.
func (m *Mapping) endsBefore(end int64) bool {
	for n := end / 2; n > 0; n /= 2 {
		data, err := m.remap(0, n)
		if err != nil {
			continue
		}
		err = populateLast(data)
		_ = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(data)), uintptr(n)) // fails only for a range that is not mapped
		return errors.Is(err, ErrBeyondEnd)
	}
	return false
}

// remap copies m, longer, and unmaps what lies before off. With an old length of 0
// mremap leaves a shared mapping where it is and maps the same file once more.
func (m *Mapping) remap(off, n int64) ([]byte, error) {
	if err := injected("mremap"); err != nil {
		return nil, err
	}
	from := uintptr(unsafe.Pointer(unsafe.SliceData(m.data)))
	at, _, errno := unix.Syscall6(unix.SYS_MREMAP, from, 0, uintptr(off+n), unix.MREMAP_MAYMOVE, 0, 0)
	if errno != 0 {
		return nil, errno
	}
	start := *(*unsafe.Pointer)(unsafe.Pointer(&at)) // vet cannot know that it is no Go memory
	part := unsafe.Add(start, off)
	if off == 0 {
		return unsafe.Slice((*byte)(part), n), nil
	}
	if err := unix.MunmapPtr(start, uintptr(off)); err != nil {
		return nil, errors.Join(err, unix.MunmapPtr(start, uintptr(off+n)))
	}
	return unsafe.Slice((*byte)(part), n), nil
}

// populateLast reads the last page of a mapping as the kernel does it: a page beyond the end
// of the file is an error there, not a signal.
func populateLast(data []byte) error {
	last := (len(data) - 1) / PageSize() * PageSize()
	page := unsafe.Add(unsafe.Pointer(unsafe.SliceData(data)), last)
	err := retry(func() error {
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(page), uintptr(PageSize()), unix.MADV_POPULATE_READ)
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err == unix.EFAULT {
		err = ErrBeyondEnd
	}
	return wrap("madvise MADV_POPULATE_READ", err)
}
