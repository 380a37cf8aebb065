package fabric

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
)

var (
	errDepth   = fmt.Errorf("%w: this many slices are outstanding on the connection (send_depth)", transport.ErrWouldBlock)
	errRecvs   = fmt.Errorf("%w: this many receives are posted on the connection (recv_depth)", transport.ErrWouldBlock)
	errWaiting = fmt.Errorf("%w: this many receives wait for immediates of the peer", transport.ErrWouldBlock)
)

// Post begins an operation. It never blocks. On an error nothing has happened:
// transport.ErrWouldBlock or op.ErrWouldBlock at a bound,
// endpoint.ErrConnecting when there is no connection yet, and one is being
// made. The operation's own end is asked for with Look or Wait; it is the
// caller's until Drop.
func (f *Fabric) Post(r *Request) (op.Ref, error) {
	if err := f.refusal(); err != nil {
		return op.Ref{}, err
	}
	region, err := f.check(r)
	if err != nil {
		return op.Ref{}, err
	}
	p, err := f.peerOf(r.Peer)
	if err != nil {
		return op.Ref{}, err
	}
	if r.Kind == ReceiveImm {
		return f.postReceiveImm(p)
	}
	c, err := f.connOf(p)
	if err != nil {
		return op.Ref{}, err
	}
	parts := f.numParts(r)
	ref, err := f.begin(c, r.Kind, parts)
	if isBound(err) {
		f.poller.catchUp(f) // what is in the way may have ended
		ref, err = f.begin(c, r.Kind, parts)
	}
	if err != nil {
		return op.Ref{}, err
	}
	w := f.fill(ref, r.Kind, c, parts)
	if r.Kind == Recv {
		return f.postRecv(w, r, region, ref)
	}
	return f.postSlices(w, r, region, ref, parts)
}

// isBound tells a refusal that polling may undo.
func isBound(err error) bool {
	return errors.Is(err, transport.ErrWouldBlock) || errors.Is(err, op.ErrWouldBlock)
}

// connOf returns the live connection to a peer.
func (f *Fabric) connOf(p *peer) (*conn, error) {
	ref, err := f.store.Get(p.id)
	if err != nil {
		return nil, err
	}
	if c := p.live.Load(); c != nil && c.ref == ref {
		return c, nil
	}
	return nil, endpoint.ErrConnecting // it is about to be known
}

// placesOf are those that a kind of operation takes on a connection.
func (f *Fabric) placesOf(c *conn, k Kind) (of *atomic.Int32, depth int, full error) {
	if k == Recv {
		return &c.recvs, f.cfg.RecvDepth, errRecvs
	}
	return &c.sends, f.cfg.SendDepth, errDepth
}

// begin takes what an operation needs, before anything of it is posted.
func (f *Fabric) begin(c *conn, k Kind, parts int64) (op.Ref, error) {
	places, depth, full := f.placesOf(c, k)
	if !take(places, int32(parts), int32(depth)) {
		return op.Ref{}, full
	}
	f.outstanding.Add(parts)
	ref, err := op.Ref{}, error(nil)
	if f.closing.Load() {
		err = ErrClosed
	} else {
		ref, err = f.table.Begin(int(parts))
	}
	if err != nil {
		places.Add(-int32(parts))
		f.settle(parts)
	}
	return ref, err
}

func (f *Fabric) fill(ref op.Ref, k Kind, c *conn, parts int64) *work {
	id := ref.RequestID(0)
	w := &f.work[slotOf(id)]
	w.id.Store(id)
	w.parts.Store(int32(parts))
	w.kind.Store(uint32(k))
	w.conn.Store(c)
	w.waits.Store(nil)
	w.left.Store(0)
	w.failed.Store(false)
	return w
}

