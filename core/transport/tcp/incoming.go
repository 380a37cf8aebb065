package tcp

import (
	"github.com/moewire/moewire/core/transport"
)

// recvOp is a receive that was posted.
type recvOp struct {
	id     uint64
	pieces [numPieces]transport.Piece
	num    int
	room   int
	busy   bool // a request of the peer uses it up
	done   bool
	op     transport.Opcode
	imm    uint32
	bytes  int
}

// inOp is a request of the peer that is being carried out.
type inOp struct {
	m            message // its first
	active, done bool
	unasked      int // bytes that no message has announced yet
	left         int // bytes that have not landed
}

// readJob is a read of the peer that is being answered.
type readJob struct {
	m    message
	sent int
}

// incoming are the receives that have not completed, head to tail, and the
// requests of the peer, from base.
type incoming struct {
	recvs      []recvOp
	head, tail uint64
	used       uint64 // receives that requests use up, in total

	ops  []inOp // as many as the peer's SendDepth
	base uint64 // all before are carried out: the acknowledgement

	reads              []readJob
	firstRead, endRead uint64

	sentAck, sentCredit uint64
}

func (in *incoming) init(depth int) { in.recvs = make([]recvOp, depth) }

// expect prepares for a peer that has at most depth requests outstanding.
func (in *incoming) expect(depth int) {
	in.ops = make([]inOp, depth)
	in.reads = make([]readJob, depth)
}

func (in *incoming) reset() { in.firstRead = in.endRead }

func (in *incoming) at(n uint64) *recvOp { return &in.recvs[n%uint64(len(in.recvs))] }

func (in *incoming) outstanding() int { return int(in.tail - in.head) }

// shouldGrant reports whether the peer should hear soon of receives that were
// posted: it has few left, or there are many new ones.
func (in *incoming) shouldGrant() bool {
	few := uint64(len(in.recvs) / 4)
	return in.tail != in.sentCredit &&
		(in.sentCredit-min(in.sentCredit, in.used) <= few || in.tail-in.sentCredit > few)
}

// isDue reports whether a message without other purpose is due.
func (in *incoming) isDue() bool { return in.base != in.sentAck || in.shouldGrant() }

// queueRecv checks a receive and takes it; the caller holds mu.
func (ep *endpoint) queueRecv(r *transport.RecvRequest) error {
	if ep.closed {
		return ep.wrongState("PostRecv")
	}
	in := &ep.in
	if int64(in.tail-in.head)+ep.unpolledRecvs.Load() >= int64(ep.spec.RecvDepth) {
		return transport.ErrWouldBlock
	}
	op := in.at(in.tail)
	num, total, err := ep.t.piecesOf(&op.pieces, r.Local)
	if err != nil {
		return err
	}
	op.id, op.num, op.room = r.ID, num, int(total)
	op.busy, op.done, op.op, op.imm, op.bytes = false, false, transport.OpRecv, 0, 0
	in.tail++
	if ep.is(transport.StateError) {
		ep.completeRecv(op, transport.StatusFlushed)
	}
	return nil
}

// completeRecv ends the oldest receive; the caller holds mu.
func (ep *endpoint) completeRecv(op *recvOp, status transport.Status) {
	c := transport.Completion{ID: op.id, Endpoint: ep.id, Op: op.op, Status: status}
	if status == transport.StatusOK {
		c.NumBytes = uint32(op.bytes)
		c.HasImm, c.Imm = op.op == transport.OpRecvImm, op.imm
	}
	release(op.pieces[:op.num])
	op.num = 0
	ep.in.head++
	ep.unpolledRecvs.Add(1)
	ep.t.done.push(c, ep)
}

// action is what becomes of a message.
type action int

const (
	place     action = iota // its payload goes to dst, or it has none
	refuse                  // the request is not possible
	violation               // no peer says this
)

