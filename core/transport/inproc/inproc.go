// Package inproc is a transport between goroutines of one process, with all
// memory on the Go heap: the race detector sees every word and byte of it,
// which it cannot in a memfd. It is meant for tests.
package inproc

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// MaxSlabs is how many slabs one rank can add, as in package shm.
const MaxSlabs = 1024

// New makes a group of n ranks, each with a zeroed control region of
// controlBytes bytes (rounded up to 8), and returns their views by rank. All
// are in the members word, with epoch 1. It panics when n or controlBytes is
// out of range.
func New(n int, controlBytes int64) []transport.Domain {
	if n < 1 || n > transport.MaxRanks || controlBytes < 1 {
		panic(fmt.Sprintf("inproc: %d ranks with %d bytes", n, controlBytes))
	}
	g := &group{ranks: make([]*rankState, n)}
	g.members.Store(1<<48 | (1<<n - 1))
	views := make([]transport.Domain, n)
	for r := range g.ranks {
		g.ranks[r] = &rankState{control: newSegment(controlBytes)}
		g.ranks[r].rung = make(chan struct{})
		views[r] = &Domain{group: g, rank: r}
	}
	return views
}

// Kill makes every rank of d's group, which New made, see this rank's
// process as ended, and wakes everybody. The rank's own calls go on: a test
// plays the dead rank by not calling any more.
func Kill(d transport.Domain, rank int) { d.(*Domain).Kill(rank) }

// group is what all ranks share.
type group struct {
	members atomic.Uint64
	ranks   []*rankState
}

// rankState is one rank's memory and bell.
type rankState struct {
	control *segment
	slabs   [MaxSlabs]atomic.Pointer[segment]
	lost    atomic.Pointer[error]

	sleepers atomic.Int64
	mu       sync.Mutex // guards what follows
	bell     uint32
	rung     chan struct{} // closed and replaced when the bell rings
	numSlabs int
}

// ring ends the sleep of everybody who drew a ticket before.
func (s *rankState) ring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bell++
	close(s.rung)
	s.rung = make(chan struct{})
}

// Domain is one rank's view of a group that New made. It implements
// transport.Domain. After Close its words and segments stay usable, like all
// Go memory.
type Domain struct {
	group  *group
	rank   int
	closed atomic.Bool
}

var _ transport.Domain = (*Domain)(nil)

// Kill is the function Kill.
func (d *Domain) Kill(rank int) {
	err := fmt.Errorf("rank %d: %w", rank, transport.ErrDead)
	d.group.ranks[rank].lost.Store(&err)
	for _, s := range d.group.ranks {
		s.ring()
	}
}

// Rank is this rank's number.
func (d *Domain) Rank() int { return d.rank }

// NumRanks is the size of the group.
func (d *Domain) NumRanks() int { return len(d.group.ranks) }

// Members is the group's membership word.
func (d *Domain) Members() *atomic.Uint64 { return &d.group.members }

// Control is a rank's control region.
func (d *Domain) Control(rank int) transport.Segment { return d.group.ranks[rank].control }

// AddSlab makes a zeroed slab of this rank.
func (d *Domain) AddSlab(sizeBytes int64) (int, transport.Segment, error) {
	s := d.group.ranks[d.rank]
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case d.closed.Load():
		return 0, nil, fmt.Errorf("inproc: add slab: %w", transport.ErrClosed)
	case sizeBytes <= 0:
		return 0, nil, fmt.Errorf("inproc: add slab: %d bytes are not possible", sizeBytes)
	case s.numSlabs == MaxSlabs:
		return 0, nil, fmt.Errorf("inproc: add slab: all %d slabs of rank %d are in use", MaxSlabs, d.rank)
	}
	id, slab := s.numSlabs, newSegment(sizeBytes)
	s.numSlabs++
	s.slabs[id].Store(slab)
	return id, slab, nil
}

// Slab returns a rank's slab by id.
func (d *Domain) Slab(rank, id int) (transport.Segment, error) {
	if rank < 0 || rank >= d.NumRanks() || id < 0 || id >= MaxSlabs {
		return nil, fmt.Errorf("inproc: slab %d of rank %d: %d ranks with %d slabs each are possible", id, rank, d.NumRanks(), MaxSlabs)
	}
	if d.closed.Load() {
		return nil, fmt.Errorf("inproc: slab: %w", transport.ErrClosed)
	}
	if slab := d.group.ranks[rank].slabs[id].Load(); slab != nil {
		return slab, nil
	}
	return nil, fmt.Errorf("inproc: rank %d has no slab %d", rank, id)
}

// Lost reports a rank that Kill was called for.
func (d *Domain) Lost(rank int) error {
	if err := d.group.ranks[rank].lost.Load(); err != nil {
		return *err
	}
	return nil
}

// Wake ends the sleep of a rank.
func (d *Domain) Wake(rank int) {
	if s := d.group.ranks[rank]; s.sleepers.Load() > 0 && !d.closed.Load() {
		s.ring()
	}
}

// PrepareSleep announces a sleep.
func (d *Domain) PrepareSleep() uint32 {
	s := d.group.ranks[d.rank]
	s.sleepers.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bell
}

// CancelSleep takes the announcement back.
func (d *Domain) CancelSleep() { d.group.ranks[d.rank].sleepers.Add(-1) }

// Sleep blocks until the bell rings after the ticket was drawn, or for t.
func (d *Domain) Sleep(ticket uint32, t time.Duration) {
	defer d.CancelSleep()
	s := d.group.ranks[d.rank]
	s.mu.Lock()
	rung, bell := s.rung, s.bell
	s.mu.Unlock()
	if bell != ticket || t <= 0 || d.closed.Load() {
		return
	}
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-rung:
	case <-timer.C:
	}
}

// Yield lets another goroutine run.
func (d *Domain) Yield() { runtime.Gosched() }

// Close ends this rank's use and wakes its sleepers. The memory lives as
// long as somebody refers to it.
func (d *Domain) Close() error {
	if !d.closed.Swap(true) {
		d.group.ranks[d.rank].ring()
	}
	return nil
}
