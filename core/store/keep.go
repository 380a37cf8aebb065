package store

import (
	"regexp"
	"slices"
	"sync"
	"time"
)

// keep seals segments and flushes, until the store is closed.
func (s *Store) keep() {
	tick := time.NewTicker(s.cfg.FlushEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-s.wakeup:
			if s.dirty.Load() >= s.cfg.FlushBytes {
				s.tend()
			}
		case <-tick.C:
			s.tend()
		}
		s.note(s.sealAll())
	}
}

// tend flushes, or at least tries again what could not be overwritten, or was in doubt.
func (s *Store) tend() {
	if s.cfg.Durability == FlushGroup || s.wet.doubted.Load() > 0 {
		s.note(s.flush())
		return
	}
	s.flusher.running.Lock() // a flush that runs meanwhile must not miss what is being tried again
	defer s.flusher.running.Unlock()
	s.note(s.eraseAll())
}

// note counts an error, and logs it unless it is one of the latest again: a disk that fails does so at each look, in several ways.
func (s *Store) note(err error) {
	if err == nil {
		return
	}
	s.counts.writeErrors.Add(1)
	if text := err.Error(); s.noted.isNew(text) {
		s.cfg.Log(text)
	}
}

// amounts are what a full disk has free, in the errors of package sys: it is another number each time.
var amounts = regexp.MustCompile(`\d+ of \d+ (bytes|files)`)

// noted are the latest texts that were logged, without amounts.
type noted struct {
	mu    sync.Mutex
	texts [8]string
	next  int
}

func (n *noted) isNew(text string) bool {
	text = amounts.ReplaceAllString(text, "")
	n.mu.Lock()
	defer n.mu.Unlock()
	if slices.Contains(n.texts[:], text) {
		return false
	}
	n.texts[n.next] = text
	n.next = (n.next + 1) % len(n.texts)
	return true
}

// aheadSegments is how many segments a store has at least that reclaims one before it is needed.
const aheadSegments = 32

// reclaimAhead reclaims a segment while the open one is being filled, so that no put waits for it, until the store is
// closed. A small store has too few segments to leave another one free.
func (s *Store) reclaimAhead() {
	for {
		select {
		case <-s.done:
			return
		case <-s.ahead:
			s.mu.Lock()
			for !s.closed && !s.reclaiming && len(s.segments) >= aheadSegments && s.numFree() <= forPut && s.reclaim() {
			}
			s.mu.Unlock()
		}
	}
}
