package cuda

import (
	"errors"
	"fmt"
	"sync"
	"time"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/suspicion"
	"github.com/moewire/moewire/core/group/cudaipc"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// Buffer is one rank's end of a group on CUDA. All methods are safe for concurrent use.
// One call launches at a time; a launch waits for the device when its queue is full.
// Only Connect, Prepare, Install, Leave and Close wait for other ranks, and Path waits
// for those calls.
//
// Locks are taken in this order: lifecycleMu, pages, mu, stateMu.
type Buffer struct {
	cfg    Config
	dom    domain.Domain
	dev    *device.Device
	self   int
	ranks  int
	engine *device.Engine
	offer  *cudaipc.Offer
	all    rankset.Set       // every rank of the group
	word   *membership.Guard // of dom

	ending      sync.Once
	stopped     chan struct{} // ended by Stop
	lifecycleMu sync.Mutex    // held by Connect, Prepare, Install, Leave, Close and Path
	mapped      []mapped      // by rank
	remote      remote
	rounds      *Rounds // nil until they are asked for
	fenced      fenced
	drained     chan error  // of a wait for the device that goes on in the background
	settled     bool        // nothing that was launched before the latest Prepare runs
	entered     rankset.Set // ranks that may have written in the latest epoch
	end         ending

	pages sync.RWMutex // the others' control pages stay while it is held for reading

	// mu guards what follows and the engine's launches. The device may wait for the watcher
	// while a launch waits for the device, so the watcher never takes mu.
	mu           sync.Mutex
	slots        []slot
	latest       int // slot of the latest dispatch
	handles      Handle
	latestTicket ReduceTicket
	reduces      launches // by ticket
	receipts     launches // by Handle

	stateMu  sync.Mutex       // guards what follows; nothing waits under it
	epoch    membership.Epoch // the one this rank joined
	base     uint64           // its first operation
	life     membership.Life
	detector *suspicion.Detector
	timeout  time.Duration // of the latest call that has one
	lost     uint64        // ranks that this one has fenced, alone or by agreement
	wild     violations
	losses   ep.Losses // of this epoch: why ranks go out, until they are
	watch    watch
	rec      recorder
}

// mapped is another rank's memory.
type mapped struct {
	of   domain.Process // nil until the device knows where it is
	view *cudaipc.View
}

var errConnect = fmt.Errorf("%w: the buffer is not connected yet", ep.ErrInvalid)

// New allocates this rank's memory on the device and lays out for the others how to map
// it. It does not wait; Connect (with Config.Joining: Install) comes next. The buffer
// owns the domain from then on and closes it. The device stays the caller's and is
// closed after the buffer. On an error both are the caller's. The domain has no slabs
// yet. Ranks of other hosts are possible where its rings are memory that this device
// sees (multihost.Config.Rings, cudaring).
func New(dom domain.Domain, dev *device.Device, cfg Config) (*Buffer, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if err := checkRemote(dom); err != nil {
		return nil, err
	}
	all := rankset.Upto(dom.NumRanks())
	word := membership.NewGuard(func() membership.Word { return dom.Members() }, all)
	b := &Buffer{
		cfg: cfg, dom: dom, dev: dev, self: dom.Rank(), ranks: dom.NumRanks(), all: all, word: word,
		mapped: make([]mapped, dom.NumRanks()), remote: remote{maxDrain: maxDrain}, slots: make([]slot, cfg.NumSlots),
		epoch: membership.Members(word.Load()).Epoch(),
		life:  membership.Begin(membership.Connecting, errConnect), stopped: make(chan struct{}),
	}
	if cfg.Joining {
		b.epoch-- // it has joined none yet: the group's own is its predecessor's
		b.life = membership.Begin(membership.Updating, ep.ErrBetweenEpochs)
		b.settled = true // nothing was launched
	}
	shape := cfg.engine(b.self, b.ranks)
	var err error
	if b.engine, err = device.NewEngine(dev, shape); err != nil {
		return nil, err
	}
	if b.offer, err = cudaipc.NewOffer(dom, dev, b.engine.Memory()); err != nil {
		return nil, errors.Join(err, b.engine.Close())
	}
	b.detector = suspicion.NewDetector(dom, b.epoch)
	b.rec.open(b)
	b.watch.begin(b)
	return b, nil
}

// Connect maps the memory of all ranks that are present in the domain. It waits, until
// the deadline, for those that have not come as far; Stop and Close end that with
// ErrClosed. Every rank calls New before it waits for any other. Idempotent; not with
// Config.Joining.
func (b *Buffer) Connect(deadline time.Duration) error {
	b.lifecycleMu.Lock()
	defer b.lifecycleMu.Unlock()
	if connected, err := b.mayConnect(); connected || err != nil {
		return err
	}
	if err := b.mapAll(time.Now().Add(deadline)); err != nil {
		return err
	}
	if err := b.reachRemote(); err != nil {
		return err
	}
	if err := b.engine.Join(uint64(b.epoch)); err != nil {
		return err
	}
	return b.enter(b.epoch, 0)
}

func (b *Buffer) mayConnect() (connected bool, err error) {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	switch b.life.State() {
	case membership.Connecting:
		return false, nil
	case membership.Member:
		return true, nil
	}
	return false, b.life.Why()
}

// mapAll maps the memory of the ranks that have come, and releases that of other ranks.
// Nothing of this rank runs on the device. The caller holds b.lifecycleMu.
func (b *Buffer) mapAll(until time.Time) error {
	if err := checkRemote(b.dom); err != nil {
		return err
	}
	_, ranks := remoteOf(b.dom)
	b.remote.ranks.Store(ranks)
	b.remote.reached = rankset.Set{}
	bytes := b.sharedBytes()
	for r := range b.mapped {
		m := &b.mapped[r]
		proc := b.dom.Process(r)
		if r == b.self || (m.of != nil && proc == m.of) {
			continue
		}
		if err := m.drop(); err != nil {
			return err
		}
		if proc == nil || b.isRemote(r) {
			continue
		}
		var err error
		if m.view, err = cudaipc.Map(b.dom, b.dev, r, bytes, cudaipc.Wait{Until: until, Stop: b.stopped}); err != nil {
			return b.unlessStopped(err)
		}
		if err := b.checkLink(r, m.view.Device()); err != nil {
			return errors.Join(err, m.drop())
		}
		if err := b.engine.SetPeer(r, m.view.Address()); err != nil {
			return errors.Join(err, m.drop())
		}
		m.of = proc
	}
	return nil
}

// unlessStopped is err, or the error of a call that Stop has ended.
func (b *Buffer) unlessStopped(err error) error {
	if errors.Is(err, cudaipc.ErrStopped) {
		return ep.ErrByOwner
	}
	return err
}

func (m *mapped) drop() error {
	if m.view == nil {
		return nil
	}
	err := m.view.Close()
	if err == nil {
		*m = mapped{}
	}
	return err
}

func (b *Buffer) sharedBytes() uint64 {
	c := b.cfg.engine(b.self, b.ranks)
	return c.SharedBytes()
}

// enter makes calls possible in an epoch. This rank is a member of it, and the engine
// has joined it.
func (b *Buffer) enter(epoch membership.Epoch, base uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	b.word.Begin(epoch, b.dom.Present())
	set := membership.Members(b.word.Load())
	b.detector = suspicion.NewDetector(b.dom, epoch)
	b.epoch, b.base, b.entered = epoch, base, set.Ranks().And(b.dom.Present())
	b.fenced, b.wild.ranks = fenced{}, rankset.Set{}
	if !set.In(epoch, b.self) {
		b.expelled(uint64(set)) // it has joined: the others wait until it is quiesced
		return ep.ErrFenced
	}
	for j := range b.slots {
		b.slots[j] = slot{}
	}
	b.reduces, b.receipts = launches{}, launches{}
	b.watch.reset()
	b.engine.SetQuiesced(rankset.Set{})
	b.engine.SetMembers(uint64(set))
	b.knowMembers(set)
	b.life.Join()
	return nil
}

// Rank returns this rank's number.
func (b *Buffer) Rank() int { return b.self }

// NumRanks returns R.
func (b *Buffer) NumRanks() int { return b.ranks }

// Path says how a rank's memory is reached: "self", "process" (plain addresses), "fd"
// (memory imported by descriptor), "fabric" (by fabric handle), "ipc" (an IPC handle),
// "messages" (a rank of another host), "" (absent, not connected, or released by Leave
// or Close). It waits for a Connect or Install that runs.
func (b *Buffer) Path(rank int) string {
	b.lifecycleMu.Lock()
	defer b.lifecycleMu.Unlock()
	switch {
	case rank < 0 || rank >= b.ranks:
		return ""
	case rank == b.self:
		return "self"
	case b.remote.reached.Has(rank):
		return "messages"
	case b.mapped[rank].view == nil:
		return ""
	}
	return b.mapped[rank].view.Path()
}

// NoFabric is why this rank's memory has no fabric handle, though its device says
// that it could.
func (b *Buffer) NoFabric() error { return b.engine.Memory().NoFabric() }

// Members returns the members of this rank's epoch; none after Close.
func (b *Buffer) Members() rankset.Set {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	if b.life.State() == membership.Closed {
		return rankset.Set{}
	}
	set := membership.Members(b.word.Load())
	if set.Epoch() != b.epoch {
		return rankset.Set{}
	}
	return set.Ranks().And(b.dom.Present())
}

// Membership returns which ranks are in the group now, whatever its epoch (without this
// rank's bit when that is not the one it joined), that epoch, and how many ranks this
// one has fenced. Zeros after Close.
func (b *Buffer) Membership() (ranks rankset.Set, epoch membership.Epoch, lost uint64) {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	if b.life.State() == membership.Closed {
		return rankset.Set{}, 0, 0
	}
	set := membership.Members(b.word.Load())
	ranks = set.Ranks()
	if set.Epoch() != b.epoch {
		ranks = ranks.Without(b.self) // it is another process's
	}
	return ranks, set.Epoch(), b.lost
}
