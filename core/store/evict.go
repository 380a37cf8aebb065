package store

import (
	"fmt"
	"math"
	"time"

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
	// sparseShare is how much of its segments blocks take, in eighths, while all of them are hot: there are dead bytes
	// enough to make room.
	sparseShare = 5
	// keepShare bounds what of a segment is written again, in quarters.
	keepShare = 3
	// mostTries is how many segments are tried in turn while the medium cannot write to them.
	mostTries = 4
)

// LRU keeps what was used last. Chains are stamped so that heads are newer than tails: tails go first.
type LRU struct{}

const numBuckets = 4096

// HotSince divides the range of stamps into buckets, and takes whole ones, the newest first; then the one that is too much is
// divided again: the stamps of a chain lie close together.
func (LRU) HotSince(each func(func(*index.Block)), bytes int64) uint64 {
	low, high := ^uint64(0), uint64(0)
	each(func(b *index.Block) { low, high = min(low, b.Stamp), max(high, b.Stamp) })
	if low > high {
		return 0
	}
	since, left := newest(each, low, high, bytes)
	if since == low {
		return 0
	}
	if width := widthOf(low, high); width > 1 {
		since, _ = newest(each, since-width, since-1, left)
	}
	return since
}

// widthOf is how many stamps a bucket of a range has.
func widthOf(low, high uint64) uint64 { return (high-low)/numBuckets + 1 }

// newest takes whole buckets of a range, the newest first. It returns the first stamp of them, and how many bytes are left.
func newest(each func(func(*index.Block)), low, high uint64, bytes int64) (since uint64, left int64) {
	width := widthOf(low, high)
	var buckets [numBuckets]int64
	each(func(b *index.Block) {
		if b.Stamp >= low && b.Stamp <= high { // others came meanwhile
			buckets[(b.Stamp-low)/width] += b.RecordBytes()
		}
	})
	for i := numBuckets - 1; i >= 0; i-- {
		if bytes < buckets[i] {
			return low + uint64(i+1)*width, bytes
		}
		bytes -= buckets[i]
	}
	return low, bytes
}

// evictionPlan says what of all blocks stays, when one segment is reclaimed.
type evictionPlan struct {
	pinned      map[record.Hash]bool
	since       uint64  // stamps from here on are hot
	hotBytes    []int64 // of each segment
	pinnedBytes []int64
}

// reclaim makes one segment free: the sealed one with the fewest hot bytes. These are written again, the rest is
// evicted. It reports whether the segment is free, or will be once its readers end. While the medium fails no block is
// evicted: it would make no room. The caller holds mu, which is released meanwhile.
func (s *Store) reclaim() bool {
	if s.reclaiming || s.erasesDue() || s.inDoubt() != nil {
		return false
	}
	s.reclaiming = true
	v, at := s.chooseSegment()
	done := false
	for tries := 0; tries < mostTries && !done; tries++ {
		if at = s.orWithoutMoves(at, v); at == none {
			break
		}
		if done = s.emptyUnlocked(at, v); !done && s.segments[at].mayBeWritten() {
			break // it is not this segment that fails
		}
		at = s.candidate(v)
	}
	s.reclaiming = false
	s.turn()
	return done
}

// emptyUnlocked is empty for a caller that holds mu, which is released meanwhile.
func (s *Store) emptyUnlocked(at int, v *evictionPlan) bool {
	s.beginEmptying(at)
	s.mu.Unlock()
	defer s.mu.Lock()
	return s.empty(at, v)
}

// beginEmptying takes a ref of the segment, so that nothing of it is begun anew before end or keepAsItIs. The caller holds mu.
func (s *Store) beginEmptying(at int) {
	s.segments[at].state = stateEmptying
	s.segments[at].refs.Add(1)
}

// orWithoutMoves is the candidate, or another one where that has blocks that stay and there is no room for them. The caller holds mu,
// which is released meanwhile.
func (s *Store) orWithoutMoves(candidate int, v *evictionPlan) int {
	if candidate != none && v.hotBytes[candidate] > 0 && !s.canMove() {
		return s.candidateWithoutMoves(v)
	}
	return candidate
}

