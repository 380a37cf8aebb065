// Package cpu is expert-parallel dispatch and combine on the CPU: between ranks that can
// map one another's memory, and by messages between ranks that cannot.
//
// Each rank owns slots; operation i of the group uses slot i mod S of every
// rank. A dispatch reserves positions in the owners' packed tensors with one
// fetch-add per expert. It stores rows straight there and publishes one word per
// owner. A combine publishes one word and pulls. docs/protocol.md has the
// control words, the steps and why they are safe.
package cpu

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	uatomic "go.uber.org/atomic"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/suspicion"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/op"
)

// Buffer is one rank's end of a group. All methods are safe for concurrent
// use: a lock covers the steps of an operation, never a wait.
type Buffer struct {
	cfg   ep.Config
	dom   domain.Domain
	kern  device.Kernels
	word  *membership.Guard // of dom
	self  int
	ranks int
	all   rankset.Set

	pollInterval time.Duration    // longest sleep of a wait
	spins        time.Duration    // how long a wait spins before it yields
	yields       time.Duration    // how long a wait is awake before it sleeps
	now          func() time.Time // replaced by tests that drive the clock

	mu        sync.Mutex
	epoch     membership.Epoch // the epoch that this rank joined; only Install changes it
	base      uint64           // first operation of the epoch
	life      membership.Life
	next      uint64 // number of the next dispatch
	slots     []slot
	retired   []*ownSlab       // poisoned, or spare
	deferred  []deferredWrite  // words still to be written for cancelled or masked sends
	slabBytes int64            // capacity of each slab; 0 until sized
	asked     layout.Slab      // of the latest dispatch's shape
	peers     []suspicion.Peer // by rank; only Install replaces them
	scratch   scratch
	count     counters
	known     rankset.Set // members without a recorded loss
	waits     waiters
	behind    background
	rec       recorder
	remote    *remote // nil: every rank's memory can be mapped
	pump      pump

	published published   // what our control page must hold
	hurt      *violation  // a violation in our own memory, until the step ends
	damaged   bool        // our memory was overwritten, or may have been: it is made good before the next epoch
	violators rankset.Set // ranks with a violation in their memory in this epoch
	losses    ep.Losses   // of this epoch: why ranks go out, until they are
	hasOwn    ownMemory   // nil: the domain keeps no words of its own

	lost    atomic.Uint64 // ranks that this one has fenced, alone or by agreement
	broken  uatomic.Error // why the buffer takes no more calls
	users   sync.WaitGroup
	closing sync.Once
}

// scratch is memory reused by every call, guarded by Buffer.mu.
type scratch struct {
	place   device.PlaceBatch
	reduce  device.ReduceBatch
	targets []device.Target
	jobs    []device.PlaceJob
	sources [][]byte
	ranges  []uint64
	copies  []device.CopyJob
	own     [1][]byte // the outputs of our experts
	perRank []int
}

// New makes this rank's buffer over a connected domain. The buffer owns the
// domain and the kernels from then on and closes them; no other code may use
// kern. On an error both are still the caller's.
func New(dom domain.Domain, kern device.Kernels, cfg ep.Config) (*Buffer, error) {
	return open(dom, kern, cfg, true)
}

// open is New; without pumps, messages wait for callers.
func open(dom domain.Domain, kern device.Kernels, cfg ep.Config, pumps bool) (*Buffer, error) {
	if err := check(&cfg); err != nil {
		return nil, err
	}
	all := rankset.Upto(dom.NumRanks())
	word := membership.NewGuard(func() membership.Word { return dom.Members() }, all)
	set := membership.Members(word.Load())
	b := &Buffer{
		cfg: cfg, dom: dom, kern: kern, self: dom.Rank(), ranks: dom.NumRanks(),
		all: all, word: word, epoch: set.Epoch(), pollInterval: suspicion.PollIntervalFor(dom.NumRanks()),
		now:   time.Now,
		slots: make([]slot, cfg.NumSlots), peers: make([]suspicion.Peer, dom.NumRanks()), pump: newPump(pumps),
		behind: newBackground(), waits: newWaiters(cfg.NumSlots),
	}
	if b.hasOwn, _ = dom.(ownMemory); !cfg.Joining {
		word.Begin(set.Epoch(), dom.Present())
		b.life.Join()
	}
	b.spins, b.yields = spinsFor(cfg.SpinFor, b.ranks)
	if cfg.Joining {
		b.life = membership.Begin(membership.Updating, ep.ErrBetweenEpochs)
		b.epoch-- // it has joined none yet: the group's own is its predecessor's
	}
	b.makeTables()
	b.known = b.members()
	b.rec.open(b)
	b.connectRemote()
	if cfg.NumBytes > 0 && !cfg.Joining {
		if err := b.addSlabs(layout.SlabBytes(cfg.NumBytes, int64(cfg.NumSlots))); err != nil {
			b.releaseRemote()
			return nil, err
		}
	}
	b.startPump()
	return b, nil
}

// makeTables makes what has an entry per rank or slot.
func (b *Buffer) makeTables() {
	b.scratch.targets = make([]device.Target, b.ranks)
	b.scratch.perRank = make([]int, b.ranks)
	b.scratch.sources = make([][]byte, b.ranks)
	b.count.rowsTo = make([]uint64, b.ranks)
	b.count.wait = make([]atomic.Int64, b.ranks)
	for r := range b.peers {
		b.peers[r] = suspicion.NewPeer(b.dom, r)
	}
	for j := range b.slots {
		b.slots[j].init(j, b.ranks)
	}
}

// Rank returns this rank's number.
func (b *Buffer) Rank() int { return b.self }

// NumRanks returns R.
func (b *Buffer) NumRanks() int { return b.ranks }

// enter counts a caller, so that Close waits for it.
func (b *Buffer) enter() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.err(); err != nil {
		return err
	}
	b.users.Add(1)
	return nil
}

func (b *Buffer) err() error {
	return b.broken.Load()
}

// fail makes the buffer unusable: later calls get ErrClosed with the cause, and
// pending operations end with the cause. Peers see it in the member set.
func (b *Buffer) fail(state op.State, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	closed := fmt.Errorf("%w: %w", ep.ErrClosed, cause)
	if !b.broken.CompareAndSwap(nil, closed) {
		return
	}
	for j := range b.slots {
		b.slots[j].endCalls(state, cause)
		b.rec.abandon(&b.slots[j], state)
	}
	b.rec.Area.SetClosed()
	b.leaveFor(membership.Closed, closed)
	b.behind.notify()
	b.pump.notify()
}

// Abandon is for a caller that has found a defect in the middle of a call: it
// closes the buffer as a lost peer would.
func (b *Buffer) Abandon(cause error) {
	if b.enter() != nil {
		return
	}
	defer b.users.Done()
	b.fail(op.Failed, cause)
}

func (b *Buffer) wakeAll() {
	for r := range b.ranks {
		b.dom.Wake(r)
	}
}

// Close leaves the group, ends pending operations with ErrClosed and frees
// everything but retained slabs. Idempotent; returns when no call is running.
func (b *Buffer) Close() error {
	var err error
	b.closing.Do(func() {
		b.releaseAll()
		b.drainMessages()
		b.fail(op.Cancelled, ep.ErrByOwner)
		b.endObserving()
		b.users.Wait()
		b.acquitAll()
		b.releaseRemote()
		b.kern.Close()
		err = b.dom.Close()
	})
	return err
}

func (b *Buffer) releaseAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.usable() != nil {
		return
	}
	for j := range b.slots {
		b.release(&b.slots[j], ep.ErrClosed)
	}
}
