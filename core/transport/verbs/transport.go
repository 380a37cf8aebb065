package verbs

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/transport"
)

// Transport is one port of one device.
type Transport struct {
	lib     *libibverbs.Library
	config  Config
	device  string
	port    uint8
	dc      DC
	dcPort  *dcPort // nil: no DC
	member  uint8   // which of its group's ports it is, from 0
	limits  transport.Limits
	ctx     libibverbs.Context
	pd      libibverbs.PD
	channel libibverbs.CompChannel
	cq      libibverbs.CQ

	maxRegionBytes uint64
	readsUnderWay  uint8 // that one queue pair may start
	numCompletions int   // room in the queue

	// place is where the port is in its network; events change it.
	placeMu sync.Mutex
	place   address
	gid     uint8

	// table has the endpoints by index. Entries are written under mu; the
	// poller reads them without.
	table  []atomic.Pointer[endpoint]
	lastID atomic.Uint64

	mu           sync.Mutex
	free         []int // indices that are not in use
	reserved     int   // completions that open endpoints may have outstanding
	byQP         map[libibverbs.QP]*endpoint
	bySRQ        map[libibverbs.SRQ]*endpoint
	numEndpoints int
	calls        int // Register and NewEndpoint under way
	closing      bool

	numRegions atomic.Int64
	down       atomic.Bool
	losses     atomic.Uint64          // how often it went down
	why        atomic.Pointer[string] // it is down
	fatal      atomic.Bool
	closed     atomic.Bool
	strays     atomic.Uint64

	poll   poll
	wait   waiter
	events events
}

// ConnectsUnproven marks a carrier that connects to any address that it is given: the
// identity of the peer is not proven.
func (t *Transport) ConnectsUnproven() {}

// Name is the carrier's.
func (t *Transport) Name() string { return "verbs" }

// Device names the device and its port, as "mlx5_0/1".
func (t *Transport) Device() string { return fmt.Sprintf("%s/%d", t.device, t.port) }

// Limits are the configuration's, less what the device cannot do.
func (t *Transport) Limits() transport.Limits { return t.limits }

// enter keeps the device open until leave.
func (t *Transport) enter() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closing {
		return transport.ErrClosed
	}
	t.calls++
	return nil
}

func (t *Transport) leave() {
	t.mu.Lock()
	t.calls--
	t.mu.Unlock()
}

// reserve takes a place in the table and room for the endpoint's completions,
// before anything is made.
func (t *Transport) reserve(e *endpoint, spec transport.EndpointSpec) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.free) == 0 {
		return fmt.Errorf("new endpoint: NumEndpoints is %d: %w", t.limits.NumEndpoints, transport.ErrWouldBlock)
	}
	need := spec.SendDepth + spec.RecvDepth
	if t.reserved+need > t.numCompletions {
		return fmt.Errorf("new endpoint: %d of %d completions are spoken for (NumCompletions), depths of %d do not fit: %w",
			t.reserved, t.numCompletions, need, transport.ErrNoResource)
	}
	t.reserved += need
	t.numEndpoints++
	last := len(t.free) - 1
	e.index = t.free[last]
	t.free = t.free[:last]
	return nil
}

// unreserve returns what reserve took.
func (t *Transport) unreserve(e *endpoint, depths int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reserved -= depths
	t.numEndpoints--
	t.free = append(t.free, e.index)
}

// publish makes the poller and the events find an endpoint.
func (t *Transport) publish(e *endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byQP[e.qp] = e
	if e.dc.inUse() {
		t.byQP[e.dc.target], t.bySRQ[e.dc.srq] = e, e
	}
	t.table[e.index].Store(e)
}

// withdraw ends that.
func (t *Transport) withdraw(e *endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byQP, e.qp)
	t.table[e.index].Store(nil)
}

// forgetQP makes events not find the endpoint of a queue pair, which is about
// to be destroyed: its address may be another one's soon.
func (t *Transport) forgetQP(qp libibverbs.QP, srq libibverbs.SRQ) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byQP, qp)
	delete(t.bySRQ, srq)
}

// ofSRQ is ofQP for a shared receive queue.
func (t *Transport) ofSRQ(srq libibverbs.SRQ) *endpoint {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bySRQ[srq]
}

// ofQP is the endpoint of a queue pair, nil if it is being destroyed.
func (t *Transport) ofQP(qp libibverbs.QP) *endpoint {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byQP[qp]
}

// here is where this transport's queue pairs are now, and the entry of the
// port's table of addresses that says so.
func (t *Transport) here() (place address, gid uint8) {
	t.placeMu.Lock()
	defer t.placeMu.Unlock()
	return t.place, t.gid
}

// Close closes the device.
func (t *Transport) Close() error {
	if err := t.stop(); err != nil {
		return err
	}
	if t.closed.Swap(true) {
		return nil
	}
	t.wait.stop()
	t.poll.stop()
	t.events.stop()
	return t.destroy()
}

// whyDown says why the port is not usable, "" if it is.
func (t *Transport) whyDown() string {
	if why := t.why.Load(); why != nil && t.down.Load() {
		return *why
	}
	return ""
}

// isIdle is whether all endpoints are closed.
func (t *Transport) isIdle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.numEndpoints == 0
}

// busy is what keeps Close from closing.
func (t *Transport) busy() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.numEndpoints > 0 || t.calls > 0 {
		return fmt.Errorf("close %s: %d endpoints are not closed, %d calls are under way: %w",
			t.device, t.numEndpoints, t.calls, transport.ErrBusy)
	}
	return nil
}

// stop refuses what would make something new, unless something is left.
func (t *Transport) stop() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.numEndpoints > 0 || t.numRegions.Load() > 0 || t.calls > 0 {
		return fmt.Errorf("close %s: %d endpoints and %d regions are not closed, %d calls are under way: %w",
			t.device, t.numEndpoints, t.numRegions.Load(), t.calls, transport.ErrBusy)
	}
	t.closing = true
	return nil
}

// destroy frees what New made, in the opposite order, as far as it got.
func (t *Transport) destroy() error {
	var first error
	keep := func(err error) {
		if err = t.gone(err); first == nil && err != nil {
			first = fmt.Errorf("close %s: %w", t.device, err)
		}
	}
	keep(t.closeDC())
	if t.cq != 0 {
		keep(t.lib.DestroyCQ(t.cq))
	}
	if t.channel != 0 {
		keep(t.lib.DestroyCompChannel(t.channel))
	}
	if t.pd != 0 {
		keep(t.lib.DeallocPD(t.pd))
	}
	keep(t.wait.free())
	if t.poll.memory != nil {
		keep(t.poll.memory.Unmap())
	}
	if t.ctx != 0 {
		keep(t.lib.CloseDevice(t.ctx))
	}
	return first
}

var _ transport.Transport = (*Transport)(nil)
