// Package inproc is a transport between goroutines of one process, with all memory on the
// Go heap. The race detector sees every word and byte of it, which it cannot in a memfd.
// It is meant for tests.
package inproc

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
)

// MaxSlabs is how many slabs one rank can add, as in package shm.
const MaxSlabs = 1024

// New makes a group of n ranks, each with a zeroed control region of
// controlBytes bytes (rounded up to 8), and returns their views by rank. All
// are in the members word, with epoch 1. It panics when n or controlBytes is
// out of range.
func New(n int, controlBytes int64) []domain.Domain {
	return NewPartial(n, rankset.Upto(n), controlBytes)
}

// NewPartial makes a group declared for n ranks of which only those in
// present have come; the views of the others are nil.
func NewPartial(n int, present rankset.Set, controlBytes int64) []domain.Domain {
	if n < 1 || n > rankset.MaxRanks || controlBytes < 1 || present.Empty() || !present.Minus(rankset.Upto(n)).Empty() {
		panic(fmt.Sprintf("inproc: %d ranks, %v present, with %d bytes", n, present, controlBytes))
	}
	g := &group{ranks: make([]atomic.Pointer[rankState], n), controlBytes: controlBytes}
	g.members.Store(uint64(membership.New(1, present)))
	views := make([]domain.Domain, n)
	for r := range views {
		if present.Has(r) {
			views[r] = g.enter(r)
		}
	}
	return views
}

// Kill makes every rank of d's group, which New made, see the process behind a rank's
// number as ended, and wakes every rank. The rank's own calls go on: a test plays the
// dead rank by not calling any more.
func Kill(d domain.Domain, rank int) {
	MarkDying(d, rank)
	err := fmt.Errorf("rank %d: %w", rank, domain.ErrExited)
	g := d.(*Domain).group
	g.ranks[rank].Load().lost.Store(&err)
	g.ringAll()
}

// MarkDying makes every rank see that the process has begun to end.
func MarkDying(d domain.Domain, rank int) {
	d.(*Domain).group.ranks[rank].Load().dying.Store(true)
	d.(*Domain).group.ringAll()
}

// Join puts a new process behind a rank's number and returns its view. It
// stands for a rendezvous: call it when all others are between two epochs.
func Join(d domain.Domain, rank int) domain.Domain { return d.(*Domain).group.enter(rank) }

// Dismiss makes a rank absent, as a rendezvous without it does.
func Dismiss(d domain.Domain, rank int) { d.(*Domain).group.ranks[rank].Store(nil) }

// Return puts the process of view back behind its number.
func Return(view domain.Domain) {
	d := view.(*Domain)
	d.group.ranks[d.rank].Store(d.own)
}

// group is what all ranks share.
type group struct {
	members      atomic.Uint64
	controlBytes int64
	ranks        []atomic.Pointer[rankState] // nil: absent

	hosts  *Hosts // nil: one
	queues []atomic.Pointer[queue]
}

func (g *group) enter(rank int) *Domain {
	s := &rankState{control: newSegment(g.controlBytes), rung: make(chan struct{})}
	g.ranks[rank].Store(s)
	g.connect(rank)
	d := &Domain{group: g, rank: rank, own: s, pages: make([]atomic.Pointer[remotePage], len(g.ranks))}
	return d
}

func (g *group) ringAll() {
	for r := range g.ranks {
		if s := g.ranks[r].Load(); s != nil {
			s.ring()
		}
	}
}

// rankState is the memory and bell of one incarnation of a rank.
type rankState struct {
	control *segment
	slabs   [MaxSlabs]atomic.Pointer[segment]
	lost    atomic.Pointer[error]
	dying   atomic.Bool

	sleepers atomic.Int64
	mu       sync.Mutex // guards what follows
	bell     uint32
	rung     chan struct{} // closed and replaced when the bell rings
	numSlabs int
}

var _ domain.Process = (*rankState)(nil)

// Lost reports a process that Kill was called for.
func (s *rankState) Lost() error {
	if err := s.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// Dying reports a process that MarkDying or Kill was called for.
func (s *rankState) Dying() bool { return s.dying.Load() }

// PID is that of the one process there is.
func (s *rankState) PID() int { return os.Getpid() }

// ring ends the sleep of every goroutine that drew a ticket before.
func (s *rankState) ring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bell++
	close(s.rung)
	s.rung = make(chan struct{})
}

