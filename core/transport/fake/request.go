package fake

import (
	"time"

	"github.com/moewire/moewire/core/transport"
)

// stage is how far a request has come.
type stage uint8

const (
	stageFree    stage = iota
	stageWaiting       // a receive that nothing has come for
	stageWire          // its bytes have not moved
	stageDone          // they have, or never will: the completion is on its way
	stageQueued        // the completion can be polled
	stageLost          // the completion will never come
)

// request is one work request, in a slot of its endpoint.
type request struct {
	ep       *Endpoint
	recv     bool
	stage    stage
	id       uint64
	op       transport.Opcode
	pieces   []transport.Piece
	inline   []byte
	isInline bool
	imm      uint32
	hasImm   bool
	numBytes int64
	remote   transport.RemoteRegion
	off      uint64
	status   transport.Status
	vendor   uint32
	dropped  bool // by the wire: there is no answer

	numChunks  int // that have moved
	firstChunk int

	notBefore time.Time // the next step
	unheard   time.Time // when it was first left without an answer
	unmatched time.Time // when it first found no receive
	order     uint64    // of posting, on its endpoint
	index     int       // in Network.active
	struck    bool      // faults at its completion were looked up
	duplicate bool
}

// finished is what Poll returns; request is nil when it was reported before.
type finished struct {
	completion transport.Completion
	request    *request
}

// slots holds the requests of one side of an endpoint.
type slots struct {
	all  []request
	free []*request
	next uint64
}

func (s *slots) init(e *Endpoint, depth int) {
	s.all = make([]request, depth)
	s.free = make([]*request, depth)
	for i := range s.all {
		s.all[i].ep = e
		s.free[i] = &s.all[i]
	}
}

func (s *slots) inUse() int { return len(s.all) - len(s.free) }

// take returns a slot, nil if there is none.
func (s *slots) take() *request {
	if len(s.free) == 0 {
		return nil
	}
	r := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	*r = request{ep: r.ep, pieces: r.pieces[:0], inline: r.inline[:0], order: s.next, index: -1}
	s.next++
	return r
}

func (r *request) fillSend(q *transport.SendRequest, numBytes int64) {
	r.id, r.op, r.imm, r.numBytes = q.ID, q.Op, q.Imm, numBytes
	r.remote, r.off, r.isInline = q.Remote, q.RemoteOff, q.Inline
	r.hold(q.Local)
	if r.isInline {
		for _, p := range q.Local {
			r.inline = append(r.inline, p.Region.Bytes()[p.Off:p.Off+p.Bytes]...)
		}
	}
}

func (r *request) fillRecv(q *transport.RecvRequest, numBytes int64) {
	r.recv, r.id, r.op, r.numBytes = true, q.ID, transport.OpRecv, numBytes
	r.hold(q.Local)
}

// hold keeps the regions from being closed until the completion was polled.
func (r *request) hold(pieces []transport.Piece) {
	r.pieces = append(r.pieces, pieces...)
	for _, p := range pieces {
		p.Region.(*Region).numUses++
	}
}

// depart puts a request on the wire.
func (r *request) depart() {
	n := r.ep.transport.network
	r.stage = stageWire
	if f := n.strike(AtWire, r.ep.transport, r.ep.id, r.op); f != nil {
		r.notBefore = n.now().Add(n.delay(f))
		r.dropped = f.Drop
		r.status, r.vendor = f.Status, f.Vendor
	}
	n.activate(r)
}

// finish gives a request its status; its completion is on its way. A status
// that is not OK fails the endpoint.
func (r *request) finish(s transport.Status) {
	n := r.ep.transport.network
	r.stage, r.status = stageDone, s
	n.activate(r)
	if s != transport.StatusOK {
		r.ep.fail("a work request failed")
	}
}

// flush ends a request because its endpoint is in StateError. If its bytes have moved,
// the status may say so or not: the answer was on its way.
func (r *request) flush() {
	if r.stage == stageDone && (r.status != transport.StatusOK || r.ep.transport.network.rand.Uint32()&1 == 0) {
		return
	}
	r.lateWrites()
	r.stage, r.status = stageDone, transport.StatusFlushed
	r.ep.transport.network.activate(r)
}

// polled frees the slot.
func (r *request) polled() {
	for _, p := range r.pieces {
		p.Region.(*Region).numUses--
	}
	clear(r.pieces)
	r.stage = stageFree
	e := r.ep
	s := &e.sends
	if r.recv {
		s = &e.recvs
	}
	s.free = append(s.free, r)
	e.counts.Polled++
	e.transport.counts.Polled++
}

// gather calls f with the bytes of the pieces, in order.
func (r *request) gather(f func(src []byte)) {
	if r.isInline {
		f(r.inline)
		return
	}
	for _, p := range r.pieces {
		f(p.Region.Bytes()[p.Off : p.Off+p.Bytes])
	}
}
