package shmem

import (
	"fmt"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// PostSend hands over requests, and runs them as far as postBytes go; the rest
// is for Poll.
func (e *Endpoint) PostSend(requests []transport.SendRequest) (posted int, err error) {
	posted, err = e.postSends(requests)
	if posted > 0 {
		e.progress(postBytes)
	}
	return posted, err
}

func (e *Endpoint) postSends(requests []transport.SendRequest) (posted int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.State(); s == transport.StateNew || s == transport.StateClosed {
		return 0, fmt.Errorf("post send in state %d: %w", s, transport.ErrState)
	}
	for i := range requests {
		if err := e.postSend(&requests[i]); err != nil {
			return i, err
		}
	}
	return len(requests), nil
}

func (e *Endpoint) postSend(q *transport.SendRequest) error {
	numBytes, err := e.t.checkPieces(q.Local)
	if err != nil {
		return fmt.Errorf("post send: %w", err)
	}
	if q.Op < transport.OpSend || q.Op > transport.OpRead {
		return fmt.Errorf("post send: Op is %d, 1 to 4 are allowed", q.Op)
	}
	if q.Inline && (q.Op == transport.OpRead || numBytes > MaxInlineBytes) {
		return fmt.Errorf("post send: %d bytes inline with Op %d; at most %d are allowed, and no read", numBytes, q.Op, MaxInlineBytes)
	}
	if len(e.sends.free) == 0 {
		return transport.ErrWouldBlock
	}
	if err := use(q.Local); err != nil {
		return fmt.Errorf("post send: %w", err)
	}
	i := e.sends.take()
	e.sends.all[i].fill(q, numBytes)
	switch {
	case e.State() == transport.StateError:
		e.finishSend(i, transport.StatusFlushed, vendorNone)
	case needsReceive(q.Op):
		e.matched.push(i)
	default:
		e.direct.push(i)
	}
	return nil
}

func needsReceive(op transport.Opcode) bool {
	return op == transport.OpSend || op == transport.OpWriteImm
}

func (r *request) fill(q *transport.SendRequest, numBytes int) {
	r.id, r.op, r.imm, r.numBytes, r.moved = q.ID, q.Op, q.Imm, numBytes, 0
	r.remote, r.remoteOff, r.isInline = q.Remote, q.RemoteOff, q.Inline
	r.hold(q.Local)
	if r.isInline {
		r.copyInline()
	}
}

// PostRecv hands over receives. The peer sees where they are.
func (e *Endpoint) PostRecv(requests []transport.RecvRequest) (posted int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.State() == transport.StateClosed {
		return 0, fmt.Errorf("post recv in state %d: %w", e.State(), transport.ErrState)
	}
	for posted = 0; posted < len(requests) && err == nil; {
		if err = e.postRecv(&requests[posted]); err == nil {
			posted++
		}
	}
	e.posted.Store(e.numPosted)
	if e.peer != nil && e.peer.starved.Load() != 0 {
		e.ringPeer()
	}
	return posted, err
}

func (e *Endpoint) postRecv(q *transport.RecvRequest) error {
	numBytes, err := e.t.checkPieces(q.Local)
	if err != nil {
		return fmt.Errorf("post recv: %w", err)
	}
	if len(e.recvs.free) == 0 {
		return transport.ErrWouldBlock
	}
	if err := use(q.Local); err != nil {
		return fmt.Errorf("post recv: %w", err)
	}
	i := e.recvs.take()
	r := &e.recvs.all[i]
	r.id, r.numBytes = q.ID, numBytes
	r.hold(q.Local)
	if e.State() == transport.StateError {
		e.finishRecv(i, transport.Completion{Op: transport.OpRecv, Status: transport.StatusFlushed})
		return nil
	}
	e.show(r)
	e.waiting.push(i)
	return nil
}

// show writes a receive into the ring, where the peer finds it once posted
// counts it.
func (e *Endpoint) show(r *request) {
	at := laneReceivesOff + receiveBytes*int64(e.numPosted&(e.window-1))
	lane := e.lane.Bytes()
	sys.Word(lane, at).Store(uint64(r.numPieces))
	for k := range r.pieces[:r.numPieces] {
		p, at := &r.pieces[k], at+8+pieceBytes*int64(k)
		region := p.Region.(*Region)
		sys.Word(lane, at).Store(region.memoryID)
		sys.Word(lane, at+8).Store(uint64(region.off) + uint64(p.Off))
		sys.Word(lane, at+16).Store(uint64(p.Bytes))
	}
	e.numPosted++
}

// checkPieces returns the sum of the pieces' lengths.
func (t *Transport) checkPieces(pieces []transport.Piece) (int, error) {
	if len(pieces) > MaxPieces {
		return 0, fmt.Errorf("%d pieces in Local, at most %d are allowed", len(pieces), MaxPieces)
	}
	sum := 0
	for i := range pieces {
		p := &pieces[i]
		r, ok := p.Region.(*Region)
		if !ok || r == nil || r.t != t {
			return 0, fmt.Errorf("Local[%d].Region is not a region of this transport", i)
		}
		if p.Off < 0 || p.Bytes < 0 || p.Off > len(r.mem) || p.Bytes > len(r.mem)-p.Off {
			return 0, fmt.Errorf("%d bytes at %d in Local[%d], the region has %d", p.Bytes, p.Off, i, len(r.mem))
		}
		if p.Bytes > MaxRequestBytes-sum {
			return 0, fmt.Errorf("more than %d bytes in Local, which are allowed", MaxRequestBytes)
		}
		sum += p.Bytes
	}
	return sum, nil
}

// use keeps the regions of pieces from being closed, all or none.
func use(pieces []transport.Piece) error {
	for i := range pieces {
		if pieces[i].Region.(*Region).use() {
			continue
		}
		for k := range pieces[:i] {
			pieces[k].Region.(*Region).unuse()
		}
		return fmt.Errorf("Local[%d].Region is closed", i)
	}
	return nil
}
