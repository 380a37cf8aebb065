package fake

import (
	"fmt"

	"github.com/moewire/moewire/core/transport"
)

// PostSend hands over requests.
func (e *Endpoint) PostSend(requests []transport.SendRequest) (posted int, err error) {
	n := e.transport.network
	if n.cfg.Probe != nil {
		n.cfg.Probe(AtPostSend.String())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	defer n.nudge()
	if e.state == transport.StateNew || e.state == transport.StateClosed {
		return 0, fmt.Errorf("post send in state %d: %w", e.state, transport.ErrState)
	}
	for i := range requests {
		if err := e.postSend(&requests[i]); err != nil {
			return i, err
		}
	}
	return len(requests), nil
}

func (e *Endpoint) postSend(q *transport.SendRequest) error {
	n := e.transport.network
	numBytes, err := e.transport.checkPieces(q.Local)
	if err != nil {
		return err
	}
	if q.Op < transport.OpSend || q.Op > transport.OpRead {
		return fmt.Errorf("post send: Op is %d, 1 to 4 are allowed", q.Op)
	}
	if l := e.transport.Limits().InlineBytes; q.Inline && (q.Op == transport.OpRead || numBytes > int64(l)) {
		return fmt.Errorf("post send: %d bytes inline with Op %d, %d are allowed and no read", numBytes, q.Op, l)
	}
	if f := n.strike(AtPostSend, e.transport, e.id, q.Op); f != nil && f.Err != nil {
		return f.Err
	}
	r := e.sends.take()
	if r == nil {
		return transport.ErrWouldBlock
	}
	r.fillSend(q, numBytes)
	e.counts.PostedSends++
	e.transport.counts.PostedSends++
	if e.state == transport.StateError {
		r.finish(transport.StatusFlushed)
		return nil
	}
	r.depart()
	return nil
}

// PostRecv hands over receives.
func (e *Endpoint) PostRecv(requests []transport.RecvRequest) (posted int, err error) {
	n := e.transport.network
	if n.cfg.Probe != nil {
		n.cfg.Probe(AtPostRecv.String())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	defer n.nudge()
	if e.state == transport.StateClosed {
		return 0, fmt.Errorf("post recv in state %d: %w", e.state, transport.ErrState)
	}
	for i := range requests {
		if err := e.postRecv(&requests[i]); err != nil {
			return i, err
		}
	}
	return len(requests), nil
}

func (e *Endpoint) postRecv(q *transport.RecvRequest) error {
	numBytes, err := e.transport.checkPieces(q.Local)
	if err != nil {
		return err
	}
	if f := e.transport.network.strike(AtPostRecv, e.transport, e.id, transport.OpRecv); f != nil && f.Err != nil {
		return f.Err
	}
	r := e.recvs.take()
	if r == nil {
		return transport.ErrWouldBlock
	}
	r.fillRecv(q, numBytes)
	e.counts.PostedRecvs++
	e.transport.counts.PostedRecvs++
	if e.state == transport.StateError {
		r.finish(transport.StatusFlushed)
		return nil
	}
	r.stage = stageWaiting
	e.waiting.push(r)
	return nil
}

// checkPieces returns the sum of the pieces' lengths.
func (t *Transport) checkPieces(pieces []transport.Piece) (int64, error) {
	l := t.Limits()
	if len(pieces) > l.NumPieces {
		return 0, fmt.Errorf("post: Local has %d pieces, at most %d are allowed", len(pieces), l.NumPieces)
	}
	sum := int64(0)
	for i, p := range pieces {
		r, ok := p.Region.(*Region)
		if !ok || r == nil || r.transport != t || r.closed {
			return 0, fmt.Errorf("post: Local[%d].Region is not an open region of this transport", i)
		}
		if p.Off < 0 || p.Bytes < 0 || p.Off > len(r.mem) || p.Bytes > len(r.mem)-p.Off {
			return 0, fmt.Errorf("post: Local[%d] is %d bytes at %d, the region has %d", i, p.Bytes, p.Off, len(r.mem))
		}
		sum += int64(p.Bytes)
	}
	if sum > l.MaxRequestBytes {
		return 0, fmt.Errorf("post: Local has %d bytes, at most %d are allowed", sum, l.MaxRequestBytes)
	}
	return sum, nil
}
