package shmem

import (
	"crypto/rand"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// Endpoint is one end of a connection.
//
// Its requests are run by one goroutine at a time: one that posts, up to a limit, or one
// that polls. Copies are made without the lock, in chunks. Before each, this side says
// what it is about to touch, then checks that it still may. The peer that takes something
// back says so, and then checks that it is not being touched. So one of the two always
// notices.
type Endpoint struct {
	t    *Transport
	id   transport.EndpointID
	slot uint32
	name nonce
	lane *shared

	state                          atomic.Uint32 // written under the lock
	touching, starved, posted, end *atomic.Uint64

	met     chan error    // what became of connecting; for Connect
	aborted chan struct{} // closed with StateError

	mu         sync.Mutex
	connecting bool
	wanted     *address // the peer, once Connect was called
	offers     []*offer // that came before
	conn       *conn
	peer       *peer

	running   bool // a goroutine runs the requests
	again     bool // and shall look once more
	executing int  // the slot of a send in the middle of a copy, or -1
	sends     slots
	recvs     slots
	direct    ring[int] // writes and reads that have not ended
	matched   ring[int] // sends and writes with immediate
	waiting   ring[int] // receives that the peer may use
	finished  ring[finished]
	match     receiveOf // for the first of matched
	hasMatch  bool
	numTaken  uint64 // receives of the peer that were used up
	window    uint64 // of the ring of receives
	numPosted uint64 // receives
	numEnded  uint64 // of those
	settled   bool   // in StateError: nothing is left with the peer

	failure string // why the endpoint failed by itself, until the event was polled

	local, remote spans // of the copy in progress
}

func newEndpoint(t *Transport, slot uint32, spec transport.EndpointSpec) (*Endpoint, error) {
	lane, err := newShared("moewire-lane", laneBytes)
	if err != nil {
		return nil, fmt.Errorf("new endpoint: %w: %w", transport.ErrNoResource, err)
	}
	e := &Endpoint{
		t: t, slot: slot, lane: lane, executing: -1, met: make(chan error, 1), aborted: make(chan struct{}),
		sends: newSlots(spec.SendDepth, true), recvs: newSlots(spec.RecvDepth, false),
		direct: newRing[int](spec.SendDepth), matched: newRing[int](spec.SendDepth),
		waiting: newRing[int](spec.RecvDepth), finished: newRing[finished](spec.SendDepth + spec.RecvDepth),
	}
	rand.Read(e.name[:]) // never fails
	e.touching, e.starved = e.word(laneTouchingOff), e.word(laneStarvedOff)
	e.posted, e.end = e.word(lanePostedOff), e.word(laneEndedOff)
	e.word(laneMagicOff).Store(laneMagic)
	e.window = 1 << bits.Len(uint(spec.RecvDepth-1))
	e.word(laneWindowOff).Store(e.window)
	return e, nil
}

func (e *Endpoint) word(off int64) *atomic.Uint64 { return sys.Word(e.lane.Bytes(), off) }

// ID names the endpoint.
func (e *Endpoint) ID() transport.EndpointID { return e.id }

// State is where it is in its life.
func (e *Endpoint) State() transport.EndpointState { return transport.EndpointState(e.state.Load()) }

// Local is the address.
func (e *Endpoint) Local() []byte {
	return address{listener: e.t.name, endpoint: e.name, slot: e.slot}.encode()
}

// setState tells the peer, too. Under the lock.
func (e *Endpoint) setState(s transport.EndpointState) {
	e.state.Store(uint32(s))
	e.word(laneStateOff).Store(uint64(s))
	e.ringPeer()
}

// ringPeer tells the peer that there is news. Under the lock, or running.
func (e *Endpoint) ringPeer() {
	if e.peer != nil {
		e.peer.bell.ring(e.peer.slot)
	}
}

// Retire moves the endpoint to StateError. If the peer is in the middle of a
// copy into a receive, the receives' completions come when it is done, or dead.
func (e *Endpoint) Retire() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enterError()
	return nil
}

// fail is enterError by itself, which is reported. Under the lock.
func (e *Endpoint) fail(why string) {
	if e.State() >= transport.StateError {
		return
	}
	e.enterError()
	e.failure = why
	e.t.failed.set(e.slot)
	e.t.bell.wake()
}

// lose is fail when the peer is gone: the oldest request says so. Under the
// lock.
func (e *Endpoint) lose(why string) {
	if e.State() >= transport.StateError {
		return
	}
	for _, q := range []*ring[int]{&e.direct, &e.matched} {
		if q.num > 0 && q.front() != e.executing {
			e.finishSend(q.pop(), transport.StatusUnreachable, vendorNone)
			break
		}
	}
	e.fail(why)
}

// enterError moves to StateError and flushes. Under the lock.
func (e *Endpoint) enterError() {
	if e.State() >= transport.StateError {
		return
	}
	e.setState(transport.StateError)
	close(e.aborted)
	for _, q := range []*ring[int]{&e.direct, &e.matched} {
		for q.num > 0 {
			if i := q.pop(); i != e.executing { // that one ends with its copy
				e.finishSend(i, transport.StatusFlushed, vendorNone)
			}
		}
	}
	e.settle()
}

// settle ends receives in StateError, once the peer does not touch them. Under
// the lock.
func (e *Endpoint) settle() {
	if e.settled || e.peerTouches() {
		return
	}
	e.settled = true
	if e.peer != nil {
		_ = e.harvest() // what is nonsense is flushed
	}
	for e.waiting.num > 0 {
		e.finishRecv(e.waiting.pop(), transport.Completion{Op: transport.OpRecv, Status: transport.StatusFlushed})
	}
}

// peerTouches says whether the peer is in the middle of a copy. Under the
// lock.
func (e *Endpoint) peerTouches() bool {
	return e.peer != nil && !e.peer.gone && e.peer.touching.Load() != 0
}

// Close unmaps what there is of the peer and frees the endpoint. It gives
// ErrBusy, too, when the peer is still in the middle of a copy after a second
// (a process that was stopped): what it touches is in use then.
func (e *Endpoint) Close() error {
	closing := within(grace, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.state.Load() < uint32(transport.StateError) || !e.peerTouches() && !e.running
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.State() == transport.StateClosed {
		return nil
	}
	outstanding := e.sends.numUsed() + e.recvs.numUsed()
	if !closing || outstanding > 0 || e.State() == transport.StateReady || e.connecting || e.running || e.peerTouches() {
		return fmt.Errorf("endpoint in state %d has %d outstanding completions, or is being used: %w", e.State(), outstanding, transport.ErrBusy)
	}
	e.free()
	return nil
}

// free releases everything. Under the lock; no goroutine runs the endpoint.
func (e *Endpoint) free() {
	if e.State() < transport.StateError {
		close(e.aborted)
	}
	e.setState(transport.StateClosed)
	for _, o := range e.offers {
		e.t.connManager.drop(o.conn)
		o.peer.close()
	}
	e.t.connManager.drop(e.conn)
	e.peer.close()
	e.offers, e.conn, e.peer = nil, nil, nil
	e.t.forget(e)
	_ = e.lane.close() // cannot fail: it is mapped
}
