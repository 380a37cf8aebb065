package shm

import (
	"sync/atomic"

	"github.com/moewire/moewire/core/internal/sys"
)

// region is one mapping of a memfd, unmapped by the last Release. It shows
// all bytes but the first skip (a rank's header, which only this package
// uses) as a domain.Segment.
type region struct {
	mapping *sys.Mapping
	header  []byte
	data    []byte
	refs    atomic.Int64
}

// mapRegion maps n bytes of fd at off; the caller gets the first reference.
func mapRegion(fd *sys.FD, off, skip, n int64) (*region, error) {
	m, err := sys.Map(fd, off, skip+n)
	if err != nil {
		return nil, err
	}
	return newRegion(m, skip), nil
}

func newRegion(m *sys.Mapping, skip int64) *region {
	b := m.Bytes()
	r := &region{mapping: m, header: b[:skip:skip], data: b[skip:len(b):len(b)]}
	r.refs.Store(1)
	return r
}

func (r *region) Word(off int64) *atomic.Uint64 { return sys.Word(r.data, off) }

func (r *region) Bytes(off, n int64) []byte { return r.data[off : off+n : off+n] }

func (r *region) SizeBytes() int64 { return int64(len(r.data)) }

// Prefault clips the range to the segment.
func (r *region) Prefault(off, n int64) {
	from := min(max(off, 0), r.SizeBytes())
	to := min(max(off+n, from), r.SizeBytes())
	sys.Prefault(r.data[from:to])
}

// Retain panics when the last reference is already gone: the memory is no
// longer there.
func (r *region) Retain() {
	if r.refs.Add(1) <= 1 {
		panic("shm: Retain of a segment that is already unmapped")
	}
}

func (r *region) Release() {
	switch n := r.refs.Add(-1); {
	case n == 0:
		_ = r.mapping.Unmap() // fails only for a range that is not mapped
	case n < 0:
		panic("shm: Release without Retain")
	}
}