func (f *Fabric) postSlices(w *work, r *Request, region transport.Region, ref op.Ref, parts int64) (op.Ref, error) {
	c := w.conn.Load()
	var message uint64
	if r.Kind == Send {
		message = c.peer.number.Add(1)
		putNumber(f.header.at(slotOf(ref.RequestID(0))), message)
	}
	now := parts
	if r.Kind == WriteImm && parts > 1 {
		now--
		f.slice(&w.last[0], w.lastPieces[:], r, region, ref, now)
		w.left.Store(int32(now))
	}
	for part := range now {
		f.slice(&w.send[0], w.sendPieces[:], r, region, ref, part)
		if _, err := f.store.PostSend(c.ref, w.send[:]); err != nil {
			if r.Kind == Send && part == 0 { // its number is the next message's, if there was none meanwhile
				c.peer.number.CompareAndSwap(message, message-1)
			}
			return f.postFailed(w, ref, part, now, err)
		}
	}
	return ref, nil
}

// postFailed ends the parts that were not posted. If none was, nothing has
// happened; else the operation has failed, and those before are waited for.
// Once they have ended, Close may unmap the memory of the numbers.
func (f *Fabric) postFailed(w *work, ref op.Ref, from, to int64, err error) (op.Ref, error) {
	c, k := w.conn.Load(), Kind(w.kind.Load())
	if errors.Is(err, transport.ErrState) {
		err = fmt.Errorf("%w: %w", ErrEnded, err)
	}
	for part := from; part < to; part++ {
		f.giveUp(c, k, ref.RequestID(int(part)), err)
	}
	if w.left.Load() > 0 {
		f.before(w, c, err, to-from)
	}
	if from > 0 {
		return ref, nil
	}
	_ = f.table.Drop(ref)
	return op.Ref{}, err
}

// giveUp ends a part that was not posted, and never will be.
func (f *Fabric) giveUp(c *conn, k Kind, id uint64, err error) {
	places, _, _ := f.placesOf(c, k)
	places.Add(-1)
	if f.table.Complete(id, err, 0, 0) == op.Counted {
		f.settle(1)
	} else {
		places.Add(1)
	}
}

func (f *Fabric) postRecv(w *work, r *Request, region transport.Region, ref op.Ref) (op.Ref, error) {
	c := w.conn.Load()
	id := ref.RequestID(0)
	q := &w.recv[0]
	*q = transport.RecvRequest{ID: id, Local: append(w.sendPieces[:0], f.header.piece(slotOf(id)))}
	if r.Bytes > 0 {
		q.Local = append(q.Local, transport.Piece{Region: region, Off: int(r.Off), Bytes: int(r.Bytes)})
	}
	if _, err := f.store.PostRecv(c.ref, w.recv[:]); err != nil {
		return f.postFailed(w, ref, 0, 1, err)
	}
	return ref, nil
}

func (f *Fabric) postReceiveImm(p *peer) (op.Ref, error) {
	ref, err := f.table.Begin(1)
	if isBound(err) {
		f.poller.catchUp(f)
		ref, err = f.table.Begin(1)
	}
	if err != nil {
		return ref, err
	}
	w := f.fill(ref, ReceiveImm, nil, 1)
	w.waits.Store(p)
	if err = f.receive(p, ref); errors.Is(err, transport.ErrState) || errors.Is(err, op.ErrFull) {
		f.poller.catchUp(f) // it may be here already, or what others wait for
		err = f.receive(p, ref)
	}
	if err == nil {
		if why := f.refusal(); why != nil {
			f.withdraw(p, ref, why) // it may have come too late to be dismissed
		}
		return ref, nil
	}
	f.table.Complete(ref.RequestID(0), err, 0, 0)
	_ = f.table.Drop(ref)
	switch {
	case errors.Is(err, op.ErrFull):
		return op.Ref{}, errWaiting
	case errors.Is(err, transport.ErrState):
		if _, err = f.connOf(p); err == nil {
			err = endpoint.ErrConnecting // meanwhile
		}
	}
	return op.Ref{}, err
}
