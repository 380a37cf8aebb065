package store

import (
	"fmt"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
)

// Policy says which blocks stay when room is needed. It is called by one goroutine at a time.
type Policy interface {
	// HotSince looks at all blocks and says from which stamp on they are to be kept, so that these have at most
	// so many bytes. each calls a function with every block, as often as it is asked.
	HotSince(each func(func(*index.Block)), bytes int64) (stamp uint64)
}

const (
	// hotShare is how much of what there is counts as hot, in eighths: the rest is what segments are reclaimed from,
	// and bounds how much is written again for each byte.
	hotShare = 7
	// keepShare bounds what of a segment is written again, in quarters.
	keepShare = 3
)

// LRU keeps what was used last. Chains are stamped so that heads are newer than tails: tails go first.
type LRU struct{}

const numBuckets = 4096

// HotSince divides the range of stamps into buckets, and takes whole ones, the newest first.
func (LRU) HotSince(each func(func(*index.Block)), bytes int64) uint64 {
	low, high := ^uint64(0), uint64(0)
	each(func(b *index.Block) { low, high = min(low, b.Stamp), max(high, b.Stamp) })
	if low > high {
		return 0
	}
	width := (high-low)/numBuckets + 1
	var buckets [numBuckets]int64
	each(func(b *index.Block) {
		if b.Stamp >= low && b.Stamp <= high { // others came meanwhile
			buckets[(b.Stamp-low)/width] += b.RecordBytes()
		}
	})
	for i := numBuckets - 1; i >= 0; i-- {
		if bytes -= buckets[i]; bytes < 0 {
			return low + uint64(i+1)*width
		}
	}
	return 0
}

// reclaim makes one segment free: the sealed one with the fewest hot bytes. These are written again, the rest is
// evicted. It reports whether there was one. The caller holds mu.
func (s *Store) reclaim() bool {
	if s.reclaiming {
		return false
	}
	s.reclaiming = true
	defer func() { s.reclaiming = false }()
	pinned := s.pins.now()
	since := s.cfg.Policy.HotSince(s.index.Each, s.live.Load()*hotShare/8)
	hot := func(b *index.Block) bool {
		return pinned[b.Hash] || b.Stamp >= since && !s.isOrphan(b)
	}
	at, bytes := s.victim(hot)
	if at == none {
		return false
	}
	if bytes > 0 && !s.canMove() {
		return false
	}
	s.empty(at, hot, pinned)
	return true
}

// canMove opens a fresh segment, which has room for all of another one. Without it, as on a full disk, nothing is
// evicted that is to stay.
func (s *Store) canMove() bool {
	if s.open == none && s.numFree() > 0 {
		s.tryStart(s.freeSegment())
	}
	return s.open != none
}

func (s *Store) capacity() int64 { return s.medium.SegmentBytes() * int64(len(s.segments)) }

// isOrphan reports whether the block before it in its chain is gone: no prefix leads to it any more.
func (s *Store) isOrphan(b *index.Block) bool {
	return b.Parent != record.Hash{} && !s.index.Has(b.Parent)
}

// victim is the segment to be reclaimed, or none, and how many bytes of it are hot.
func (s *Store) victim(hot func(*index.Block) bool) (int, int64) {
	bytes := make([]int64, len(s.segments))
	s.index.Each(func(b *index.Block) {
		if hot(b) {
			bytes[b.Segment] += b.RecordBytes()
		}
	})
	best := none
	for i := range s.segments {
		g := &s.segments[i]
		if g.state == stateSealed && g.pending == 0 && g.refs.Load() == 0 && (best == none || bytes[i] < bytes[best]) {
			best = i
		}
	}
	if best == none {
		return none, 0
	}
	return best, bytes[best]
}

// empty moves the hot blocks of a segment to the open one and evicts the others.
func (s *Store) empty(at int, hot func(*index.Block) bool, pinned map[record.Hash]bool) {
	g := &s.segments[at]
	left := s.medium.SegmentBytes() * keepShare / 4
	for _, h := range g.placed {
		b, found := s.index.Get(h)
		if !found || int(b.Segment) != at {
			continue
		}
		if n := b.RecordBytes(); hot(&b) && (n <= left || pinned[h]) && s.move(&b) {
			left -= n
			continue
		}
		s.evict(&b)
	}
	s.end(at)
}

func (s *Store) evict(b *index.Block) {
	cause := &s.counts.evictedCold
	if s.isOrphan(b) {
		cause = &s.counts.evictedOrphans
	}
	if s.drop(b.Hash, func(now *index.Block) bool { return now.Segment == b.Segment && now.Off == b.Off }) {
		cause.Add(1)
	}
}

// end ends a segment's life: on a disk its records become none.
func (s *Store) end(at int) {
	g := &s.segments[at]
	g.refs.Add(1)
	g.state = stateEmptied
	s.bury(&index.Block{Segment: uint16(at)})
	s.counts.reclaimed.Add(1)
}

// move writes a block's record again, in the open segment. It reports whether the block is there now.
func (s *Store) move(b *index.Block) bool {
	n := b.RecordBytes()
	to, err := s.place(b.Hash, b.Namespace, n, 0)
	if err != nil {
		return false
	}
	defer func() { s.segments[to.segment].pending-- }()
	if err := s.copyRecord(b, to); err != nil {
		s.note(fmt.Errorf("a block could not be moved: %w", err))
		s.buryCopy(b, to)
		return false
	}
	moved := false
	s.index.Change(b.Hash, func(now *index.Block) bool {
		if moved = now.Segment == b.Segment && now.Off == b.Off; moved {
			now.Segment, now.Off = uint16(to.segment), uint32(to.off/record.PageBytes)
		}
		return true
	})
	if !moved { // it was deleted meanwhile
		s.buryCopy(b, to)
	}
	s.dirty.Add(n)
	s.counts.moved.Add(uint64(n))
	return true
}

// buryCopy makes a record none that a block was to be moved to.
func (s *Store) buryCopy(b *index.Block, to spot) {
	dead := *b
	dead.Segment, dead.Off = uint16(to.segment), uint32(to.off/record.PageBytes)
	s.segments[to.segment].refs.Add(1)
	s.bury(&dead)
}

// copyRecord reads a record and writes it with another place and number.
func (s *Store) copyRecord(b *index.Block, to spot) error {
	off := int64(b.Off) * record.PageBytes
	whole := record.PayloadOff(int(b.KeyBytes)) + int64(b.PayloadBytes)
	src := s.medium.Bytes(int(b.Segment), off, whole)
	if src == nil {
		src = make([]byte, whole)
		if err := s.medium.Read(int(b.Segment), off, src); err != nil {
			return err
		}
	}
	h, err := s.secret.Get(src, record.Place{Life: s.lifeOf(b), Off: off})
	if err != nil {
		return err
	}
	h.Seq = to.seq
	head := make([]byte, record.PayloadOff(int(b.KeyBytes)))
	s.secret.Put(head, record.Place{Life: to.life, Off: to.off}, &h)
	return s.medium.Write(to.segment, to.off, head, src[len(head):])
}
