package tcp

import (
	"fmt"

	"github.com/moewire/moewire/core/transport"
)

// sendOp is a request of this side.
type sendOp struct {
	id     uint64
	op     transport.Opcode
	pieces [numPieces]transport.Piece
	num    int
	inline []byte // room for inline data
	total  int
	sent   int // bytes that are on their way
	asked  int // OpRead: bytes that a message has announced
	left   int // OpRead: bytes that have not come
	pins   int // calls after which the kernel may still read the pieces
	done   bool
	inUse  bool // inline data is valid
	hasRec bool // recv is valid
	recv   uint64
	imm    uint32
	key    uint64
	off    uint64
}

// outgoing are the requests that have not completed, in order:
// head <= next <= tail. Those before next are on their way.
type outgoing struct {
	ops              []sendOp
	head, next, tail uint64
	acked            uint64 // requests that the peer has carried out
	credit           uint64 // receives that the peer has granted, in total
	used             uint64 // of these
	maxCredit        uint64 // the peer's RecvDepth
	queuedBytes      int    // not on their way
}

func (o *outgoing) init(depth int) {
	o.ops = make([]sendOp, depth)
	inline := make([]byte, depth*inlineBytes)
	for i := range o.ops {
		o.ops[i].inline = inline[i*inlineBytes:][:inlineBytes]
	}
}

func (o *outgoing) at(n uint64) *sendOp { return &o.ops[n%uint64(len(o.ops))] }

// sendsFull reports whether SendDepth requests are outstanding: not completed, or not
// polled.
func (ep *endpoint) sendsFull() bool {
	return int64(ep.out.tail-ep.out.head)+ep.unpolledSends.Load() >= int64(ep.spec.SendDepth)
}

// queueSend checks a request and takes it; the caller holds mu.
func (ep *endpoint) queueSend(r *transport.SendRequest) error {
	if r.Op < transport.OpSend || r.Op > transport.OpRead {
		return fmt.Errorf("tcp: SendRequest.Op is %d, allowed are OpSend, OpWrite, OpWriteImm and OpRead", r.Op)
	}
	if ep.sendsFull() {
		return transport.ErrWouldBlock
	}
	op := ep.out.at(ep.out.tail)
	num, total, err := ep.t.piecesOf(&op.pieces, r.Local)
	if err != nil {
		return err
	}
	op.num = num
	if err := op.takeInline(r, int(total)); err != nil {
		release(op.pieces[:num])
		return err
	}
	op.id, op.op, op.imm, op.key = r.ID, r.Op, r.Imm, r.Remote.Key
	op.total, op.sent, op.asked, op.left, op.done, op.hasRec = int(total), 0, 0, int(total), false, false
	if op.off = r.Remote.Addr + r.RemoteOff; op.off < r.RemoteOff {
		op.off = ^uint64(0) // outside of every region
	}
	ep.out.tail++
	ep.out.queuedBytes += op.total
	return nil
}

// takeInline copies inline data.
func (op *sendOp) takeInline(r *transport.SendRequest, total int) error {
	op.inUse = r.Inline
	if !r.Inline {
		return nil
	}
	if total > inlineBytes || r.Op == transport.OpRead {
		return fmt.Errorf("tcp: inline request of %d bytes, allowed are %d and no OpRead", total, inlineBytes)
	}
	n := 0
	for _, p := range op.pieces[:op.num] {
		n += copy(op.inline[n:], p.Region.Bytes()[p.Off:][:p.Bytes])
	}
	release(op.pieces[:op.num])
	op.num = 0
	return nil
}

// queueAndFlush completes what is posted in StateError, at once unless something
// before it cannot complete yet.
func (ep *endpoint) queueAndFlush(requests []transport.SendRequest) (posted int, err error) {
	for i := range requests {
		if err := ep.queueSend(&requests[i]); err != nil {
			return posted, err
		}
		posted++
		ep.flushSends()
	}
	return posted, nil
}

