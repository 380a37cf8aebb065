package server

import (
	"fmt"
	"sync"
	"time"

	"github.com/moewire/moewire/core/store/message"
)

// quiet is how long nothing of a kind must have happened until a line says that it is over, and how long the second line about
// clients that cannot be served is after the first one.
const quiet = 10 * time.Second

// rare says that something has happened that others can make happen at will: at most once in a while, and how often it was
// not said. The zero value is ready; safe for concurrent use.
type rare struct {
	mu   sync.Mutex
	next time.Time
	left int
}

// line is what is to be logged of an event; "": nothing.
func (r *rare) line(now time.Time, event string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Before(r.next) {
		r.left++
		return ""
	}
	left := r.left
	r.next, r.left = now.Add(quiet), 0
	if left > 0 {
		return fmt.Sprintf("%s (and %d more that were not logged)", event, left)
	}
	return event
}

// logRare logs an event at most once in a while.
func (s *Server) logRare(r *rare, event string) {
	if line := r.line(time.Now(), event); line != "" {
		s.cfg.Log(line)
	}
}

// spell is a time in which something goes wrong again and again: one line says that it begins, another one that it is over.
// For one goroutine.
type spell struct {
	begun, last    time.Time // begun is zero outside of a spell
	counted, first uint64
}

// look compares a count with what it was before. It reports whether a spell begins, or how many times it went wrong in one
// that is over, and for how long.
func (s *spell) look(now time.Time, count uint64) (begins bool, num uint64, lasted time.Duration) {
	if count != s.counted {
		if begins = s.begun.IsZero(); begins {
			s.begun, s.first = now, s.counted
		}
		s.counted, s.last = count, now
		return begins, 0, 0
	}
	if s.begun.IsZero() || now.Sub(s.last) < quiet {
		return false, 0, 0
	}
	num, lasted = s.counted-s.first, s.last.Sub(s.begun)
	s.begun = time.Time{}
	return false, num, lasted
}

// spells are what an operator must know of when it begins and when it is over.
var spells = []struct {
	begins, over string
	count        func(*Counters) uint64
}{
	{"puts are refused: no room can be made", "puts find room again", refusedFor(message.Full)},
	{"puts are refused: a salt has as much as its quota says, or a connection as many unfinished blocks as may be",
		"no put was refused by quota any more", refusedFor(message.Quota)},
	{"puts are refused: the storage fails", "the storage takes puts again", refusedFor(message.Failed)},
	{"requests are refused: as many run, or as much is being written, as may be", "no request was refused at a bound any more",
		func(c *Counters) uint64 { return c.Replies(message.WouldBlock) }},
	{"requests are refused: their keys have no right to them", "no request was refused for want of a right any more",
		func(c *Counters) uint64 { return c.Denied.Load() }},
	{"blocks come whose bytes do not fit their tag, and are not stored", "no such block came any more",
		func(c *Counters) uint64 { return c.BadPuts.Load() }},
	{"readers find damaged blocks, which are dropped", "no damaged block was found any more",
		func(c *Counters) uint64 { return c.BadReads.Load() }},
	{"readers find blocks damaged that are whole here: their connections or their memory change bytes",
		"no such block was found any more", func(c *Counters) uint64 { return c.Changed.Load() }},
	{"blocks cannot be read from the storage: misses", "the storage was read without a failure",
		func(c *Counters) uint64 { return c.ReadFailed.Load() }},
}

func refusedFor(status message.Status) func(*Counters) uint64 {
	return func(c *Counters) uint64 { return c.refused[status].Load() }
}

// watch logs which spells begin or are over; states has one for each of spells.
func (c *Counters) watch(now time.Time, states []spell, log func(line string)) {
	for i, w := range spells {
		begins, num, lasted := states[i].look(now, w.count(c))
		switch {
		case begins:
			log(w.begins)
		case num > 0:
			log(fmt.Sprintf("%s: it was %d in %v", w.over, num, lasted.Round(time.Second)))
		}
	}
}
