package medium

import (
	"fmt"

	"github.com/moewire/moewire/core/internal/sys"
)

// Memory is an arena: all segments one behind the other. Its pages become resident as they are written.
type Memory struct {
	segmentBytes int64
	numSegments  int
	arena        *sys.Mapping
}

// NewMemory makes an arena of whole segments, of at most so many bytes.
func NewMemory(capacityBytes int64) (*Memory, error) {
	n, err := SegmentBytesFor(capacityBytes)
	if err != nil {
		return nil, err
	}
	m := &Memory{segmentBytes: n, numSegments: int(capacityBytes / n)}
	if m.arena, err = sys.MapAnonymous(n * int64(m.numSegments)); err != nil {
		return nil, fmt.Errorf("memory for a store of %d bytes: %w", capacityBytes, err)
	}
	return m, nil
}

// SegmentBytes is the size of a segment.
func (m *Memory) SegmentBytes() int64 { return m.segmentBytes }

// NumSegments is how many there are.
func (m *Memory) NumSegments() int { return m.numSegments }

// Lasts is false: memory is gone with its process.
func (m *Memory) Lasts() bool { return false }

// Bytes is a part of the arena.
func (m *Memory) Bytes(segment int, off, n int64) []byte {
	at := int64(segment)*m.segmentBytes + off
	return m.arena.Bytes()[at : at+n : at+n]
}

// Write copies.
func (m *Memory) Write(segment int, off int64, pieces ...[]byte) error {
	for _, p := range pieces {
		off += int64(copy(m.Bytes(segment, off, int64(len(p))), p))
	}
	return nil
}

// Read copies.
func (m *Memory) Read(segment int, off int64, p []byte) error {
	copy(p, m.Bytes(segment, off, int64(len(p))))
	return nil
}

// Sync has nothing to do.
func (m *Memory) Sync(int) error { return nil }

// Close unmaps the arena. No part of it may be used any more.
func (m *Memory) Close() error { return m.arena.Unmap() }