// chooseSegment plans with all blocks, and chooses the candidate. The caller holds mu, which is released meanwhile.
func (s *Store) chooseSegment() (v *evictionPlan, candidate int) {
	most := s.mostHot()
	v = s.planUnlocked(most)
	candidate = s.candidate(v)
	if most == math.MaxInt64 && candidate != none && v.hotBytes[candidate] > s.mostKept() {
		// The dead bytes lie in segments that cannot be had: some blocks have to go, and not the ones that lie last.
		v = s.planUnlocked(s.live.Load() * hotShare / 8)
		candidate = s.candidate(v)
	}
	return v, candidate
}

// planUnlocked is planEviction for a caller that holds mu, which is released meanwhile.
func (s *Store) planUnlocked(mostHot int64) *evictionPlan {
	s.mu.Unlock()
	defer s.mu.Lock()
	return s.planEviction(mostHot)
}

// mostKept is how many bytes of a segment are written again at most.
func (s *Store) mostKept() int64 { return s.medium.SegmentBytes() * keepShare / 4 }

// planEviction looks at all blocks, of which so many bytes are hot at most.
func (s *Store) planEviction(mostHot int64) *evictionPlan {
	v := &evictionPlan{pinned: s.pins.now(), hotBytes: make([]int64, len(s.segments)), pinnedBytes: make([]int64, len(s.segments))}
	v.since = s.cfg.Policy.HotSince(s.index.Each, mostHot)
	s.index.Each(func(b *index.Block) {
		if s.isHot(b, v) {
			v.hotBytes[b.Segment] += b.RecordBytes()
		}
		if v.pinned[b.Hash] {
			v.pinnedBytes[b.Segment] += b.RecordBytes()
		}
	})
	return v
}

// mostHot is how many bytes are hot at most. The caller holds mu.
func (s *Store) mostHot() int64 {
	filled := int64(0)
	for i := range s.segments {
		if s.segments[i].hasRecords() {
			filled += s.medium.SegmentBytes()
		}
	}
	live := s.live.Load()
	if live <= filled*sparseShare/8 {
		return math.MaxInt64
	}
	return live * hotShare / 8
}

func (s *Store) isHot(b *index.Block, v *evictionPlan) bool {
	return v.pinned[b.Hash] || b.Stamp >= v.since && !s.isOrphan(b)
}

// isOrphan reports whether the block before it in its chain is gone: no prefix leads to it any more.
func (s *Store) isOrphan(b *index.Block) bool {
	return b.Parent != record.Hash{} && !s.index.Has(b.Parent)
}

// canMove opens a fresh segment if none is open, which has room for all of another one. Without it, as on a full disk, nothing
// is evicted that is to stay.
func (s *Store) canMove() bool {
	for until := time.Now().Add(mostSealing); s.starting && time.Now().Before(until); {
		s.await(s.turned, until) // another call is opening one
	}
	for s.open == none && !s.starting && s.anyFree() {
		s.tryStart(s.freeSegment())
	}
	return s.open != none
}

func (s *Store) capacity() int64 { return s.medium.SegmentBytes() * int64(len(s.segments)-s.numGone) }

// candidate is the segment to be reclaimed, or none: also if one that is not sealed yet has fewer hot bytes, since to move the
// others would make no room. The caller holds mu.
func (s *Store) candidate(v *evictionPlan) int {
	return s.coldest(v, func(int) bool { return true })
}

// coldest is the candidate among the segments that may be taken.
func (s *Store) coldest(v *evictionPlan, may func(at int) bool) int {
	best := none
	for i := range s.segments {
		g := &s.segments[i]
		if !may(i) || !g.mayBeEmptied() {
			continue
		}
		if best == none || v.hotBytes[i] < v.hotBytes[best] {
			best = i
		}
	}
	if best != none && s.segments[best].state == stateFull {
		return none
	}
	return best
}

// candidateWithoutMoves is for a store that has no segment left for blocks that are moved, as after a kill while one was being
// emptied, or where the disk is smaller than the store: it takes a segment that has no pinned blocks, and none of its blocks
// stays. A disk that cannot be written to must not cost all blocks in this way: where segments that are not used fail, others
// have to lack room.
func (s *Store) candidateWithoutMoves(v *evictionPlan) int {
	if s.hasBroken() && s.numNoRoom == 0 || s.starting || s.anyFree() {
		return none
	}
	v.since = ^uint64(0)
	return s.coldest(v, func(at int) bool { return v.pinnedBytes[at] == 0 })
}

