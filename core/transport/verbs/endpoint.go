package verbs

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// endpoint is one queue pair. Its states, with those of the queue pair:
//
//	StateNew (INIT) -> StateReady (RTS) -> StateError (ERR) -> StateClosed
//	StateNew -> StateError, StateNew -> StateClosed
type endpoint struct {
	owner *Transport
	id    transport.EndpointID
	index int // in the owner's table
	qp    libibverbs.QP
	local address
	gid   uint8 // entry of the port's table that local.gid is from

	peerMember uint8 // which of the peer's ports; since wasReady

	state     atomic.Int32 // a transport.EndpointState
	connected atomic.Bool  // Connect was called
	wasReady  atomic.Bool
	retired   atomic.Bool

	dc *dcEnd // nil: the port has no DC

	memory     *sys.Mapping // what the sides' arrays lie in
	send, recv *side

	// changing is held while the queue pair is moved to its error state: it
	// exists until the state is StateClosed and this has been free once.
	changing  sync.Mutex
	destroyed bool // by abandon, under changing
	qpGone    bool // the queue pair is destroyed, under changing

	closing sync.Mutex // one Close at a time
	freed   bool
}

// NewEndpoint makes a queue pair, which waits for Connect and takes receives.
func (t *Transport) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	if spec.SendDepth < 1 || spec.SendDepth > t.limits.SendDepth {
		return nil, fmt.Errorf("new endpoint: SendDepth is %d, must be 1 to %d", spec.SendDepth, t.limits.SendDepth)
	}
	if spec.RecvDepth < 1 || spec.RecvDepth > t.limits.RecvDepth {
		return nil, fmt.Errorf("new endpoint: RecvDepth is %d, must be 1 to %d", spec.RecvDepth, t.limits.RecvDepth)
	}
	if err := t.enter(); err != nil {
		return nil, err
	}
	defer t.leave()
	if t.down.Load() {
		return nil, fmt.Errorf("new endpoint: %s is down: %w", t.device, transport.ErrNoResource)
	}
	e := &endpoint{owner: t, id: transport.EndpointID(t.lastID.Add(1))}
	if err := t.reserve(e, spec); err != nil {
		return nil, err
	}
	if err := e.create(spec); err != nil {
		t.unreserve(e, spec.SendDepth+spec.RecvDepth)
		return nil, err
	}
	t.publish(e)
	switch { // lost meanwhile
	case t.fatal.Load():
		e.abandon(t.Device() + ": it was removed")
	case t.down.Load() && e.fail(t.Device()+": port is down"):
		_ = e.flush() // Retire does it again, and reports
	}
	return e, nil
}

// create makes the queue pair and what belongs to it, or nothing.
func (e *endpoint) create(spec transport.EndpointSpec) (err error) {
	t := e.owner
	half := sideBytes(t.numWRs(spec), t.limits.NumPieces)
	if e.memory, err = sys.MapAnonymous(2*half + t.dcBytes(spec)); err != nil {
		return fmt.Errorf("new endpoint: %w: %w", transport.ErrNoResource, err)
	}
	if e.qp, err = t.createQP(spec, t.limits.InlineBytes); err != nil {
		return errors.Join(err, e.memory.Unmap())
	}
	if err := e.toInit(); err != nil {
		return errors.Join(err, t.lib.DestroyQP(e.qp), e.memory.Unmap())
	}
	e.send = newSide(e, false, spec, e.memory.Bytes()[:half])
	e.recv = newSide(e, true, spec, e.memory.Bytes()[half:2*half])
	e.local, e.gid = t.here()
	e.local.member, e.local.qpNumber, e.local.psn = t.member, e.qp.Num(), randomPSN()
	if t.dcPort == nil {
		return nil
	}
	if err := e.createDC(spec, e.memory.Bytes()[2*half:]); err != nil {
		return errors.Join(err, t.lib.DestroyQP(e.qp), e.memory.Unmap())
	}
	return nil
}

// createQP makes a queue pair of the transport's queue.
func (t *Transport) createQP(spec transport.EndpointSpec, inline int) (libibverbs.QP, error) {
	qp, err := t.lib.CreateQP(t.pd, &libibverbs.QPInitAttr{
		SendCQ: t.cq,
		RecvCQ: t.cq,
		QPType: libibverbs.QPTypeRC,
		Cap: libibverbs.QPCap{
			MaxSendWR:     uint32(spec.SendDepth),
			MaxRecvWR:     uint32(spec.RecvDepth),
			MaxSendSGE:    uint32(t.limits.NumPieces),
			MaxRecvSGE:    uint32(t.limits.NumPieces),
			MaxInlineData: uint32(inline),
		},
	})
	if err != nil && isShortage(err) {
		return 0, fmt.Errorf("new endpoint on %s: %w: %w", t.device, transport.ErrNoResource, err)
	}
	if err != nil {
		return 0, fmt.Errorf("new endpoint on %s: %w", t.device, err)
	}
	return qp, nil
}

