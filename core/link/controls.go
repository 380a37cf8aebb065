package link

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	uatomic "go.uber.org/atomic"

	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/accept"
	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/wire"
)

// Participant is a rank to have a control connection with.
type Participant struct {
	ID   wire.PeerID // random, of this rendezvous
	Addr netip.AddrPort
	// Liveness is the address of its liveness port; not valid: not known.
	Liveness netip.AddrPort
}

// ControlConfig says how control connections are made.
type ControlConfig struct {
	Rank int
	// ID is this rank's own, known to the others.
	ID   wire.PeerID
	Keys *wire.Keyring
	// Protection of what is said; 0 is wire.ProtectDigest. Equal on all ranks.
	Protection wire.Protection
	// Counters count refusals by reason, if not nil.
	Counters *wire.Counters
	// Tick is how often Handler.Tick is called.
	Tick time.Duration
	// HandshakeTimeout bounds connections that have not shown yet that they
	// know a key. Default 5 s.
	HandshakeTimeout time.Duration
}

// Handler is told what happens, on one goroutine. Its methods do not block.
type Handler interface {
	// Up: the rank is connected, and proved to be the one that was meant. It
	// comes once, also where the connection is reconnected.
	Up(rank int)
	// Received: a message has come. It is the callee's only until it returns.
	Received(rank int, message []byte)
	// Ended: nothing more will come.
	Ended(rank int, how Ending, err error)
	// Tick comes about every ControlConfig.Tick.
	Tick()
	// Crashed: the goroutine has panicked, in this handler perhaps. Ended comes
	// for every rank, and nothing after that: no message, and no Tick.
	Crashed(err error)
}

// Ending says how a control connection ended.
type Ending uint8

// The ends. Only EndExited says that the process has ended. It has one of three causes.
// The connection ended, or was reset, without a shutdown notice, and then the system of
// its host said that no socket listens at its control port. Or that system said so of its
// liveness port. Or Controls.Exited was called. A connection that ends in another way is
// reconnected.
const (
	EndShutdown Ending = iota + 1 // the rank closed it, or is about to
	EndExited                     // the process has ended
	EndBroken                     // there never was one, or the peer is none of us
)

// Controls are the control connections of one rank to the others of a rendezvous.
// One goroutine serves them all. All methods are safe for concurrent use,
// also from the handler's.
type Controls struct {
	cfg      ControlConfig
	handler  Handler
	guard    *wire.Guard
	poller   *sys.Poller
	bellMu   sync.Mutex // guards closing and signalling bell
	bell     *sys.FD
	listener *sys.FD
	liveness *sys.FD
	known    [rankset.MaxRanks]uatomic.Error // of Exited
	peers    [rankset.MaxRanks]*conn
	who      map[wire.PeerID]int

	// The goroutine's own.
	pending accept.Pending[*conn]
	tokens  map[uint64]*conn
	last    uint64
	buf     []byte
	resting bool      // the listener is not polled
	leaving bool      // Close was called
	until   time.Time // when leaving has to be over

	failures, reconnects atomic.Uint64
	failure              uatomic.Error // the last of failures

	closing        atomic.Bool // the listener is to be closed
	listenerClosed chan struct{}
	stop           atomic.Bool
	done           chan struct{}
	end            sync.Once
	closed         error
}

// MaxControlBytes is the longest control message.
const MaxControlBytes = 4096

// maxQueuedBytes bounds what one peer is not known to have taken.
const maxQueuedBytes = 64 << 10

// maxPending bounds connections that have not authenticated yet.
const maxPending = 2 * rankset.MaxRanks

// Message codes of the session.
const (
	codeMessage  = 1
	codeShutdown = 2
	codeResume   = 3 // first on every connection: how much has come over the others
	codeAck      = 4 // says only how much has come, as every frame does
)

// StartControls connects to all ranks in others: this rank dials the lower ones, the
// higher ones come to the listener, which belongs to Controls from then on, also on an
// error. Handler.Up reports each rank that is connected.
func StartControls(cfg ControlConfig, listener *Listener, others map[int]Participant, handler Handler) (*Controls, error) {
	if cfg.HandshakeTimeout == 0 {
		cfg.HandshakeTimeout = 5 * time.Second
	}
	c := &Controls{
		cfg: cfg, handler: handler, listener: listener.fd, liveness: listener.livenessFD, who: map[wire.PeerID]int{},
		tokens: map[uint64]*conn{}, buf: make([]byte, 64<<10), done: make(chan struct{}), listenerClosed: make(chan struct{}),
	}
	err := c.open(others)
	if err == nil {
		safego.Go("link controls", func() { c.run(); close(c.done) }, c.crashed)
		return c, nil
	}
	c.shut()
	c.dropBell()
	if c.poller != nil {
		_ = c.poller.Close()
	}
	return nil, fmt.Errorf("link: control: %w", err)
}

func (c *Controls) open(others map[int]Participant) (err error) {
	c.pending = accept.NewPending(maxPending, c.cfg.HandshakeTimeout, c.detach)
	if c.guard, err = wire.NewGuard(0); err != nil {
		return err
	}
	if c.poller, err = sys.NewPoller(); err != nil {
		return err
	}
	if c.bell, err = sys.NewEvent(); err != nil {
		return err
	}
	if err = c.poller.AddLevel(c.listener, listenerToken); err != nil {
		return err
	}
	for r, a := range others {
		c.peers[r] = &conn{rank: r, addr: a.Addr, id: a.ID, probe: probe{addr: a.Liveness}}
		c.who[a.ID] = r
	}
	for r, p := range c.peers {
		if p == nil || r > c.cfg.Rank {
			continue
		}
		err := c.dial(p)
		if errors.Is(err, sys.ErrNoListener) {
			return fmt.Errorf("rank %d at %v: %w", r, p.addr, err)
		}
		if err != nil {
			c.refused(p, err)
		}
	}
	return nil
}

