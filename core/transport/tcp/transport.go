package tcp

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// Transport is the carrier. Make one with Open.
type Transport struct {
	config   Config
	addrs    []netip.AddrPort // what peers are told
	wire     wire.Config      // of handshakes; never changed
	listener *listener
	poller   *sys.Poller

	done     finished
	events   reports
	counters Counters

	// regions and conns are tables that hot paths read without a lock; mu is
	// held to change them.
	regions []atomic.Pointer[region]
	conns   []atomic.Pointer[conn]

	isClosed atomic.Bool
	using    sync.RWMutex // Poll, Wait and Wake hold it for reading, Close for writing

	mu          sync.Mutex
	closed      bool
	freeRegions []uint32
	freeConns   []uint32
	lastConn    uint32 // generation
	endpoints   map[token]*endpoint
	numEndpoint int // not closed, so more than in the map
	lastID      transport.EndpointID

	// ready are the endpoints that have something to do.
	readyMu sync.Mutex
	ready   []*endpoint
	turn    []*endpoint // of the goroutine that works on them
	turnMu  sync.Mutex

	waiter  sleeper // Wait
	standby background
	woken   atomic.Bool
	short   atomic.Int64 // endpoints that wait for the peer to post a receive
	looked  atomic.Int64 // when these were looked at last, ns
	// Tests put themselves in between.
	sendPinned func(*sys.FD, *sys.Vector) (int, error)
	nextNotice func(*sys.FD, *sys.Notices) (sys.Notice, bool)

	polled  sys.PollEvents
	skipped int // calls of Poll in a row that had completions, and did not look at the sockets
	waited  sys.PollEvents
	started time.Time
}

var _ transport.Transport = (*Transport)(nil)

var errClosed = fmt.Errorf("tcp: transport is closed: %w", transport.ErrState)

// Open begins to listen.
func Open(config Config) (*Transport, error) {
	_, _ = sys.RaiseOpenFiles() // where it fails, the call that lacks a descriptor says so
	config.Listen = append([]netip.AddrPort(nil), config.Listen...)
	if config.Interface != "" {
		addrs, err := sys.InterfaceAddrs(config.Interface)
		if err != nil {
			return nil, fmt.Errorf("tcp: %w", err)
		}
		for _, a := range addrs {
			config.Listen = append(config.Listen, netip.AddrPortFrom(a, 0))
		}
	}
	if err := config.complete(); err != nil {
		return nil, err
	}
	if len(config.Listen) == 0 {
		return nil, fmt.Errorf("tcp: interface is %q, which has no address that peers can dial", config.Interface)
	}
	t := &Transport{
		config: config, started: time.Now(), endpoints: make(map[token]*endpoint),
		sendPinned: sys.SendPinned,
		nextNotice: func(fd *sys.FD, n *sys.Notices) (sys.Notice, bool) { return n.Next(fd) },
	}
	t.tables()
	if err := t.listen(); err != nil {
		return nil, errors.Join(err, t.closeAll())
	}
	return t, nil
}

func (t *Transport) tables() {
	c := &t.config
	t.regions = make([]atomic.Pointer[region], c.NumRegions)
	t.conns = make([]atomic.Pointer[conn], c.NumEndpoints*c.NumSockets)
	for i := range t.regions {
		t.freeRegions = append(t.freeRegions, uint32(len(t.regions)-1-i))
	}
	for i := range t.conns {
		t.freeConns = append(t.freeConns, uint32(len(t.conns)-1-i))
	}
	t.ready = make([]*endpoint, 0, c.NumEndpoints)
	t.turn = make([]*endpoint, 0, c.NumEndpoints)
	t.events.ring = make([]transport.Event, c.NumEndpoints+1)
}

func (t *Transport) listen() (err error) {
	guard, err := wire.NewGuard(0)
	if err != nil {
		return err
	}
	t.wire = wire.Config{
		Keys: t.config.Keyring, Protection: t.config.Protection, Ordered: true,
		MaxPayloadBytes: int64(t.config.segmentBytes), Codes: codes,
		Guard: guard, Counters: &t.counters.Wire,
	}
	if t.poller, err = sys.NewPoller(); err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	if err = t.waiter.open(); err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	if err = t.standby.open(t); err != nil {
		return err
	}
	if t.listener, err = openListener(t); err != nil {
		return err
	}
	t.addrs = t.listener.addrs
	if len(t.config.Advertise) > 0 {
		t.addrs = t.config.Advertise
	}
	return nil
}