// begin looks at a message that asks for something, before its payload; the
// caller holds mu. Of a write it returns the region that the payload goes to.
func (ep *endpoint) begin(m *message, n int, dst [][]byte) (list [][]byte, r *region, v action) {
	op := ep.in.find(m)
	if op == nil || n > op.unasked {
		return dst, nil, violation
	}
	op.unasked -= n // segments that overlap would land after the end
	switch m.code {
	case codeRead:
		return dst, nil, ep.beginRead(m, op)
	case codeSend:
		list, v = ep.in.placeSend(m, n, dst)
		return list, nil, v
	}
	if m.total == 0 {
		return dst, nil, place
	}
	r = ep.t.target(m.key, m.off, uint64(m.total), transport.AccessWrite)
	if r == nil {
		return dst, nil, refuse
	}
	return append(dst, r.mem[m.off+uint64(m.at):][:n]), r, place
}

// find gives the place of a request, and makes it if this is its first
// message; nil if there can be no such request.
func (in *incoming) find(m *message) *inOp {
	if m.op < in.base || m.op-in.base >= uint64(len(in.ops)) {
		return nil
	}
	op := &in.ops[m.op%uint64(len(in.ops))]
	if op.active {
		same := op.m.code == m.code && op.m.total == m.total && op.m.recv == m.recv &&
			op.m.key == m.key && op.m.off == m.off && op.m.imm == m.imm
		if op.done || !same {
			return nil
		}
		return op
	}
	if m.code == codeSend || m.code == codeWriteImm {
		if m.recv < in.head || m.recv >= in.tail || in.at(m.recv).busy {
			return nil
		}
		in.at(m.recv).busy = true
		in.used++
	}
	*op = inOp{m: *m, active: true, unasked: int(m.total), left: int(m.total)}
	return op
}

func (in *incoming) placeSend(m *message, n int, dst [][]byte) ([][]byte, action) {
	op := in.at(m.recv)
	if int(m.total) > op.room {
		return dst, refuse
	}
	return slicesOf(dst, op.pieces[:op.num], int(m.at), n), place
}

// beginRead queues the answer. The read counts as carried out: its bytes tell the peer
// that it is complete.
func (ep *endpoint) beginRead(m *message, op *inOp) action {
	in := &ep.in
	if m.total != 0 && ep.t.target(m.key, m.off, uint64(m.total), transport.AccessRead) == nil {
		return refuse
	}
	if in.endRead-in.firstRead == uint64(len(in.reads)) {
		return violation
	}
	in.reads[in.endRead%uint64(len(in.reads))] = readJob{m: *m}
	in.endRead++
	op.left = 0
	return place
}

// landed notes that n bytes of a request have arrived and are genuine; the
// caller holds mu.
func (ep *endpoint) landed(m *message, n int) {
	in := &ep.in
	op := &in.ops[m.op%uint64(len(in.ops))]
	op.left -= n
	if op.left != 0 {
		return
	}
	op.done = true
	if m.code == codeSend || m.code == codeWriteImm {
		ep.received(m)
	}
	for in.ops[in.base%uint64(len(in.ops))].done {
		in.ops[in.base%uint64(len(in.ops))] = inOp{}
		in.base++
	}
}

// received completes receives, in the order in which they were posted.
func (ep *endpoint) received(m *message) {
	in := &ep.in
	op := in.at(m.recv)
	op.done, op.bytes = true, int(m.total)
	if m.code == codeWriteImm {
		op.op, op.imm = transport.OpRecvImm, m.imm
	}
	for in.head != in.tail && in.at(in.head).done {
		ep.completeRecv(in.at(in.head), transport.StatusOK)
	}
}

// nextRead makes the next message that answers a read, but for its payload;
// the caller holds mu.
func (in *incoming) nextRead(m *message, most int) (n int, ok bool) {
	if in.firstRead == in.endRead {
		return 0, false
	}
	job := &in.reads[in.firstRead%uint64(len(in.reads))]
	n = min(int(job.m.total)-job.sent, most)
	*m = job.m
	m.code, m.at = codeReadData, uint32(job.sent)
	job.sent += n
	if job.sent == int(job.m.total) {
		in.firstRead++
	}
	return n, true
}
