package fake

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/transport"
)

// Late says for how long the NIC of an endpoint in StateError goes on writing
// nonsense into the memory of reads and receives that were outstanding.
type Late uint8

// How late a NIC can be.
const (
	LateNever       Late = iota
	LateUntilStatus      // until the request's completion can be polled
	LateUntilClose       // until the endpoint, or the region, is closed
)

// Config says what a network is like. The zero value is usable: real time, a
// goroutine that steps, seed 0.
type Config struct {
	Seed   uint64
	Manual bool   // nothing moves but by Step
	Clock  *Clock // nil: real time
	// Ordered makes the requests of one endpoint complete in order. Else
	// they come as the seed says.
	Ordered bool
	// ChunkBytes is how much of a write or a read moves in one step: its bytes
	// come in pieces, of which any may be the first, and other requests in
	// between. One that fails may have moved some. 0: all in one step.
	ChunkBytes int
	Late       Late
	// Limits of each transport. What is 0 gets a default; negative InlineBytes
	// are none.
	Limits transport.Limits
	// MaxQueuePairs and MaxLockedBytes bound what the system has for each
	// transport: ErrNoResource beyond. 0: no bound.
	MaxQueuePairs  int
	MaxLockedBytes int64
	// RetryTimeout is how long an unresponsive peer is asked again, 50 ms if 0.
	// NoReceiveTimeout is how long a peer without receives is, 50 ms if 0,
	// for ever if negative: flow control.
	RetryTimeout     time.Duration
	NoReceiveTimeout time.Duration
	// Probe is called at every provider call, before anything happens and
	// without a lock of this package: a test asserts there that its own locks
	// are free. call names it ("create", "destroy", "post send", ...).
	Probe func(call string)
}

// Network carries between its transports. All methods are safe for concurrent
// use.
type Network struct {
	cfg  Config
	wake chan struct{}

	mu         sync.Mutex
	rand       *rand.Rand
	faults     []*Injection
	transports []*Transport
	numOpen    int
	active     []*request // on their way, or with a completion that waits
	late       []lateWrite
	lastID     uint64 // of endpoints and keys
	running    bool   // the goroutine that steps
	stopped    chan struct{}
	broken     error // that goroutine has panicked
}

// New makes a network without transports.
func New(cfg Config) *Network {
	setDefault(&cfg.Limits.NumEndpoints, 1024)
	setDefault(&cfg.Limits.SendDepth, 1024)
	setDefault(&cfg.Limits.RecvDepth, 1024)
	setDefault(&cfg.Limits.NumPieces, 4)
	setDefault(&cfg.Limits.InlineBytes, 64)
	cfg.Limits.InlineBytes = max(cfg.Limits.InlineBytes, 0)
	setDefault(&cfg.Limits.MaxRequestBytes, 1<<30)
	setDefault(&cfg.RetryTimeout, 50*time.Millisecond)
	setDefault(&cfg.NoReceiveTimeout, 50*time.Millisecond)
	return &Network{
		cfg: cfg, wake: make(chan struct{}, 1),
		rand: rand.New(rand.NewPCG(cfg.Seed, 0x6d6f65776972655f)),
	}
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Seed is what the network's choices are drawn from.
func (n *Network) Seed() uint64 { return n.cfg.Seed }

// Transport adds a device.
func (n *Network) Transport() *Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := &Transport{
		network: n, index: len(n.transports), wake: make(chan struct{}, 1),
		endpoints: map[transport.EndpointID]*Endpoint{}, regions: map[uint64]*Region{},
		maxQueuePairs: n.cfg.MaxQueuePairs, maxLockedBytes: n.cfg.MaxLockedBytes,
		sleep: sleeper{clock: n.cfg.Clock},
	}
	n.transports = append(n.transports, t)
	n.numOpen++
	n.start()
	return t
}

// start begins to step, if that is the network's part. Under the lock.
func (n *Network) start() {
	if n.running || n.cfg.Manual {
		return
	}
	n.running, n.stopped = true, make(chan struct{})
	stopped := n.stopped
	safego.Go("fake network", func() { defer close(stopped); n.run() }, n.breakDown)
}

// breakDown makes every Poll fail.
func (n *Network) breakDown(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.broken = err
	for _, t := range n.transports {
		t.Wake()
	}
}

// run steps until the last transport is closed.
func (n *Network) run() {
	s := sleeper{clock: n.cfg.Clock}
	for {
		next, open := n.burst()
		if !open {
			return
		}
		if next != (time.Time{}) && !next.After(s.now()) {
			continue
		}
		s.until(next, n.wake)
	}
}

// burst steps until nothing can be done, and says when something can be again
// (zero: when there is something new).
func (n *Network) burst() (next time.Time, open bool) {
	const steps = 64 // then another goroutine gets the lock
	n.mu.Lock()
	defer n.mu.Unlock()
	for range steps {
		if n.numOpen == 0 {
			n.running = false
			return next, false
		}
		// One time for both: else what comes due in between is forgotten.
		now := n.now()
		if !n.step(now) {
			return n.nextTime(now), true
		}
	}
	return n.now(), true
}

// nudge tells the goroutine that steps that there is something new.
func (n *Network) nudge() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *Network) now() time.Time {
	if n.cfg.Clock != nil {
		return n.cfg.Clock.Now()
	}
	return time.Now()
}

// Kill makes a transport vanish as if its process had ended: it answers no peer, and
// nothing of it completes any more. What it held stays in its counts.
func (n *Network) Kill(t *Transport) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if t.dead {
		return
	}
	t.dead, t.unresponsive = true, true
	n.drop(func(r *request) bool { return r.ep.transport == t })
	n.leave(t)
}

// leave counts a transport out. Under the lock.
func (n *Network) leave(t *Transport) {
	if !t.left {
		t.left = true
		n.numOpen--
		n.nudge()
	}
}

// SetUnresponsive makes a transport answer no peer, or answer again. Its own requests get
// no answer either.
func (n *Network) SetUnresponsive(t *Transport, unresponsive bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t.unresponsive = unresponsive
	n.nudge()
}

// Raise reports an event, as a device would. EventEndpointFailed also puts the
// endpoint into StateError, EventDeviceDown all of the transport's.
func (n *Network) Raise(t *Transport, e transport.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch e.Kind {
	case transport.EventEndpointFailed:
		if ep := t.endpoints[e.Endpoint]; ep != nil {
			ep.fail(e.Detail)
		}
		return
	case transport.EventDeviceDown:
		for _, ep := range t.endpoints {
			ep.fail(e.Detail)
		}
	}
	t.report(e)
}

// suffer is the beginning of every provider call: the probe, then what faults
// there are. Connect passes its deadline. Without the lock.
func (n *Network) suffer(p Point, t *Transport, ep transport.EndpointID, deadline time.Time) error {
	if n.cfg.Probe != nil {
		n.cfg.Probe(p.String())
	}
	n.mu.Lock()
	f := n.strike(p, t, ep, 0)
	n.mu.Unlock()
	if f == nil {
		return nil
	}
	if f.Gate != nil && p != AtRetire && !f.Gate.pass(&sleeper{clock: n.cfg.Clock}, deadline) {
		return fmt.Errorf("%v: deadline has passed", p)
	}
	return f.Err
}

// Kill is Network.Kill of a transport that this package has made.
func Kill(t transport.Transport) {
	f := t.(*Transport)
	f.network.Kill(f)
}
