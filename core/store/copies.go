package store

import (
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
)

// copies are the records that blocks had in a segment that is being emptied, until the segment is none on the disk:
// the index has these blocks elsewhere or nowhere, and the next Open would find their records. Deletes reach them here.
type copies struct {
	num  atomic.Int64 // of segments
	mu   sync.Mutex
	left map[uint16]map[record.Hash]uint32 // by segment: where a block's record is, in pages
}

func (c *copies) add(b *index.Block) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == nil {
		c.left = map[uint16]map[record.Hash]uint32{}
	}
	if c.left[b.Segment] == nil {
		c.left[b.Segment] = map[record.Hash]uint32{}
		c.num.Add(1)
	}
	c.left[b.Segment][b.Hash] = b.Off
}

// forget is for a segment that is none on the disk.
func (c *copies) forget(segment uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left[segment] != nil {
		delete(c.left, segment)
		c.num.Add(-1)
	}
}

// take removes the records of a block, of which keep is called under the lock that forget needs.
func (c *copies) take(h record.Hash, keep func(segment uint16)) (taken []index.Block) {
	if c.num.Load() == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for segment, places := range c.left {
		if off, is := places[h]; is {
			keep(segment)
			delete(places, h)
			taken = append(taken, index.Block{Hash: h, Segment: segment, Off: off})
		}
	}
	return taken
}

// leaveCopy is for a block that the index is going to have elsewhere or nowhere, of a segment that is being emptied.
func (s *Store) leaveCopy(b *index.Block) {
	if s.medium.Lasts() {
		s.copies.add(b)
	}
}

// eraseCopies makes the records none that a block has left behind.
func (s *Store) eraseCopies(h record.Hash) {
	taken := s.copies.take(h, func(segment uint16) { s.segments[segment].refs.Add(1) })
	for i := range taken {
		_ = s.erase(&taken[i]) // the next flush tries again
	}
}
