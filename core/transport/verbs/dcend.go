package verbs

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/transport"
)

// dcEnd is what an endpoint has beside its queue pair where its port has DC: a
// target with a key and a receive queue of its own. Connect decides which of
// the two is used, and destroys the other one. Until then receives are kept, so
// that the right one gets them.
//
// Targets are not shared, though they could be: so a receive belongs to one
// peer, as elsewhere, and a peer that was given up reaches nothing any more.
type dcEnd struct {
	port *dcPort
	mode atomic.Int32 // one of those below
	why  string       // DC is not used; since dcNotUsed

	target       libibverbs.QP  // 0: destroyed; under endpoint.changing, as srq
	srq          libibverbs.SRQ // 0: destroyed
	base, inline uintptr        // memory for C: a word of its poster, and inline data of each slot

	to    libibverbs.DCTarget // since dcUsed
	peer  *dcPeer
	queue dcQueue // under port.mu, as peer
}

const (
	dcUndecided int32 = iota
	dcUsed
	dcNotUsed
)

// inUse is whether the endpoint is not just a queue pair.
func (x *dcEnd) inUse() bool { return x != nil && x.mode.Load() != dcNotUsed }

// remark is for people.
func (x *dcEnd) remark() string {
	switch {
	case x == nil || x.mode.Load() == dcUndecided:
		return ""
	case x.mode.Load() == dcUsed:
		return " (DC)"
	}
	return " (no DC: " + x.why + ")"
}

// inlineStride is the room for the inline data of one slot.
func (t *Transport) inlineStride() uintptr { return uintptr(t.limits.InlineBytes+7) &^ 7 }

// dcBytes is the memory that DC needs of an endpoint.
func (t *Transport) dcBytes(spec transport.EndpointSpec) int64 {
	if t.dcPort == nil {
		return 0
	}
	return int64(8 + uintptr(spec.SendDepth)*t.inlineStride())
}

// createDC makes the target. If that does not work, the endpoint goes without.
// The error is of what could not be taken down again.
func (e *endpoint) createDC(spec transport.EndpointSpec, memory []byte) error {
	t := e.owner
	x := &dcEnd{port: t.dcPort, peer: newDCPeer(), queue: dcQueue{ring: make([]uint16, spec.SendDepth)}}
	e.dc, x.peer.end = x, e
	x.base = uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	x.inline = x.base + 8
	key := randomKey()
	if err := x.create(t, spec.RecvDepth, key); err != nil {
		x.why = err.Error()
		x.mode.Store(dcNotUsed)
		return x.destroy(t)
	}
	e.local.hasDC, e.local.target, e.local.targetKey = true, x.target.Num(), key
	e.recv.keeps = true
	return nil
}

func (x *dcEnd) create(t *Transport, depth int, key uint64) (err error) {
	if !x.port.works() {
		return errNoDCI
	}
	if x.srq, err = x.port.driver.createSRQ(depth, t.limits.NumPieces); err != nil {
		return err
	}
	if x.target, err = x.port.driver.createTarget(x.srq, key); err != nil {
		return err
	}
	return take(x.port.driver, x.target, t.targetSteps())
}

// randomKey is what peers have to name, so that a late packet of an earlier
// peer fits nowhere.
func randomKey() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// destroy destroys target and receive queue, as far as that has not been done.
func (x *dcEnd) destroy(t *Transport) error {
	if x.target != 0 {
		t.forgetQP(x.target, x.srq)
		if err := t.gone(t.lib.DestroyQP(x.target)); err != nil {
			return err
		}
		x.target = 0
	}
	if x.srq != 0 {
		if err := t.gone(x.port.driver.destroySRQ(x.srq)); err != nil {
			return err
		}
		x.srq = 0
	}
	return nil
}

// destroyTarget does that; under changing, or when no goroutine uses the endpoint.
func (e *endpoint) destroyTarget() error {
	if e.dc == nil {
		return nil
	}
	return e.dc.destroy(e.owner)
}

// forget frees the address handle, which no request names any more.
func (x *dcEnd) forget(t *Transport) error {
	if x == nil || x.to.AH == 0 {
		return nil
	}
	if err := t.gone(x.port.driver.DestroyAH(x.to.AH)); err != nil {
		return err
	}
	x.to.AH = 0
	return nil
}

// quiesced is whether no initiator returns any more what it has of an
// endpoint.
func (x *dcEnd) quiesced() bool {
	if !x.inUse() {
		return true
	}
	x.port.mu.Lock()
	on := x.peer.dci
	x.queue.drop(x.queue.len()) // they end with all that is outstanding
	x.port.mu.Unlock()
	if on < 0 {
		return true
	}
	i := x.port.dcis[on]
	i.changing.Lock()
	defer i.changing.Unlock()
	return i.gone
}

