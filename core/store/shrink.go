package store

import (
	"fmt"

	"github.com/moewire/moewire/core/store/medium"
)

// shrink evicts what a smaller capacity than that of the last start has no room for: the segments with the fewest hot bytes. They
// go as wholes: to move the hot blocks of many segments would take a start too long. Where the medium fails the rest stays, and
// the next start goes on.
func (s *recovery) shrink() {
	m, can := s.medium.(medium.Shrunk)
	if !can {
		return
	}
	if m.Anew() {
		s.cfg.Log(fmt.Sprintf("the capacity has room for less than %d segments of the store that was there: its blocks are given up, and it begins anew",
			medium.LeastSegments))
	}
	surplus := len(s.segments) - m.NumKept()
	if surplus <= 0 {
		return
	}
	s.note(s.sealAll())
	before := s.index.Len()
	gone := s.makeSurplus(surplus, int64(m.NumKept())*m.SegmentBytes())
	if n := before - s.index.Len(); n > 0 {
		s.cfg.Log(fmt.Sprintf("the capacity is smaller than it was: %d blocks are evicted, and %d stay", n, s.index.Len()))
	}
	if len(gone) < surplus {
		s.cfg.Log(fmt.Sprintf("the capacity is not reached: %d segments more than it has room for cannot be emptied", surplus-len(gone)))
	}
	s.note(m.GiveBack(gone))
}

// makeSurplus empties segments until so many are free, and sets these aside: the last ones, which leave no hole in a file.
func (s *recovery) makeSurplus(surplus int, capacityBytes int64) (gone []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.planUnlocked(capacityBytes * hotShare / 8)
	v.since = ^uint64(0) // no block is moved
	for s.numFree() < surplus {
		at := s.coldest(v, func(int) bool { return true })
		if at == none || !s.emptyUnlocked(at, v) {
			break
		}
	}
	for at := len(s.segments) - 1; at >= 0 && len(gone) < surplus; at-- {
		if s.segments[at].isFree() {
			s.segments[at].state = stateGone
			gone = append(gone, at)
		}
	}
	s.numGone = len(gone)
	return gone
}