// Send queues a message for a rank and reports whether it did: not before it
// is up, after it has ended, or while too much waits already. A message that
// was queued arrives, in its order, unless the rank ends before that.
func (c *Controls) Send(rank int, message []byte) bool {
	p := c.peers[rank]
	if p == nil || len(message) > MaxControlBytes || !p.push(codeMessage, message) {
		return false
	}
	c.wake()
	return true
}

// wake makes the goroutine look around.
func (c *Controls) wake() {
	c.bellMu.Lock()
	defer c.bellMu.Unlock()
	if c.bell.Raw() >= 0 {
		_ = sys.Signal(c.bell) // cannot fail on an open eventfd
	}
}

// dropBell closes it; a goroutine that wakes later does nothing.
func (c *Controls) dropBell() {
	c.bellMu.Lock()
	defer c.bellMu.Unlock()
	_ = c.bell.Close()
}

// Ranks are the ranks that are connected.
func (c *Controls) Ranks() (ranks rankset.Set) {
	for r, p := range c.peers {
		if p != nil && p.isUp() {
			ranks = ranks.With(r)
		}
	}
	return ranks
}

// ControlStats is what has happened to connections.
type ControlStats struct {
	// Reconnects counts connections that broke and were reconnected.
	Reconnects uint64
	// AcceptFailures counts how often a connection could not be taken from the
	// listener, or not be dialled, for want of descriptors for instance.
	AcceptFailures uint64
	// AcceptFailure is the last of them.
	AcceptFailure error
}

// Stats returns the counts.
func (c *Controls) Stats() ControlStats {
	return ControlStats{Reconnects: c.reconnects.Load(), AcceptFailures: c.failures.Load(), AcceptFailure: c.failure.Load()}
}

// lacks notes that a connection could not be taken or dialled for want of something.
func (c *Controls) lacks(err error) {
	c.failures.Add(1)
	c.failure.Store(err)
}

// Close sends a shutdown notice to every peer, waits until they have taken it, but no
// longer than half a second, and ends the goroutine. Idempotent; not from the handler.
func (c *Controls) Close() error {
	c.end.Do(func() {
		c.stop.Store(true)
		c.wake()
		<-c.done
		c.dropBell()
		c.closed = c.poller.Close()
	})
	return c.closed
}

// crashed runs when the goroutine has panicked: the others must not take this
// rank for alive. The handler is in use until it has heard of all ends.
func (c *Controls) crashed(err error) {
	defer close(c.done)
	c.shut()
	c.handler.Crashed(err)
	for r, p := range c.peers {
		if p != nil {
			c.handler.Ended(r, EndBroken, err)
		}
	}
}

func (c *Controls) run() {
	var events sys.PollEvents
	tick, next := time.Now().Add(c.cfg.Tick), time.Time{}
	for now := time.Now(); !c.finished(now); now = time.Now() {
		ready, err := c.poller.Poll(&events)
		if err == nil && len(ready) == 0 {
			err = c.poller.Sleep(c.bell, max(0, time.Until(next)))
		}
		if err != nil {
			panic(err)
		}
		for _, e := range ready {
			c.serve(e)
		}
		if now = time.Now(); !now.Before(tick) {
			tick = now.Add(c.cfg.Tick)
			c.ticked(now)
		}
		if c.closing.Load() {
			c.closeListener()
		}
		c.takeKnown()
		next = c.probeAll(now, c.reconnect(now, tick))
		c.flush()
		c.acknowledge(unacknowledged)
	}
	c.leaveRest()
	c.shut()
}

// finished begins to leave when that was asked for, and reports whether it is
// over.
func (c *Controls) finished(now time.Time) bool {
	if c.stop.Load() && !c.leaving {
		c.part(now)
		c.flush()
	}
	return c.leaving && (c.parted() || now.After(c.until))
}

func (c *Controls) ticked(now time.Time) {
	c.pending.Expire(now)
	c.reopen()
	c.takeProbes()
	if !c.leaving {
		c.handler.Tick()
	}
	c.flush()
	c.acknowledge(1)
}

// listenerToken is the listener's; connections have others.
const listenerToken = 0

func (c *Controls) serve(e sys.Ready) {
	if e.Token == listenerToken {
		c.accept()
		return
	}
	p := c.tokens[e.Token]
	if p == nil {
		return
	}
	if p.probe.token == e.Token {
		c.finishProbe(p)
		return
	}
	if p.dialling && e.Writable {
		c.finishDial(p)
	}
	if e.Readable && p.token == e.Token && p.fd != nil && !p.dialling {
		c.read(p)
	}
}

// flush writes what has been queued.
func (c *Controls) flush() {
	for _, p := range c.peers {
		if p != nil {
			c.write(p)
		}
	}
}

// shut closes all sockets.
func (c *Controls) shut() {
	c.closeListener()
	sys.CloseAll(c.liveness)
	c.pending.Close()
	for _, p := range c.peers {
		if p != nil {
			p.down()
			sys.CloseAll(p.fd, p.probe.fd)
			p.hands.Close()
		}
	}
}