// Name is "tcp".
func (t *Transport) Name() string { return "tcp" }

// Device says where the transport listens.
func (t *Transport) Device() string {
	var b strings.Builder
	for i, a := range t.listener.addrs {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(a.String())
	}
	return b.String()
}

// Limits are the bounds.
func (t *Transport) Limits() transport.Limits {
	return transport.Limits{
		NumEndpoints: t.config.NumEndpoints, SendDepth: MaxDepth, RecvDepth: MaxDepth,
		NumPieces: numPieces, InlineBytes: inlineBytes, MaxRequestBytes: maxRequestBytes,
	}
}

// Counters are read while the transport works.
func (t *Transport) Counters() *Counters { return &t.counters }

// maxSkipped bounds how long one peer's completions keep others waiting.
const maxSkipped = 8

// Poll does what can be done now and returns what has ended.
func (t *Transport) Poll(done []transport.Completion) (int, error) {
	t.using.RLock()
	defer t.using.RUnlock()
	if t.isClosed.Load() {
		return 0, errClosed
	}
	t.standby.Call()
	if t.skipped < maxSkipped {
		if n := t.done.take(done); n > 0 { // the sockets' turn is a later call's
			t.skipped++
			t.runReady()
			return n, nil
		}
	}
	t.skipped = 0
	err := t.progress(&t.polled)
	return t.done.take(done), err
}

// Wait sleeps until there is something to poll.
func (t *Transport) Wait(d time.Duration) error {
	t.using.RLock()
	defer t.using.RUnlock()
	t.standby.Enter()
	defer t.standby.Leave()
	deadline := time.Now().Add(d)
	for first := true; ; first = false {
		if t.isClosed.Load() {
			return errClosed
		}
		t.runReady()
		if t.news() {
			t.woken.Store(false)
			return nil
		}
		left := time.Until(deadline)
		if left <= 0 && !first {
			return nil
		}
		if err := t.sleep(&t.waiter, max(left, 0)); err != nil {
			return err
		}
		if err := t.progress(&t.waited); err != nil {
			return err
		}
	}
}

// news reports whether a Wait has a reason to end.
func (t *Transport) news() bool {
	return t.done.num.Load() > 0 || t.events.num.Load() > 0 || t.woken.Load()
}

// sleepLimit shortens a sleep (negative: for ever) while something has a deadline of its own.
func (t *Transport) sleepLimit(d time.Duration) time.Duration {
	if t.short.Load() > 0 && (d < 0 || d > lookEvery) {
		return lookEvery
	}
	return d
}

// Wake ends a Wait.
func (t *Transport) Wake() {
	t.using.RLock()
	defer t.using.RUnlock()
	t.woken.Store(true)
	if !t.isClosed.Load() {
		t.interrupt()
	}
}

// PollEvents moves reports to events.
func (t *Transport) PollEvents(events []transport.Event) int { return t.events.take(events) }

// Close stops listening. All goroutines have ended and all descriptors are
// closed when it returns nil, and so has a Wait that ran meanwhile.
func (t *Transport) Close() error {
	t.mu.Lock()
	endpoints, regions := t.numEndpoint, len(t.regions)-len(t.freeRegions)
	if endpoints != 0 || regions != 0 {
		t.mu.Unlock()
		return fmt.Errorf("tcp: %d endpoints and %d regions are not closed: %w", endpoints, regions, transport.ErrBusy)
	}
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.closed = true
	t.isClosed.Store(true)
	t.mu.Unlock()
	t.interrupt() // a Wait ends
	t.using.Lock()
	defer t.using.Unlock()
	return t.closeAll()
}

func (t *Transport) closeAll() (err error) {
	err = errors.Join(t.listener.close(), t.standby.close(), t.waiter.bell.Close())
	if t.poller != nil {
		err = errors.Join(err, t.poller.Close())
	}
	return err
}
