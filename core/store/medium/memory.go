package medium

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/moewire/moewire/core/internal/sys"
)

// Memory is an arena: all segments one behind the other, in a file of anonymous memory. It is address space until
// segments are written to.
type Memory struct {
	segmentBytes int64
	numSegments  int
	fd           *sys.FD
	arena        *sys.Mapping
	sealed       error         // why others may not have the file
	reserved     []atomic.Bool // of each segment: it has its room
}

// NewMemory makes an arena of whole segments, of at most so many bytes.
func NewMemory(capacityBytes int64) (*Memory, error) {
	n, err := SegmentBytesFor(capacityBytes)
	if err != nil {
		return nil, err
	}
	m := &Memory{segmentBytes: n, numSegments: int(capacityBytes / n)}
	m.reserved = make([]atomic.Bool, m.numSegments)
	if err := m.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("memory for a store of %d bytes: %w", capacityBytes, err), m.Close())
	}
	return m, nil
}

// open makes the file and maps it. Afterwards nothing but this mapping can change it.
func (m *Memory) open() (err error) {
	if m.fd, err = sys.NewMemfd("moewire-store"); err != nil {
		return err
	}
	if err = sys.Grow(m.fd, m.Size()); err != nil {
		return err
	}
	if m.arena, err = sys.Map(m.fd, 0, m.Size()); err != nil {
		return err
	}
	m.sealed = sys.SealForReaders(m.fd)
	return nil
}

// SegmentBytes is the size of a segment.
func (m *Memory) SegmentBytes() int64 { return m.segmentBytes }

// NumSegments is how many there are.
func (m *Memory) NumSegments() int { return m.numSegments }

// Size is the size of all segments.
func (m *Memory) Size() int64 { return m.segmentBytes * int64(m.numSegments) }

// Share is a descriptor by which another process can read all segments, one behind the other, and change none.
// The caller closes it.
func (m *Memory) Share() (*sys.FD, error) {
	if m.sealed != nil {
		return nil, m.sealed
	}
	return sys.ReadOnly(m.fd)
}

// Lasts is false: memory is gone with its process.
func (m *Memory) Lasts() bool { return false }

// Bytes is a part of the arena. It may be touched once something was written to the segment.
func (m *Memory) Bytes(segment int, off, n int64) []byte {
	at := int64(segment)*m.segmentBytes + off
	return m.arena.Bytes()[at : at+n : at+n]
}

// Write takes the segment's memory first, all of it: a want of memory is an error here and no signal later.
func (m *Memory) Write(segment int, off int64, pieces ...[]byte) error {
	if !m.reserved[segment].Load() {
		if err := sys.Reserve(m.fd, int64(segment)*m.segmentBytes, m.segmentBytes); err != nil {
			return err
		}
		m.reserved[segment].Store(true)
	}
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
func (m *Memory) Close() error {
	err := m.fd.Close()
	if m.arena != nil {
		err = errors.Join(err, m.arena.Unmap())
	}
	return err
}