// empty moves the hot blocks of a segment to the open one, then evicts the others. Where one of the former has no other place it
// stops: the segment stays as it is, without those that were moved. So it does if the medium fails. It reports whether the
// segment was made none.
func (s *Store) empty(at int, v *evictionPlan) bool {
	if err := s.checkWrites(at); err != nil {
		s.stay(at, err)
		return false
	}
	for s.moveHot(at, v) {
		s.eraseStale(at)
		if err := s.flushMoved(at); err != nil {
			s.stay(at, err)
			return false
		}
		if s.evictAll(at, v) {
			return s.end(at)
		}
	}
	s.keepAsItIs(at)
	return false
}

// eraseStale makes the records none that blocks of a segment, which are evicted next, have left in segments that stayed. Else the
// next Open would find them, though the key had another block in between.
func (s *Store) eraseStale(at int) {
	for _, h := range s.segments[at].placed {
		if b, found := s.index.Get(h); found && int(b.Segment) == at {
			s.eraseCopies(h)
		}
	}
}

// evictAll evicts what is left of a segment. It reports whether that is all of it: blocks that were pinned meanwhile have to be
// moved, and become some of the pinned.
func (s *Store) evictAll(at int, v *evictionPlan) bool {
	all := true
	for _, h := range s.segments[at].placed {
		if b, found := s.index.Get(h); found && int(b.Segment) == at && !s.evict(&b, v) {
			v.pinned[h], all = true, false
		}
	}
	return all
}

// moveHot moves the hot blocks of a segment, as many as are worth it. It reports whether all of them have another place that
// need one.
func (s *Store) moveHot(at int, v *evictionPlan) bool {
	g := &s.segments[at]
	left := s.mostKept()
	for _, h := range g.placed {
		b, found := s.index.Get(h)
		if !found || int(b.Segment) != at || !s.isHot(&b, v) {
			continue
		}
		n := b.RecordBytes()
		if n > left && !v.pinned[h] {
			continue
		}
		if !s.move(&b) {
			return false
		}
		left -= n
	}
	return true
}

// checkWrites writes the first page of a segment again, as it is: before a block is moved or evicted the medium has to show that the
// segment can be made none.
func (s *Store) checkWrites(at int) error {
	if !s.medium.Lasts() {
		return nil
	}
	// Not by writeTo: a flush that fails has lost nothing of what is there.
	err := s.medium.Write(at, 0, s.firstPage(s.segments[at].life.Load()))
	if err != nil {
		s.mu.Lock()
		s.segments[at].lost = time.Now() // another segment is tried next
		s.mu.Unlock()
	}
	return err
}

// flushMoved flushes what was moved out of a segment, or a power cut could lose both, and what checkWrites has written.
func (s *Store) flushMoved(at int) error {
	if !s.medium.Lasts() {
		return nil
	}
	if err := s.sync(at); err != nil {
		return err
	}
	return s.inDoubt() // what was moved may be
}

// stay leaves a segment as it is that cannot be made free, and keeps the reason.
func (s *Store) stay(at int, err error) {
	err = fmt.Errorf("a segment cannot be made free, and keeps its blocks: %w", err)
	s.note(err)
	s.mu.Lock()
	s.stuck = err
	s.mu.Unlock()
	s.keepAsItIs(at)
}

func (s *Store) keepAsItIs(at int) {
	s.mu.Lock()
	s.segments[at].state = stateSealed
	s.mu.Unlock()
	s.unref(at)
}

// evict removes a block to make room. It reports false for one that was pinned after the plan was made, which stays. One that the
// plan knows to be pinned is still here because it cannot be read.
func (s *Store) evict(b *index.Block, v *evictionPlan) bool {
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	if s.pins.holds(b.Hash) && !v.pinned[b.Hash] {
		return false
	}
	cause := &s.counts.evictedCold
	if s.isOrphan(b) {
		cause = &s.counts.evictedOrphans
	}
	s.leaveCopy(b)
	if s.dropNow(b.Hash, func(now *index.Block) bool { return now.Segment == b.Segment && now.Off == b.Off }) {
		cause.Add(1)
	}
	return true
}

// end ends a segment's life: on a disk its records become none. It reports whether they are.
func (s *Store) end(at int) bool {
	s.mu.Lock()
	s.segments[at].state, s.segments[at].eraseDue = stateEmptied, true
	s.mu.Unlock()
	err := s.erase(&index.Block{Segment: uint16(at)})
	s.counts.reclaimed.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck = err
	return err == nil
}