// completeSend ends the oldest request; the caller holds mu.
func (ep *endpoint) completeSend(op *sendOp, status transport.Status, vendor uint32) {
	c := transport.Completion{ID: op.id, Endpoint: ep.id, Op: op.op, Status: status, Vendor: vendor}
	if status == transport.StatusOK {
		c.NumBytes = uint32(op.total)
	}
	release(op.pieces[:op.num])
	op.num = 0
	ep.out.queuedBytes -= max(0, op.total-op.sent)
	ep.out.head++
	ep.out.next = max(ep.out.next, ep.out.head)
	ep.unpolledSends.Add(1)
	ep.t.done.push(c, ep)
}

// completeSends ends what the peer has carried out, in order.
func (ep *endpoint) completeSends() {
	o := &ep.out
	for o.head != o.next {
		op := o.at(o.head)
		if op.op == transport.OpRead && !op.done || op.op != transport.OpRead && o.head >= o.acked {
			return
		}
		if op.pins > 0 {
			return
		}
		ep.completeSend(op, transport.StatusOK, 0)
	}
}

// takeTotals takes in the totals that every message carries. Old ones change
// nothing; impossible ones return false.
func (ep *endpoint) takeTotals(m *message) bool {
	o := &ep.out
	if m.ack > o.next || m.credit > o.used+o.maxCredit {
		return false
	}
	if m.credit > o.credit {
		o.credit = m.credit
		ep.setShort(false)
	}
	if m.ack > o.acked {
		o.acked = m.ack
		ep.completeSends()
	}
	return true
}

// nextOut makes the next message of a request, and its payload; the caller
// holds mu. ok is false when nothing may be sent now.
func (ep *endpoint) nextOut(m *message, payload [][]byte) (list [][]byte, ok bool) {
	o := &ep.out
	if o.next == o.tail {
		return payload, false
	}
	op := o.at(o.next)
	if usesReceive(op.op) && !op.hasRec {
		if o.used == o.credit {
			ep.setShort(true)
			return payload, false
		}
		op.recv, op.hasRec = o.used, true
		o.used++
	}
	*m = message{
		code: codeOf(op.op), op: o.next, recv: op.recv, key: op.key, off: op.off,
		total: uint32(op.total), at: uint32(op.sent), imm: op.imm,
	}
	return op.cut(o, m, payload, ep.t.config.segmentBytes), true
}

// cut takes the next segment off a request.
func (op *sendOp) cut(o *outgoing, m *message, payload [][]byte, most int) [][]byte {
	if op.op == transport.OpRead {
		m.at = 0
		o.queuedBytes -= op.total
		op.sent = op.total
		o.next++
		return payload
	}
	n := min(op.total-op.sent, most)
	if op.inUse {
		payload = append(payload, op.inline[op.sent:][:n])
	} else {
		payload = slicesOf(payload, op.pieces[:op.num], op.sent, n)
	}
	op.sent += n
	o.queuedBytes -= n
	if op.sent == op.total {
		o.next++
	}
	return payload
}

// placeRead says where the bytes of a read go; the caller holds mu.
func (ep *endpoint) placeRead(m *message, n int, dst [][]byte) (list [][]byte, ok bool) {
	o := &ep.out
	if m.op < o.head || m.op >= o.next {
		return dst, false
	}
	op := o.at(m.op)
	if op.op != transport.OpRead || op.done || int(m.total) != op.total || n > op.total-op.asked {
		return dst, false
	}
	op.asked += n // segments that overlap would land after the end
	return slicesOf(dst, op.pieces[:op.num], int(m.at), n), true
}

// readLanded notes n bytes of a read; the caller holds mu.
func (ep *endpoint) readLanded(m *message, n int) {
	op := ep.out.at(m.op)
	op.left -= n
	if op.left == 0 {
		op.done = true
		ep.completeSends()
	}
}