// Domain is one rank's view of a group that New made. It implements
// domain.Domain. After Close its words and segments stay usable, like all
// Go memory.
type Domain struct {
	group  *group
	rank   int
	own    *rankState
	pages  []atomic.Pointer[remotePage] // of remote ranks, once they were asked for
	closed atomic.Bool
}

var _ domain.Domain = (*Domain)(nil)

// Rank is this rank's number.
func (d *Domain) Rank() int { return d.rank }

// NumRanks is the size of the group, absent ranks included.
func (d *Domain) NumRanks() int { return len(d.group.ranks) }

// Members is the group's membership word.
func (d *Domain) Members() domain.MemberWord { return &d.group.members }

// Present are the ranks that are there.
func (d *Domain) Present() (ranks rankset.Set) {
	for r := range d.group.ranks {
		if d.at(r) != nil {
			ranks = ranks.With(r)
		}
	}
	return ranks
}

// at is the incarnation that this rank sees behind a number; nil: absent.
func (d *Domain) at(rank int) *rankState {
	if rank == d.rank {
		return d.own
	}
	return d.group.ranks[rank].Load()
}

// Control is a rank's control region.
func (d *Domain) Control(rank int) domain.Segment {
	s := d.at(rank)
	switch {
	case s == nil:
		return nil
	case d.group.sameHost(d.rank, rank):
		return s.control
	}
	return d.page(rank, s)
}

// page is the control region of the remote rank that s describes.
func (d *Domain) page(rank int, s *rankState) *remotePage {
	p := d.pages[rank].Load()
	if p == nil || p.Segment != domain.Segment(s.control) {
		p = &remotePage{Segment: s.control, words: newSegment(d.group.hosts.WordsBytes)}
		d.pages[rank].Store(p)
	}
	return p
}

// Process is the incarnation behind a rank's number.
func (d *Domain) Process(rank int) domain.Process {
	if s := d.at(rank); s != nil {
		return s
	}
	return nil
}

// AddSlab makes a zeroed slab of this rank.
func (d *Domain) AddSlab(sizeBytes int64) (int, domain.Segment, error) {
	s := d.own
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
func (d *Domain) Slab(rank, id int) (domain.Segment, error) {
	if rank < 0 || rank >= d.NumRanks() || id < 0 || id >= MaxSlabs {
		return nil, fmt.Errorf("inproc: %w: slab %d of rank %d: %d ranks with %d slabs each are possible", domain.ErrCorrupt, id, rank, d.NumRanks(), MaxSlabs)
	}
	if d.closed.Load() {
		return nil, fmt.Errorf("inproc: slab: %w", transport.ErrClosed)
	}
	if s := d.at(rank); s != nil && d.group.sameHost(d.rank, rank) {
		if slab := s.slabs[id].Load(); slab != nil {
			return slab, nil
		}
	}
	return nil, fmt.Errorf("inproc: %w: rank %d has no slab %d", domain.ErrCorrupt, rank, id)
}

// Wake ends the sleep of a rank, unless it is on another host.
func (d *Domain) Wake(rank int) {
	if d.group.sameHost(d.rank, rank) {
		d.wake(rank)
	}
}

func (d *Domain) wake(rank int) {
	if s := d.at(rank); s != nil && s.sleepers.Load() > 0 && !d.closed.Load() {
		s.ring()
	}
}

// PrepareSleep announces a sleep.
func (d *Domain) PrepareSleep() uint32 {
	s := d.own
	s.sleepers.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bell
}

// CancelSleep takes the announcement back.
func (d *Domain) CancelSleep() { d.own.sleepers.Add(-1) }

// Sleep blocks until the bell rings after the ticket was drawn, or for t.
func (d *Domain) Sleep(ticket uint32, t time.Duration) {
	defer d.CancelSleep()
	s := d.own
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

// Close ends this rank's use and wakes its sleepers. The memory lives as long as
// something refers to it. Messages of this rank that were not taken are lost.
func (d *Domain) Close() error {
	if !d.closed.Swap(true) {
		d.group.drop(d)
		d.own.ring()
	}
	return nil
}
