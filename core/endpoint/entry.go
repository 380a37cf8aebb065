package endpoint

import (
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// state is where an entry is. Each entry is in exactly one.
type state uint8

const (
	vacant      state = iota
	creating          // a task makes its endpoint
	offered           // waits for the peer's address
	joining           // a task connects it
	joined            // connected; the peer is not, as far as is known
	live              // may be used
	retiring          // in the error state; completions may be outstanding
	destroying        // a task closes it
	quarantined       // completions outstanding for too long
)

// entry is one place for a connection. What is not atomic is guarded by
// Store.mu.
type entry struct {
	word    atomic.Uint64 // generation << 8 | state
	visited atomic.Bool
	posted  atomic.Int64 // requests accepted, or being posted
	ended   atomic.Int64 // requests of which the completions have been handled

	peer    Peer
	pair    *pair // nil once retired
	ep      transport.Endpoint
	id      transport.EndpointID // of ep, which may not be asked under the lock
	local   []byte               // its address; handshakes share it, so it never changes
	busy    bool                 // a task is under way, or about to be
	flushed bool                 // its endpoint is in the error state
	overdue bool                 // was in quarantine, and counts there until it is gone
	since   time.Time            // when it was retired
}

// newEntry is vacant. Generations begin at 1, so that the zero Ref names nothing.
func newEntry() *entry {
	e := &entry{}
	e.word.Store(1 << 8)
	return e
}

func (e *entry) state() state { return state(e.word.Load() & 0xff) }
func (e *entry) gen() uint32  { return uint32(e.word.Load() >> 8) }

func (e *entry) enter(st state) { e.word.Store(e.word.Load()&^0xff | uint64(st)) }

// leave makes the entry vacant and its references stale. The counts go on: a
// post that came too late may be about to take its own back.
func (e *entry) leave() {
	gen := max(e.gen()+1, 1) // 0 names nothing, also when it wraps
	e.word.Store(uint64(gen)<<8 | uint64(vacant))
	e.ep, e.id, e.local, e.pair = nil, 0, nil, nil
	e.busy, e.flushed, e.overdue = false, false, false
	e.visited.Store(false)
}

// drained: every request has had its completion, and that was handled.
func (e *entry) drained() bool { return e.posted.Load() == e.ended.Load() }

// entryOf returns what a reference names if it is in one of these states,
// else nil.
func (s *Store) entryOf(r Ref, from, to state) *entry {
	if r.index < 0 || int(r.index) >= len(s.entries) {
		return nil
	}
	e := s.entries[r.index]
	word := e.word.Load()
	if st := state(word & 0xff); st < from || st > to {
		return nil
	}
	if uint32(word>>8) != r.gen {
		return nil
	}
	return e
}

// PeerOf returns the peer of the connection that a reference names, also before it is
// live.
func (s *Store) PeerOf(r Ref) (p Peer, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if e := s.entryOf(r, creating, live); e != nil {
		return e.peer, true
	}
	return p, false
}

// PostSend posts on a live connection. transport.ErrState when it is not, or
// no longer, and then nothing has happened.
func (s *Store) PostSend(r Ref, requests []transport.SendRequest) (int, error) {
	e := s.hold(r, live, live, len(requests))
	if e == nil {
		return 0, transport.ErrState
	}
	n, err := e.ep.PostSend(requests)
	s.unhold(e, len(requests)-n)
	return n, err
}

// PostRecv posts receives on a connection, also before it is live.
func (s *Store) PostRecv(r Ref, requests []transport.RecvRequest) (int, error) {
	e := s.hold(r, creating, live, len(requests))
	if e == nil {
		return 0, transport.ErrState
	}
	n, err := e.ep.PostRecv(requests)
	s.unhold(e, len(requests)-n)
	return n, err
}

// hold counts requests before they are posted, so that the endpoint is not destroyed
// meanwhile. A caller that retires it changes the word first and looks at the count
// afterwards; hold does it the other way round.
func (s *Store) hold(r Ref, from, to state, n int) *entry {
	e := s.entryOf(r, from, to)
	if e == nil || !s.keep(e, r, from, to, n) {
		return nil
	}
	return e
}

// keep is hold's part after the first look, since when the entry may have been
// retired. On false nothing is counted.
func (s *Store) keep(e *entry, r Ref, from, to state, n int) bool {
	e.posted.Add(int64(n))
	if s.entryOf(r, from, to) != e {
		s.unhold(e, n)
		return false
	}
	return true
}

func (s *Store) unhold(e *entry, n int) {
	if n != 0 {
		e.posted.Add(-int64(n))
	}
	if e.state() >= retiring {
		s.maybeDrained.Add(1) // it may be drained now
	}
}
