package multihost

import (
	"fmt"
	"sync/atomic"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
)

// private is memory of this process alone. It implements domain.Segment.
type private struct {
	mapping *sys.Mapping
	refs    atomic.Int64
}

var _ domain.Segment = (*private)(nil)

func newPrivate(sizeBytes int64) (domain.Segment, error) {
	if sizeBytes <= 0 {
		return nil, fmt.Errorf("multihost: memory of %d bytes is not possible", sizeBytes)
	}
	mapping, err := sys.MapAnonymous(sizeBytes) // takes no descriptor: it may be made in the middle of a call
	if err != nil {
		return nil, fmt.Errorf("multihost: memory of %d bytes: %w", sizeBytes, err)
	}
	s := &private{mapping: mapping}
	s.refs.Store(1)
	return s, nil
}

// rings says where the memory of links over a carrier comes from.
func (c *Config) rings(carrier transport.Transport) link.Memory {
	if c.Rings == nil {
		return newPrivate
	}
	return func(sizeBytes int64) (domain.Segment, error) { return c.Rings(carrier, sizeBytes) }
}

func (s *private) Word(off int64) *atomic.Uint64 { return sys.Word(s.mapping.Bytes(), off) }

func (s *private) Bytes(off, n int64) []byte { return s.mapping.Bytes()[off : off+n : off+n] }

func (s *private) SizeBytes() int64 { return int64(len(s.mapping.Bytes())) }

// Prefault clips the range to the segment.
func (s *private) Prefault(off, n int64) {
	from := min(max(off, 0), s.SizeBytes())
	sys.Prefault(s.mapping.Bytes()[from:min(max(off+n, from), s.SizeBytes())])
}

// Retain panics when the last reference is already gone.
func (s *private) Retain() {
	if s.refs.Add(1) <= 1 {
		panic("multihost: Retain of memory that is already unmapped")
	}
}

func (s *private) Release() {
	switch n := s.refs.Add(-1); {
	case n == 0:
		_ = s.mapping.Unmap() // fails only for a range that is not mapped
	case n < 0:
		panic("multihost: Release without Retain")
	}
}
