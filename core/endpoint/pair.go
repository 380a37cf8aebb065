package endpoint

import (
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// pair is what is known of one peer. Guarded by Store.mu.
//
// Both ends of a connection go the same way: make an endpoint; tell the peer its address;
// connect; say so; go live when the peer has said so, too. An end connects once the peer
// has said that the address we have of it was made, or is still free, with ours in sight.
// Anything newer than the end that is connected to (another generation, or another life
// of the peer) retires the connection.
type pair struct {
	peer    Peer
	index   int32  // entry that is not retired; none
	gen     uint64 // grows with each of our endpoints, and with its retirement; of Store.nextGen
	theirs  theirs
	err     error // how the last attempt ended
	retryAt time.Time
	until   time.Time // when this attempt is given up
	resend  time.Time
	evicted Ref // what makes room for it

	older, newer *pair // in Store.idle; nil: not there
}

// theirs is the newest that a peer has said.
type theirs struct {
	epoch, gen uint64
	address    []byte
	used       bool // an endpoint of ours was connected to it: it has no other one
	seen       bool // it has our present generation in sight
	ready      bool // and is connected to it
}

// attempt begins another endpoint in entry i.
func (s *Store) attempt(p *pair, i int32) {
	s.idle.remove(p)
	p.index = i
	p.gen = s.nextGen()
	p.theirs.seen, p.theirs.ready = false, false
	p.until = time.Time{}
	s.leaveSpare(p)
	p.resend = s.cfg.Now()
}

// sendState queues a handshake of our state; ask makes the peer answer with its own.
func (s *Store) sendState(p *pair, ask bool) {
	n := Handshake{Epoch: s.cfg.Epoch, Gen: p.gen, SeenEpoch: p.theirs.epoch, SeenGen: p.theirs.gen, Asks: ask}
	if p.index != none {
		e := s.entries[p.index]
		if st := e.state(); st >= offered && st <= live {
			n.Address = e.local
			n.Ready = st >= joined
		} else if st == creating {
			return // there is nothing to say yet, and it will be said
		}
	}
	p.resend = s.cfg.Now().Add(s.cfg.ResendAfter)
	s.outbox = append(s.outbox, outgoing{p.peer, n})
}

// Deliver takes a peer's handshake. It never blocks. The address is copied.
func (s *Store) Deliver(from Peer, n Handshake) {
	defer s.flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	p, err := s.pairOf(from)
	if err != nil {
		s.stats.Refused++
		return
	}
	if n.Epoch < p.theirs.epoch || (n.Epoch == p.theirs.epoch && n.Gen < p.theirs.gen) {
		s.stats.StaleHandshakes++
		return
	}
	s.adopt(p, &n)
	s.advance(p)
	if n.Asks {
		s.sendState(p, false)
	}
}

// adopt remembers what a handshake says that was not known before.
func (s *Store) adopt(p *pair, n *Handshake) {
	if n.Epoch != p.theirs.epoch || n.Gen != p.theirs.gen {
		p.theirs = theirs{epoch: n.Epoch, gen: n.Gen, address: append([]byte(nil), n.Address...)}
		if p.index != none {
			if st := s.entries[p.index].state(); st >= joining {
				s.retire(p.index, fmt.Errorf("%w: it has made another connection, or none", ErrUnreachable))
			}
		}
	}
	if n.SeenEpoch == s.cfg.Epoch && n.SeenGen == p.gen {
		p.theirs.seen = true
		p.theirs.ready = p.theirs.ready || n.Ready
	}
}

// advance takes the next step towards a connection, if it can be taken.
func (s *Store) advance(p *pair) {
	if p.index == none {
		if len(p.theirs.address) > 0 && !p.theirs.used && s.refusal() == nil && s.begin(p) != nil {
			s.stats.Refused++ // it will ask again
		}
		return
	}
	e := s.entries[p.index]
	switch {
	case e.state() == offered && len(p.theirs.address) > 0 && p.theirs.seen:
		e.enter(joining)
		p.theirs.used = true
		s.taskIn(&s.tasks.connects, p.index, (*Store).join)
		s.sendState(p, true) // so that it can join, too
	case e.state() == joined && p.theirs.ready:
		s.goLive(p)
	}
}

func (s *Store) goLive(p *pair) {
	e := s.entries[p.index]
	e.enter(live)
	e.visited.Store(false)
	s.live.insert(p.index)
	s.stats.Connecting--
	s.stats.Live++
	p.err, p.until = nil, time.Time{}
	s.news = append(s.news, change{p.peer, Ref{p.index, e.gen()}, nil})
	s.wakeWaiters()
}

// give records that an attempt has failed: others are told until the pause is
// over.
func (p *pair) give(err error, now time.Time, pause time.Duration) {
	if !errors.Is(err, transport.ErrNoResource) && !errors.Is(err, ErrUnreachable) {
		err = fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	p.err, p.retryAt = err, now.Add(pause)
}
