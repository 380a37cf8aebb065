package fake

import (
	"sync"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// Point is where a fault can strike: a provider call, or a step of the NIC.
type Point uint8

// The points. Faults at calls use Err and Gate; those of the NIC, which are the
// last two, use the other fields.
const (
	AtCreate     Point = iota + 1 // NewEndpoint
	AtConnect                     // Connect
	AtRetire                      // Retire; Gate is ignored, Retire never blocks
	AtDestroy                     // Close of an endpoint
	AtRegister                    // Register
	AtDeregister                  // Close of a region
	AtPostSend                    // Err for one request of a PostSend: those before it are posted
	AtPostRecv                    // the same for receives
	AtWire                        // a send, write or read on its way: Delay, Drop, Status
	AtComplete                    // the end of any request: Delay, Drop, Duplicate, Status
	atPoll                        // for the probe only
	atClose
)

var pointNames = map[Point]string{
	AtCreate: "create", AtConnect: "connect", AtRetire: "retire", AtDestroy: "destroy",
	AtRegister: "register", AtDeregister: "deregister", AtPostSend: "post send",
	AtPostRecv: "post recv", AtWire: "wire", AtComplete: "complete", atPoll: "poll", atClose: "close",
}

// String names the point.
func (p Point) String() string { return pointNames[p] }

// Fault is a rule: where it strikes, how often, and what happens then. Fields
// of the zero value select everything and do nothing.
type Fault struct {
	Point     Point
	Transport *Transport           // nil: all
	Endpoint  transport.EndpointID // 0: all
	Op        transport.Opcode     // AtWire, AtComplete; 0: all
	Skip      int                  // strikes that are let pass first
	Times     int                  // strikes at most; 0: no bound
	Chance    float64              // of striking, by the seed; 0: always

	Err      error // what a call returns, having done nothing
	Gate     *Gate // a call blocks here (Connect: until its deadline)
	MinDelay time.Duration
	MaxDelay time.Duration // AtWire, AtComplete: uniform between the two
	// Drop loses: AtWire the request, which ends as StatusUnreachable after
	// Config.RetryTimeout; AtComplete the completion, for ever.
	Drop bool
	// Duplicate reports a completion twice, as no carrier may.
	Duplicate bool
	// Status is how the request ends instead, whatever became of its bytes:
	// AtWire they have not moved, AtComplete they have.
	Status transport.Status
	Vendor uint32
}

// Injection is a fault in force.
type Injection struct {
	fault   Fault
	network *Network
	seen    int
	struck  int
}

// Inject puts a fault in force. The first one that strikes at a point wins.
func (n *Network) Inject(f Fault) *Injection {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := &Injection{fault: f, network: n}
	n.faults = append(n.faults, i)
	return i
}

// Remove takes the fault away again. Idempotent.
func (i *Injection) Remove() {
	n := i.network
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, other := range n.faults {
		if other == i {
			n.faults = append(n.faults[:k:k], n.faults[k+1:]...)
			return
		}
	}
}

// Struck is how often the fault has struck.
func (i *Injection) Struck() int {
	i.network.mu.Lock()
	defer i.network.mu.Unlock()
	return i.struck
}

// strike returns the fault that strikes here, nil if none. Under the lock.
func (n *Network) strike(p Point, t *Transport, ep transport.EndpointID, op transport.Opcode) *Fault {
	for _, i := range n.faults {
		if i.selects(p, t, ep, op) && i.fires() {
			return &i.fault
		}
	}
	return nil
}

func (i *Injection) selects(p Point, t *Transport, ep transport.EndpointID, op transport.Opcode) bool {
	f := &i.fault
	return f.Point == p &&
		(f.Transport == nil || f.Transport == t) &&
		(f.Endpoint == 0 || f.Endpoint == ep) &&
		(f.Op == 0 || f.Op == op) &&
		(f.Times == 0 || i.struck < f.Times)
}

func (i *Injection) fires() bool {
	if i.seen++; i.seen <= i.fault.Skip {
		return false
	}
	if c := i.fault.Chance; c != 0 && i.network.rand.Float64() >= c {
		return false
	}
	i.struck++
	return true
}

// delay draws how long a fault holds something up. Under the lock.
func (n *Network) delay(f *Fault) time.Duration {
	d := f.MinDelay
	if f.MaxDelay > f.MinDelay {
		d += time.Duration(n.rand.Int64N(int64(f.MaxDelay - f.MinDelay + 1)))
	}
	return d
}

// Gate holds up calls until it is opened.
type Gate struct {
	open    chan struct{}
	once    sync.Once
	mu      sync.Mutex
	waiting int
	arrived chan struct{}
}

// NewGate returns a closed gate.
func NewGate() *Gate { return &Gate{open: make(chan struct{}), arrived: make(chan struct{}, 1)} }

// Open lets every call through, from now on. Idempotent.
func (g *Gate) Open() { g.once.Do(func() { close(g.open) }) }

// Arrived has something after a call has come to the gate.
func (g *Gate) Arrived() <-chan struct{} { return g.arrived }

// Waiting is how many calls stand before the gate.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting
}

// pass waits until the gate opens or the time has come, and reports whether it
// opened.
func (g *Gate) pass(s *sleeper, at time.Time) bool {
	g.count(1)
	defer g.count(-1)
	select {
	case g.arrived <- struct{}{}:
	default:
	}
	return s.until(at, g.open)
}

func (g *Gate) count(d int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting += d
}
