// Package endpoint keeps a bounded number of connections to peers over one
// transport.
//
// Its cap counts everything that holds a queue pair: connections that are being made,
// live ones, retired ones with requests that still await their completions, and those in
// quarantine. A place is taken before a queue pair is made, and released after it is
// gone. Retired endpoints are reclaimed by completions and by the store's own clock,
// never by another pair's insert. No call into the transport is made under the store's
// lock.
//
// One peer has at most one connection that is not retired, however many ask
// for it. The two ends of a connection find each other by handshakes (Handshake), which
// the owner of the store carries.
package endpoint

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// Sentinels. Of transport's: ErrWouldBlock (at the cap, nothing idle),
// ErrNoResource (the system has no queue pair left), ErrState (a connection
// that is retired).
var (
	// ErrConnecting means that the connection is being made: ask again.
	ErrConnecting = errors.New("connection is being made")
	// ErrUnreachable means that the last attempt failed, not long ago.
	ErrUnreachable = errors.New("peer is not reachable")
	// ErrDisabled means that too many connections are in quarantine.
	ErrDisabled = errors.New("too many connections cannot be taken down")
	// ErrClosed means that the store was closed.
	ErrClosed = errors.New("store is closed")
)

// Peer names the other end of a connection, in the owner's terms.
type Peer uint64

// Ref names a connection: an entry and its generation. It is plain data. When
// the entry serves another connection, it names nothing; the zero Ref never does.
type Ref struct {
	index int32
	gen   uint32
}

// Stats counts. The numbers of entries are of this moment.
type Stats struct {
	Forgotten uint64 // peers, at MaxPeers

	Live, Connecting, Retiring, Quarantined      int
	Made, Destroyed, Evicted, Failed             uint64
	Capped, NoResource, StaleHandshakes, Refused uint64
	Events                                       uint64 // of the device, that name no endpoint
	Panics                                       uint64 // of Send and Changed, on the ticker's goroutine
}

// Store keeps connections. Safe for concurrent use, but for Poll: one
// goroutine at a time.
type Store struct {
	cfg Config

	mu         sync.RWMutex
	entries    []*entry
	vacant     []int32
	pairs      map[Peer]*pair
	idle       idle
	lastGen    uint64
	byID       map[transport.EndpointID]int32
	live       order
	tasks      tasks
	room       room
	outbox     []outgoing
	news       []change
	delivering bool          // a goroutine sends what is in the two
	changed    chan struct{} // closed at the next change; nil: no caller waits
	stats      Stats
	closed     bool

	events       [16]transport.Event // of Poll
	retired      []int32
	maybeDrained atomic.Int64 // above 0: a retired entry may be drained by now
	ticking      sync.Mutex
	closing      sync.Mutex // one Close at a time polls
	ticker       ticker
}

type outgoing struct {
	to        Peer
	handshake Handshake
}

type change struct {
	peer Peer
	ref  Ref
	why  error
}

// Open makes a store. Call Start, or Tick from time to time.
func Open(cfg Config) (*Store, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	s := &Store{
		cfg: cfg, entries: make([]*entry, cfg.Cap), vacant: make([]int32, cfg.Cap),
		pairs: map[Peer]*pair{}, byID: map[transport.EndpointID]int32{}, live: newOrder(cfg.Policy, cfg.Cap),
	}
	s.idle.init()
	for i := range s.entries {
		s.entries[i] = newEntry()
		s.vacant[i] = int32(cfg.Cap - 1 - i)
	}
	return s, nil
}

// Get returns the live connection to a peer. If there is none it begins to
// make one and returns ErrConnecting; it never waits. transport.ErrWouldBlock:
// at the cap; ErrUnreachable, transport.ErrNoResource: how the last attempt
// ended, until another may begin.
func (s *Store) Get(p Peer) (Ref, error) {
	s.mu.RLock()
	if pair := s.pairs[p]; pair != nil && pair.index != none {
		if e := s.entries[pair.index]; e.state() == live {
			r := Ref{pair.index, e.gen()}
			s.mu.RUnlock()
			e.visited.Store(true)
			return r, nil
		}
	}
	s.mu.RUnlock()
	defer s.flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.want(p)
}

// Wait is Get that waits until the deadline.
func (s *Store) Wait(p Peer, deadline time.Time) (Ref, error) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		news := s.nextChange()
		r, err := s.Get(p)
		if !errors.Is(err, ErrConnecting) && !errors.Is(err, transport.ErrWouldBlock) {
			return r, err
		}
		select {
		case <-news:
		case <-timer.C:
			return r, err
		}
	}
}

// nextChange returns what is closed when an entry next changes its state.
func (s *Store) nextChange() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

func (s *Store) wakeWaiters() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// want begins a connection, unless there is one.
func (s *Store) want(p Peer) (Ref, error) {
	if err := s.refusal(); err != nil {
		return Ref{}, err
	}
	pair, err := s.pairOf(p)
	if err != nil {
		return Ref{}, err
	}
	if pair.index != none {
		if e := s.entries[pair.index]; e.state() == live {
			e.visited.Store(true)
			return Ref{pair.index, e.gen()}, nil // meanwhile
		}
		return Ref{}, ErrConnecting
	}
	if pair.err != nil && s.cfg.Now().Before(pair.retryAt) {
		return Ref{}, pair.err
	}
	if err := s.begin(pair); err != nil {
		return Ref{}, err
	}
	return Ref{}, ErrConnecting
}

func (s *Store) refusal() error {
	switch {
	case s.closed:
		return ErrClosed
	case s.stats.Quarantined >= s.cfg.QuarantineCap:
		return ErrDisabled
	}
	return nil
}

// begin takes a place for a connection and has it made.
func (s *Store) begin(p *pair) error {
	i, ok := s.reserve()
	if !ok {
		s.stats.Capped++
		s.makeRoom(p)
		return fmt.Errorf("%w: %d connections, cap %d", transport.ErrWouldBlock, s.cfg.Cap, s.cfg.Cap)
	}
	e := s.entries[i]
	e.peer, e.pair = p.peer, p
	e.enter(creating)
	s.stats.Connecting++
	s.attempt(p, i)
	s.task(i, (*Store).create)
	return nil
}

func (s *Store) reserve() (int32, bool) {
	if len(s.vacant) == 0 {
		return none, false
	}
	i := s.vacant[len(s.vacant)-1]
	s.vacant = s.vacant[:len(s.vacant)-1]
	return i, true
}

func (s *Store) wasVisited(i int32) bool { return s.entries[i].visited.Swap(false) }

// flush sends what was decided under the lock, in that order: one goroutine at
// a time, which also sends what others decide meanwhile.
func (s *Store) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.delivering {
		return
	}
	s.delivering = true
	defer func() { s.delivering = false }() // also when the owner's code panics
	for len(s.outbox)+len(s.news) > 0 {
		s.deliver()
	}
}

// deliver calls the owner once, without the lock that its caller has. What comes
// next stays where the next flush finds it, should the owner panic.
func (s *Store) deliver() {
	if len(s.outbox) > 0 {
		n := s.outbox[0]
		s.outbox = s.outbox[1:]
		s.mu.Unlock()
		defer s.mu.Lock()
		s.cfg.Send(n.to, n.handshake)
		return
	}
	n := s.news[0]
	s.news = s.news[1:]
	s.mu.Unlock()
	defer s.mu.Lock()
	if s.cfg.Changed != nil {
		s.cfg.Changed(n.peer, n.ref, n.why)
	}
}

// Stats returns the counts of this moment.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.stats
}
