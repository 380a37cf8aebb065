package store

import (
	"cmp"
	"fmt"
	"slices"

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

// emptiedTogether is how many segments are emptied with one flush.
const emptiedTogether = 256

// makeSurplus empties segments until so many are free, and sets these aside: the last ones, which leave no hole in a file.
func (s *recovery) makeSurplus(surplus int, capacityBytes int64) (gone []int) {
	v := s.planEviction(capacityBytes * hotShare / 8)
	v.since = ^uint64(0) // no block is moved
	coldest := s.coldestFirst(v)
	for {
		n := min(surplus-s.free(), len(coldest), emptiedTogether)
		if n <= 0 || !s.emptyTogether(coldest[:n], v) {
			break
		}
		coldest = coldest[n:]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := len(s.segments) - 1; at >= 0 && len(gone) < surplus; at-- {
		if s.segments[at].isFree() {
			s.segments[at].state = stateGone
			gone = append(gone, at)
		}
	}
	s.numGone = len(gone)
	return gone
}

// free is numFree for a caller that does not hold mu.
func (s *recovery) free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.numFree()
}

// coldestFirst are the segments that may be emptied, those with the fewest hot bytes first. Those behind one that could not be sealed
// are left out: the disk fails, and what is hotter is not to go in place of what is colder.
func (s *recovery) coldestFirst(v *evictionPlan) (list []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := range s.segments {
		if s.segments[at].mayBeEmptied() {
			list = append(list, at)
		}
	}
	slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(v.hotBytes[a], v.hotBytes[b]) })
	if full := slices.IndexFunc(list, func(at int) bool { return s.segments[at].state == stateFull }); full >= 0 {
		list = list[:full]
	}
	return list
}

// emptyTogether empties segments of which no block is moved. Those that the medium cannot write to keep their blocks; after a few of
// them it stops. It reports whether it is worth to go on with others.
func (s *recovery) emptyTogether(list []int, v *evictionPlan) bool {
	var ready []int
	failed := 0
	for i := 0; i < len(list) && failed < mostTries; i++ {
		at := list[i]
		s.mu.Lock()
		s.beginEmptying(at)
		s.mu.Unlock()
		if err := s.checkWrites(at); err != nil {
			s.stay(at, err)
			failed++
			continue
		}
		s.eraseStale(at)
		ready = append(ready, at)
	}
	return s.evictTogether(ready, v) && failed < mostTries
}

// evictTogether ends segments that are being emptied, behind one flush: the medium is one file. It reports whether they are none.
func (s *recovery) evictTogether(list []int, v *evictionPlan) bool {
	if len(list) == 0 {
		return true
	}
	writes := true
	if err := s.flushMoved(list[0]); err != nil {
		s.stay(list[0], err) // one failure, whatever the number of segments
		list, writes = list[1:], false
	}
	for _, at := range list {
		if !writes {
			s.keepAsItIs(at)
			continue
		}
		s.evictAll(at, v) // all of it: no block is pinned before the store is open
		writes = s.end(at)
	}
	return writes
}
