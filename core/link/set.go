package link

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
)

// Set is the links of a rank. It implements domain.Remote. Its methods are for one
// goroutine at a time, but for Memory, LinkOf, Failed, Untaken and Rings.
type Set struct {
	most    int64 // the longest message that half a ring has room for
	longest int64 // that all present links can carry
	age     time.Duration
	memory  Memory
	lost    func(rank int) error
	links   [rankset.MaxRanks]atomic.Pointer[Link]
	ranks   rankset.Atomic
}

var _ domain.RemoteRings = (*Set)(nil)

// NewSet makes an empty one. lost says why a rank is known to be lost, nil if
// it is not; age is how old the owner's copies of words of remote ranks may be.
func NewSet(cfg Config, memory Memory, lost func(rank int) error, age time.Duration) *Set {
	return &Set{most: cfg.RingBytes / 2, longest: cfg.RingBytes / 2, memory: memory, lost: lost, age: age}
}

// Put makes the links (nil: none) those of the ranks, by rank, and returns
// those that it had before. It is for rendezvous.
func (s *Set) Put(links []*Link) (before []*Link) {
	var ranks rankset.Set
	s.longest = s.most // ranks that have gone bound no message any more
	for r := range s.links {
		var l *Link
		if r < len(links) {
			l = links[r]
		}
		if old := s.links[r].Swap(l); old != nil && old != l {
			before = append(before, old)
		}
		if l != nil {
			ranks = ranks.With(r)
			s.longest = min(s.longest, l.send.longest)
		}
	}
	s.ranks.Store(ranks)
	return before
}

// LinkOf returns the link to a rank; nil if there is none. Safe for
// concurrent use.
func (s *Set) LinkOf(rank int) *Link { return s.links[rank].Load() }

// Failed are the ranks with a link that carries nothing any more. Safe for
// concurrent use.
func (s *Set) Failed() (ranks rankset.Set) {
	for r := range s.ranks.Load().All() {
		if l := s.links[r].Load(); l != nil && l.Err() != nil {
			ranks = ranks.With(r)
		}
	}
	return ranks
}

// Ranks are the ranks that have a link.
func (s *Set) Ranks() rankset.Set { return s.ranks.Load() }

// MaxMessageBytes is what all links can carry.
func (s *Set) MaxMessageBytes() int64 { return s.longest }

// WordAge is what NewSet was given.
func (s *Set) WordAge() time.Duration { return s.age }

// Untaken are the ranks that have not granted all its messages back. A
// link that has failed will not. Safe for concurrent use.
func (s *Set) Untaken() (ranks rankset.Set) {
	for r := range s.ranks.Load().All() {
		l := s.links[r].Load()
		if l != nil && l.Err() == nil && l.send.acked.Load() != l.send.sent.Load() {
			ranks = ranks.With(r)
		}
	}
	return ranks
}

// Memory returns memory of this process's own.
func (s *Set) Memory(sizeBytes int64) (domain.Segment, error) { return s.memory(sizeBytes) }

var errNoLink = errors.New("link: there is none to that rank")

// Reserve leases memory for a message. A link that has failed has no room, until the
// group has decided which ranks go; only a rank that is known to be lost is an error.
func (s *Set) Reserve(rank int, n int64) ([]byte, error) {
	off, err := s.ReserveAt(rank, n)
	if err != nil {
		return nil, err
	}
	b := s.links[rank].Load().bytes[1]
	if b == nil {
		return nil, fmt.Errorf("link to rank %d: what is sent is in a device's memory: %w", rank, transport.ErrNotSupported)
	}
	return b[off : off+n : off+n], nil
}

// ReserveAt is Reserve, as a place in the ring.
func (s *Set) ReserveAt(rank int, n int64) (off int64, err error) {
	l := s.links[rank].Load()
	if l == nil {
		return 0, errNoLink
	}
	if l.Err() != nil {
		if err := s.lost(rank); err != nil {
			return 0, err
		}
		return 0, transport.ErrWouldBlock
	}
	if l.Broken() {
		if err := s.lost(rank); err != nil {
			return 0, err
		}
	}
	off, err = l.send.reserve(n)
	switch {
	case err == transport.ErrWouldBlock:
		l.stats.blocked.Add(1)
	case err != nil:
		err = fmt.Errorf("link to rank %d: %w", rank, err)
	}
	return off, err
}

// Post sends a message. A message over a failed link is dropped, as if it had been lost
// on its way; while a link is reconnected it waits.
func (s *Set) Post(rank int, n int64) error {
	l := s.links[rank].Load()
	if l == nil {
		return errNoLink
	}
	if l.Err() != nil {
		l.stats.dropped.Add(1)
		return s.lost(rank)
	}
	if n < 1 || n > l.send.lease.bytes {
		return fmt.Errorf("link to rank %d: post of %d bytes, %d were reserved", rank, n, l.send.lease.bytes)
	}
	if on, err := l.send.post(n); err != nil {
		if l.brokeOn(on, err); l.Err() != nil {
			l.stats.dropped.Add(1)
			return s.lost(rank)
		}
	}
	l.stats.sentMessages.Add(1)
	l.stats.sentBytes.Add(uint64(n))
	return nil
}

// Next returns the oldest message of a rank. What had arrived before a link
// failed is still there.
func (s *Set) Next(rank int) []byte {
	off, n := s.NextAt(rank)
	if n == 0 {
		return nil
	}
	b := s.links[rank].Load().bytes[0]
	if b == nil {
		return nil // a device's
	}
	return b[off : off+n : off+n]
}

// NextAt is Next, as a place in the ring.
func (s *Set) NextAt(rank int) (off, n int64) {
	l := s.links[rank].Load()
	if l == nil {
		return 0, 0
	}
	off, n, bad := l.recv.next()
	if bad {
		l.fail(errMisplaced)
	}
	return off, n
}

var errMisplaced = errors.New("a message is not where it can be")

// Rings are the memory of a rank's link. Safe for concurrent use.
func (s *Set) Rings(rank int) (send, receive domain.Segment) {
	l := s.links[rank].Load()
	if l == nil {
		return nil, nil
	}
	return l.rings[1], l.rings[0]
}

// Release gives a message's memory back.
func (s *Set) Release(rank int) {
	l := s.links[rank].Load()
	if l == nil {
		return
	}
	if l.recv.release() && !l.Broken() {
		l.tried(l.recv.grant(&l.recv.byReader))
	}
}