// connectDC makes the way to a peer's target.
func (e *endpoint) connectDC(peer address) error {
	x, t := e.dc, e.owner
	route := e.route(peer)
	ah, err := x.port.driver.CreateAH(t.pd, &route)
	if err != nil {
		return shortage(err)
	}
	x.to = libibverbs.DCTarget{AH: ah, Number: peer.target, Key: peer.targetKey}
	if err := e.dropQueuePair(); err != nil {
		return err
	}
	e.send.mu.Lock()
	e.send.keeps = true
	e.send.mu.Unlock()
	x.mode.Store(dcUsed)
	return e.recv.release(func() *libibverbs.Poster { return t.ctx.SRQPoster(x.srq, x.base) })
}

// dropQueuePair destroys the queue pair, which was never connected.
func (e *endpoint) dropQueuePair() error {
	e.changing.Lock()
	defer e.changing.Unlock()
	if e.qpGone {
		return nil
	}
	e.owner.forgetQP(e.qp, 0)
	if err := e.owner.gone(e.owner.lib.DestroyQP(e.qp)); err != nil {
		return err
	}
	e.qpGone = true
	return nil
}

// leaveDC makes the endpoint one without DC.
func (e *endpoint) leaveDC(why string) error {
	x := e.dc
	e.changing.Lock()
	err := x.destroy(e.owner)
	if err == nil && !e.qpGone && e.State() == transport.StateNew {
		x.why = why
		x.mode.Store(dcNotUsed)
	}
	e.changing.Unlock()
	if err != nil {
		return err
	}
	if err = e.recv.release(func() *libibverbs.Poster { return e.recv.poster }); err != nil {
		e.flushKept()
	}
	return err
}

// flushKept returns receives that were kept and are not posted any more.
func (e *endpoint) flushKept() {
	e.changing.Lock()
	defer e.changing.Unlock()
	if e.qpGone || e.toError() != nil {
		return
	}
	e.owner.poll.mu.Lock()
	defer e.owner.poll.mu.Unlock()
	e.recv.flushTaken()
}

// release posts the receives that were kept, and keeps no more. poster is asked for when
// it is certain that it is not taken away: code that ends the endpoint changes its state
// first, and then waits for mu.
func (s *side) release(poster func() *libibverbs.Poster) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endpoint.State() != transport.StateNew {
		return errState
	}
	s.keeps = false
	s.poster = poster()
	n := s.outstanding()
	if n == 0 {
		return nil
	}
	for i := range n - 1 { // the oldest first; none has ended yet
		s.recvWR(int(s.ring[i])).Next = s.wrs + uintptr(s.ring[i+1])*recvWRBytes
	}
	if _, errno := s.poster.Post(s.wrs + uintptr(s.ring[0])*recvWRBytes); errno != 0 {
		return fmt.Errorf("post on %s: %w", s.endpoint.owner.device, errno)
	}
	return nil
}

// keep takes the first n requests of the chain into their places, which keep them. Those
// to be sent go into the queue for initiators.
func (s *side) keep(n int) {
	for range n {
		index, _ := s.slots.at(0)
		s.take(1)
		if s == s.endpoint.send {
			x := s.endpoint.dc
			x.port.mu.Lock()
			x.queue.push(index)
			x.port.mu.Unlock()
		}
	}
}

// keepInline copies the pieces of a slot's request: it may have to wait, and
// their memory is the caller's again.
func (s *side) keepInline(slot int, numSGE int32) int32 {
	x, t := s.endpoint.dc, s.endpoint.owner
	at := x.inline + uintptr(slot)*t.inlineStride()
	room := unsafe.Slice(dl.At[byte](at), t.limits.InlineBytes)
	n := 0
	for k := range uintptr(numSGE) {
		piece := dl.At[libibverbs.SGE](s.sge(slot) + k*sgeBytes)
		n += copy(room[n:], unsafe.Slice(dl.At[byte](uintptr(piece.Addr)), piece.Length))
	}
	*dl.At[libibverbs.SGE](s.sge(slot)) = libibverbs.SGE{Addr: uint64(at), Length: uint32(n)}
	return min(numSGE, 1)
}

// pump hands over what waits.
func (e *endpoint) pump() {
	d := e.dc.port
	d.mu.Lock()
	after := d.post(e)
	d.mu.Unlock()
	d.do(after)
}

// flushDC is flush without a queue pair. The initiator returns the requests that it has.
// The requests that wait for one, and the receives, are returned here, once nothing can
// reach them any more. Under changing.
func (e *endpoint) flushDC() error {
	t := e.owner
	err := e.dc.port.cut(e)
	e.send.flushQueue(&e.dc.queue)
	if more := e.dc.destroy(t); more != nil {
		return errors.Join(err, more)
	}
	t.poll.mu.Lock()
	defer t.poll.mu.Unlock()
	e.recv.flushTaken()
	return err
}

// flushQueue leaves what waits for an initiator to Poll, as flushed.
func (s *side) flushQueue(q *dcQueue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mu := &s.endpoint.dc.port.mu
	mu.Lock()
	defer mu.Unlock()
	n := q.len()
	for i := range n {
		s.unsent[(s.written.Load()+uint64(i))%uint64(len(s.unsent))] = uint16(q.at(i))
	}
	q.drop(n)
	s.written.Add(uint64(n))
	t := s.endpoint.owner
	t.poll.unsent.Add(int64(n))
	t.Wake()
}
