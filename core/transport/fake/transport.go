package fake

import (
	"fmt"
	"time"

	"github.com/moewire/moewire/core/transport"
)

var zero time.Time

// Transport is one device of a network. Memory of the Go heap may be
// registered with it.
type Transport struct {
	network *Network
	index   int
	wake    chan struct{}
	sleep   sleeper // of Wait

	// Under the network's lock.
	endpoints      map[transport.EndpointID]*Endpoint
	regions        map[uint64]*Region
	finished       queue[finished]
	events         queue[transport.Event]
	maxQueuePairs  int
	maxLockedBytes int64
	counts         Counts
	unresponsive   bool // answers no peer
	dead           bool // and does nothing
	closed         bool
	left           bool
}

// Name is "fake".
func (t *Transport) Name() string { return "fake" }

// Device is the number of the transport on its network.
func (t *Transport) Device() string { return fmt.Sprintf("fake%d", t.index) }

// Limits are those of the network's configuration.
func (t *Transport) Limits() transport.Limits { return t.network.cfg.Limits }

// SetResources changes what the system has for this transport, as
// Config.MaxQueuePairs and MaxLockedBytes. What is held stays.
func (t *Transport) SetResources(maxQueuePairs int, maxLockedBytes int64) {
	t.network.mu.Lock()
	defer t.network.mu.Unlock()
	t.maxQueuePairs, t.maxLockedBytes = maxQueuePairs, maxLockedBytes
}

// Register makes memory usable.
func (t *Transport) Register(mem []byte, access transport.Access) (transport.Region, error) {
	n := t.network
	if len(mem) == 0 {
		return nil, fmt.Errorf("register: mem has 0 bytes, at least 1 is needed")
	}
	if err := n.suffer(AtRegister, t, 0, zero); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if t.closed {
		return nil, transport.ErrClosed
	}
	if most := t.maxLockedBytes; most > 0 && t.counts.LockedBytes+int64(len(mem)) > most {
		return nil, fmt.Errorf("lock %d bytes beside %d, at most %d: %w",
			len(mem), t.counts.LockedBytes, most, transport.ErrNoResource)
	}
	n.lastID++
	// Neither address nor key says anything about the other one's.
	at := transport.RemoteRegion{Addr: n.rand.Uint64() >> 8, SizeBytes: uint64(len(mem)), Key: n.lastID<<20 | n.rand.Uint64N(1<<20)}
	r := &Region{transport: t, mem: mem, remote: at, access: access}
	t.regions[at.Key] = r
	t.counts.Regions++
	t.counts.LockedBytes += int64(len(mem))
	return r, nil
}

// NewEndpoint makes a queue pair.
func (t *Transport) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	if err := t.checkSpec(spec); err != nil {
		return nil, err
	}
	if err := t.takeQueuePair(); err != nil {
		return nil, err
	}
	if err := t.network.suffer(AtCreate, t, 0, zero); err != nil {
		t.giveQueuePair()
		return nil, err
	}
	n := t.network
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lastID++
	e := newEndpoint(t, transport.EndpointID(n.lastID), n.rand.Uint64(), spec)
	t.endpoints[e.id] = e
	t.counts.QueuePairsCreated++
	return e, nil
}

func (t *Transport) checkSpec(spec transport.EndpointSpec) error {
	l := t.Limits()
	if spec.SendDepth < 1 || spec.SendDepth > l.SendDepth {
		return fmt.Errorf("new endpoint: SendDepth is %d, 1 to %d are allowed", spec.SendDepth, l.SendDepth)
	}
	if spec.RecvDepth < 1 || spec.RecvDepth > l.RecvDepth {
		return fmt.Errorf("new endpoint: RecvDepth is %d, 1 to %d are allowed", spec.RecvDepth, l.RecvDepth)
	}
	return nil
}

// takeQueuePair counts a queue pair before it is made: what is being made
// takes its place already.
func (t *Transport) takeQueuePair() error {
	t.network.mu.Lock()
	defer t.network.mu.Unlock()
	c := &t.counts
	switch {
	case t.closed:
		return transport.ErrClosed
	case c.QueuePairs >= t.Limits().NumEndpoints:
		return fmt.Errorf("%d endpoints: %w", c.QueuePairs, transport.ErrWouldBlock)
	case t.maxQueuePairs > 0 && c.QueuePairs >= t.maxQueuePairs:
		return fmt.Errorf("%d queue pairs: %w", c.QueuePairs, transport.ErrNoResource)
	}
	c.QueuePairs++
	c.MaxQueuePairs = max(c.MaxQueuePairs, c.QueuePairs)
	return nil
}

func (t *Transport) giveQueuePair() {
	t.network.mu.Lock()
	defer t.network.mu.Unlock()
	t.counts.QueuePairs--
}

// Poll moves completions to done.
func (t *Transport) Poll(done []transport.Completion) (int, error) {
	if probe := t.network.cfg.Probe; probe != nil {
		probe(atPoll.String())
	}
	t.network.mu.Lock()
	defer t.network.mu.Unlock()
	if t.closed {
		return 0, transport.ErrClosed
	}
	if err := t.network.broken; err != nil {
		return 0, err
	}
	n := 0
	for n < len(done) && t.finished.len() > 0 {
		f := t.finished.pop()
		done[n] = f.completion
		n++
		if f.request != nil {
			f.request.polled()
		}
	}
	return n, nil
}

// Wait blocks until there may be something to poll.
func (t *Transport) Wait(d time.Duration) error {
	t.network.mu.Lock()
	some, closed := t.finished.len()+t.events.len() > 0, t.closed
	t.network.mu.Unlock()
	if closed {
		return transport.ErrClosed
	}
	if !some {
		t.sleep.until(t.sleep.now().Add(d), t.wake)
	}
	return nil
}

// Wake ends a Wait.
func (t *Transport) Wake() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// PollEvents moves reports to events.
func (t *Transport) PollEvents(events []transport.Event) int {
	t.network.mu.Lock()
	defer t.network.mu.Unlock()
	n := 0
	for n < len(events) && t.events.len() > 0 {
		events[n] = t.events.pop()
		n++
	}
	return n
}

// report queues an event. Under the lock.
func (t *Transport) report(e transport.Event) {
	t.events.push(e)
	t.Wake()
}

// Close ends the use of the device.
func (t *Transport) Close() error {
	n := t.network
	if n.cfg.Probe != nil {
		n.cfg.Probe(atClose.String())
	}
	n.mu.Lock()
	if held := len(t.endpoints) + len(t.regions); held > 0 && !t.closed && !t.dead {
		n.mu.Unlock()
		return fmt.Errorf("%d endpoints and regions: %w", held, transport.ErrBusy)
	}
	t.closed = true
	n.leave(t)
	stopped := n.stopped
	last := n.numOpen == 0 && stopped != nil
	n.mu.Unlock()
	t.Wake()
	if last {
		<-stopped
	}
	return nil
}
