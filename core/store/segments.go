package store

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/store/record"
)

// state is where a segment is in its life.
type state uint8

const (
	stateFree     state = iota
	stateStarting       // its first page is being written
	stateOpen           // records are placed in it
	stateFull           // no more are, and it has no footer yet
	stateSealed         // it has its footer, if the medium lasts
	stateEmptying       // its blocks are being evicted or moved
	stateEmptied        // they were; a reader may still look at it
	stateLost           // the medium could not write to it; it is tried again
	stateGone           // the capacity has no room for it
)

// retryLost is after which time a segment is tried again that could not be written to.
const retryLost = 10 * time.Second

// segment is one, in one of its lives.
type segment struct {
	// Guarded by Store.mu.
	state      state
	next       int64 // the end of what was placed
	pending    int   // records that were placed and neither written nor given up
	placed     []record.Hash
	namespaces map[uint16]struct{} // of placed: the footer needs room for them
	lost       time.Time           // when the medium could last not write to it
	noRoom     bool                // the medium had no room for it when it was last begun
	said       bool                // a line has said that the medium could not write to it when it was last begun
	inDoubt    bool                // a flush may have lost what was written to it
	eraseDue   bool                // it was emptied, and its records could not be made none so far

	wrote atomic.Uint64 // the latest write, on the clock of Store.wet

	life atomic.Uint64 // a random number, in every record's check
	refs atomic.Int64  // of leases, and of calls that look at a record

	// disk guards what is overwritten in place, and the footer. It is held while a block is moved from here.
	disk   sync.Mutex
	footer record.Tail // zeros without one
}

// fits reports whether a record has room in front of the footer.
func (g *segment) fits(ns uint16, bytes, segmentBytes int64) bool {
	numNamespaces := len(g.namespaces)
	if _, known := g.namespaces[ns]; !known {
		numNamespaces++
	}
	return g.next+bytes+record.FooterBytes(len(g.placed)+1, numNamespaces) <= segmentBytes
}

// isFree makes a segment free that may be by now.
func (g *segment) isFree() bool {
	switch {
	case g.state == stateEmptied && g.refs.Load() == 0 && g.pending == 0:
		g.state = stateFree
	case g.state == stateLost && !g.noRoom && g.mayBeWritten():
		g.state = stateFree
	}
	return g.state == stateFree
}

// mayBeWritten reports whether it is worth a try to write to the segment.
func (g *segment) mayBeWritten() bool { return time.Since(g.lost) > retryLost }

// mayBeEmptied reports whether the segment has records and nothing is being done with it. One that is full is not sealed yet.
func (g *segment) mayBeEmptied() bool {
	return g.pending == 0 && g.mayBeWritten() && (g.state == stateFull || g.state == stateSealed && g.refs.Load() == 0)
}

// hasRecords reports whether what was placed in the segment still takes room.
func (g *segment) hasRecords() bool {
	return !g.isFree() && g.state != stateLost && g.state != stateStarting && g.state != stateGone
}

func (s *Store) numFree() (n int) {
	for i := range s.segments {
		if s.segments[i].isFree() {
			n++
		}
	}
	return n
}

// anyFree reports whether a segment is free. Each put asks: it looks first at the one that was free when it was last asked. The caller
// holds mu.
func (s *Store) anyFree() bool {
	if s.segments[s.lastFree].isFree() {
		return true
	}
	for i := range s.segments {
		if s.segments[i].isFree() {
			s.lastFree = i
			return true
		}
	}
	return false
}

func (s *Store) freeSegment() int {
	for i := range s.segments {
		if s.segments[i].isFree() {
			return i
		}
	}
	panic("store: no free segment")
}

// dueForRoom is a segment that the medium had no room for and that is to be tried again, or none. All others of them wait for
// what comes of it: a full disk costs one call every retryLost.
func (s *Store) dueForRoom() int {
	for i := range s.segments {
		if g := &s.segments[i]; s.numNoRoom > 0 && g.noRoom && g.state == stateLost && g.mayBeWritten() {
			return i
		}
	}
	return none
}

// hasBroken reports whether the medium could not write to a segment for another reason than a want of room.
func (s *Store) hasBroken() bool {
	for i := range s.segments {
		if g := &s.segments[i]; g.state == stateLost && !g.noRoom {
			return true
		}
	}
	return false
}

func (s *Store) has(what state) bool {
	for i := range s.segments {
		if s.segments[i].state == what {
			return true
		}
	}
	return false
}

// erasesDue reports whether a segment was emptied and is not free because the medium fails: no more are emptied then.
func (s *Store) erasesDue() bool {
	for i := range s.segments {
		if s.segments[i].eraseDue {
			return true
		}
	}
	return false
}

// retire closes the open segment to further records. The caller holds mu.
func (s *Store) retire() {
	if s.open == none {
		return
	}
	g := &s.segments[s.open]
	if g.state = stateSealed; s.medium.Lasts() {
		g.state = stateFull
		s.toSeal = append(s.toSeal, s.open)
		wake(s.wakeup)
	}
	s.open = none
}

// turn tells those that wait that a segment has changed its state. The caller holds mu.
func (s *Store) turn() {
	close(s.turned)
	s.turned = make(chan struct{})
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
