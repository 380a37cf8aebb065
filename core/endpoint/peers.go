package endpoint

import (
	"fmt"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// Peers are remembered up to a bound. A peer without a connection can be forgotten,
// because generations belong to the store and not to the peer. A peer that still
// remembers an endpoint that it was told of sees everything that comes later as newer.
// And an old handshake that comes late leads to no connection, since it cannot have seen
// an endpoint that was made after it.

// idle lists the peers without a connection, in the order in which they were
// last heard of. Its ends are the pair `ends`.
type idle struct{ ends pair }

func (l *idle) init() { l.ends.older, l.ends.newer = &l.ends, &l.ends }

// add puts a pair at the newer end, wherever it was.
func (l *idle) add(p *pair) {
	l.remove(p)
	p.older, p.newer = l.ends.older, &l.ends
	p.older.newer, p.newer.older = p, p
}

func (l *idle) remove(p *pair) {
	if p.older != nil {
		p.older.newer, p.newer.older = p.newer, p.older
		p.older, p.newer = nil, nil
	}
}

// oldest is the peer that was idle for longest, has no pause left, and waits for no room;
// nil if there is none.
func (l *idle) oldest(now time.Time, waits func(*pair) bool) *pair {
	for p := l.ends.newer; p != &l.ends; p = p.newer {
		if !now.Before(p.retryAt) && !waits(p) {
			return p
		}
	}
	return nil
}

// pairOf finds a peer, or remembers it from now on.
func (s *Store) pairOf(id Peer) (*pair, error) {
	if p := s.pairs[id]; p != nil {
		if p.index == none {
			s.idle.add(p) // it was heard of
		}
		return p, nil
	}
	if len(s.pairs) >= s.cfg.MaxPeers && !s.forget() {
		return nil, fmt.Errorf("%w: %d peers are known, max_peers %d", transport.ErrWouldBlock, len(s.pairs), s.cfg.MaxPeers)
	}
	p := &pair{peer: id, index: none}
	p.gen = s.nextGen()
	s.pairs[id] = p
	s.idle.add(p)
	return p, nil
}

// forget makes room for another peer, if some peer is idle.
func (s *Store) forget() bool {
	p := s.idle.oldest(s.cfg.Now(), s.awaitsCapacity)
	if p == nil {
		return false
	}
	s.idle.remove(p)
	delete(s.pairs, p.peer)
	s.stats.Forgotten++
	return true
}

// awaitsCapacity reports whether a connection is on the way out for a pair. A pair that
// was forgotten would evict another one when it asks again. There are few at a time.
func (s *Store) awaitsCapacity(p *pair) bool { return s.isLeaving(p.evicted) }

func (s *Store) nextGen() uint64 {
	s.lastGen++
	return s.lastGen
}

// Has tells whether there is a connection to a peer, or one is being made.
func (s *Store) Has(p Peer) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	pair := s.pairs[p]
	return pair != nil && pair.index != none
}