// randomPSN is where packets begin to count: somewhere else each time, so that
// no packet of an earlier connection fits.
func randomPSN() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint32(b[:]) & libibverbs.MaxPSN
}

// Device names the port that the endpoint is on, for people, and where DC was
// asked for, whether it is used.
func (e *endpoint) Device() string { return e.owner.Device() + e.dc.remark() }

// ID names the endpoint.
func (e *endpoint) ID() transport.EndpointID { return e.id }

// State is the present state.
func (e *endpoint) State() transport.EndpointState {
	return transport.EndpointState(e.state.Load())
}

// move changes the state, if it is still what the caller saw.
func (e *endpoint) move(from, to transport.EndpointState) bool {
	return e.state.CompareAndSwap(int32(from), int32(to))
}

// Local is what the peer's Connect needs.
func (e *endpoint) Local() []byte { return e.local.encode() }

// Retire moves the endpoint to StateError.
func (e *endpoint) Retire() error {
	for {
		s := e.State()
		if s == transport.StateClosed || e.retired.Load() {
			return nil
		}
		if s == transport.StateError || e.move(s, transport.StateError) {
			break
		}
	}
	if err := e.flush(); err != nil {
		return err // it may be tried again
	}
	e.retired.Store(true)
	return nil
}

// flush makes the device complete everything that was posted before the state became
// StateError; later posts do not reach it. Devices do that by themselves when they fail a
// request. But some (soft-RoCE) do not do it for requests that are posted between that
// failure and the moment when it is noticed here.
func (e *endpoint) flush() error {
	passed(&e.send.mu) // a post that saw the old state is over now
	passed(&e.recv.mu)
	e.changing.Lock()
	defer e.changing.Unlock()
	switch {
	case e.State() == transport.StateClosed || e.destroyed:
		return nil
	case e.dc.inUse():
		return e.flushDC()
	}
	return e.toError()
}

// abandon ends an endpoint when its device gives no more completions. Once the queue pair
// is destroyed no byte of it moves, so what is outstanding can be returned as flushed. If
// it cannot be destroyed, that stays with the device.
func (e *endpoint) abandon(detail string) {
	e.fail(detail)
	passed(&e.send.mu) // a post that saw the old state is over now
	passed(&e.recv.mu)
	e.changing.Lock()
	defer e.changing.Unlock()
	if e.State() == transport.StateClosed || e.destroyed {
		return
	}
	t := e.owner
	if e.destroyQueues() != nil || !e.dc.quiesced() {
		return
	}
	e.destroyed = true
	t.poll.mu.Lock()
	defer t.poll.mu.Unlock()
	e.send.flushTaken()
	e.recv.flushTaken()
}

// fail notes that the device moved the queue pair to its error state. The
// caller calls flush soon, when it holds no lock, if this was the first failure.
func (e *endpoint) fail(detail string) (first bool) {
	for {
		s := e.State()
		if s != transport.StateNew && s != transport.StateReady {
			return false
		}
		if e.move(s, transport.StateError) {
			break
		}
	}
	e.owner.report(transport.Event{Kind: transport.EventEndpointFailed, Endpoint: e.id, Detail: detail})
	return true
}

// outstanding is the number of completions that have not come.
func (e *endpoint) outstanding() int { return e.send.outstanding() + e.recv.outstanding() }

// Close destroys the queue pair.
func (e *endpoint) Close() error {
	e.closing.Lock()
	defer e.closing.Unlock()
	if e.freed {
		return nil
	}
	if err := e.shut(); err != nil {
		return err
	}
	// No caller posts any more, and every completion has been polled.
	passed(&e.changing) // a flush under way is over now
	t := e.owner
	t.withdraw(e)
	if err := errors.Join(e.destroyQueues(), e.dc.forget(t)); err != nil {
		return err
	}
	e.freed = true
	t.unreserve(e, len(e.send.all)+len(e.recv.all))
	return e.memory.Unmap()
}

// destroyQueues destroys the queue pair, and what DC has for one, as far as
// that has not been done.
func (e *endpoint) destroyQueues() error {
	t := e.owner
	if !e.qpGone {
		t.forgetQP(e.qp, 0)
		if err := t.gone(t.lib.DestroyQP(e.qp)); err != nil {
			return err
		}
		e.qpGone = true
	}
	return e.destroyTarget()
}

// shut makes the endpoint refuse posts, if nothing is outstanding.
func (e *endpoint) shut() error {
	e.send.mu.Lock()
	defer e.send.mu.Unlock()
	e.recv.mu.Lock()
	defer e.recv.mu.Unlock()
	if n := e.outstanding(); n > 0 {
		return fmt.Errorf("close endpoint: %d completions have not been polled: %w", n, transport.ErrBusy)
	}
	if e.wasReady.Load() && !e.retired.Load() {
		return fmt.Errorf("close endpoint: it has not been retired: %w", transport.ErrBusy)
	}
	e.state.Store(int32(transport.StateClosed))
	return nil
}

// passed waits until the present holder of mu has released it.
func passed(mu *sync.Mutex) {
	mu.Lock()
	defer mu.Unlock()
}
