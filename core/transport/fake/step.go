package fake

import (
	"time"

	"github.com/moewire/moewire/core/transport"
)

// activate puts a request among those that can take a step. Under the lock.
func (n *Network) activate(r *request) {
	if r.index < 0 {
		r.index = len(n.active)
		n.active = append(n.active, r)
	}
}

func (n *Network) deactivate(r *request) {
	last := n.active[len(n.active)-1]
	n.active[r.index], last.index = last, r.index
	n.active[len(n.active)-1] = nil
	n.active = n.active[:len(n.active)-1]
	r.index = -1
}

// drop takes requests out for ever.
func (n *Network) drop(which func(*request) bool) {
	for i := len(n.active) - 1; i >= 0; i-- {
		if r := n.active[i]; which(r) {
			n.deactivate(r)
			r.stage = stageLost
		}
	}
}

// Step lets one request, drawn by the seed, do what comes next for it: move its
// bytes, fail, or have its completion reported. It returns false, having done
// nothing, when none can at this time.
func (n *Network) Step() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.step(n.now())
}

// Settle steps until nothing can be done at this time.
func (n *Network) Settle() {
	for n.Step() {
	}
}

// NextTime is when a request can take a step without anything new happening;
// the zero time if none waits for a time.
func (n *Network) NextTime() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.nextTime(n.now())
}

// Exhaust settles, moves the clock, which must be a Clock, on to the next time
// at which something can happen, and so on until nothing will.
func (n *Network) Exhaust() {
	for {
		n.Settle()
		next := n.NextTime()
		if next.IsZero() {
			return
		}
		n.cfg.Clock.Advance(next.Sub(n.cfg.Clock.Now()))
	}
}

func (n *Network) step(now time.Time) bool {
	n.scribble()
	if len(n.active) == 0 {
		return false
	}
	start := n.rand.IntN(len(n.active))
	for i := range n.active {
		r := n.active[(start+i)%len(n.active)]
		if n.isTurn(r) && !now.Before(r.notBefore) && n.advance(r, now) {
			return true
		}
	}
	return false
}

// isTurn reports whether nothing that was posted before holds up a request.
func (n *Network) isTurn(r *request) bool {
	if !n.cfg.Ordered {
		return true
	}
	for _, other := range n.active {
		if other.ep == r.ep && other.recv == r.recv && other.order < r.order {
			return false
		}
	}
	return true
}

// advance takes a step of a request, if it can.
func (n *Network) advance(r *request, now time.Time) bool {
	if r.stage == stageDone {
		return r.complete(now)
	}
	if r.status != transport.StatusOK { // by a fault on the wire
		r.finish(r.status)
		return true
	}
	peer := n.answering(r)
	if peer == nil {
		return r.endAfter(&r.unheard, n.cfg.RetryTimeout, transport.StatusUnreachable, now)
	}
	return r.execute(peer, now)
}

// nextTime is when time alone lets a request step.
func (n *Network) nextTime(now time.Time) time.Time {
	var next time.Time
	for _, r := range n.active {
		at := r.nextTime(now)
		if !at.IsZero() && n.isTurn(r) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

func (r *request) nextTime(now time.Time) time.Time {
	cfg := &r.ep.transport.network.cfg
	switch {
	case now.Before(r.notBefore):
		return r.notBefore
	case r.stage == stageDone:
		return zero
	case !r.unheard.IsZero():
		return r.unheard.Add(cfg.RetryTimeout)
	case !r.unmatched.IsZero() && cfg.NoReceiveTimeout > 0:
		return r.unmatched.Add(cfg.NoReceiveTimeout)
	}
	return zero
}

// answering returns the peer's end if it answers.
func (n *Network) answering(r *request) *Endpoint {
	at := r.ep.peer
	if r.dropped || r.ep.transport.unresponsive || int(at.transport) >= len(n.transports) {
		return nil
	}
	t := n.transports[at.transport]
	peer := t.endpoints[at.endpoint]
	if t.unresponsive || peer == nil || peer.nonce != at.nonce ||
		peer.state != transport.StateReady || peer.peer != r.ep.address() {
		return nil
	}
	return peer
}

// endAfter ends a request with a status when it has lacked something for some
// time; since is when that began.
func (r *request) endAfter(since *time.Time, d time.Duration, s transport.Status, now time.Time) bool {
	if since.IsZero() {
		*since = now
	}
	if d < 0 || now.Before(since.Add(d)) {
		return false
	}
	r.finish(s)
	return true
}

// execute moves the bytes of a request, or some of them, if the peer answers.
func (r *request) execute(peer *Endpoint, now time.Time) bool {
	r.unheard = zero
	var recv *request
	if r.op == transport.OpSend || r.op == transport.OpWriteImm {
		if peer.waiting.len() == 0 {
			return r.endAfter(&r.unmatched, r.ep.transport.network.cfg.NoReceiveTimeout, transport.StatusNoReceive, now)
		}
		recv, r.unmatched = peer.waiting.items[peer.waiting.head], zero
	}
	allowed, whole := r.move(peer, recv)
	switch {
	case !allowed:
		r.refused(peer, recv)
	case whole:
		if recv != nil {
			r.match(peer.waiting.pop())
		}
		r.finish(transport.StatusOK)
	}
	return true
}

// refused ends a request that the peer does not allow.
func (r *request) refused(peer *Endpoint, recv *request) {
	if recv != nil && r.op == transport.OpSend {
		peer.waiting.pop().finish(transport.StatusLocal)
	}
	peer.fail("a request of the peer was refused")
	r.finish(transport.StatusRemote)
}

// match ends the receive that a request has used up.
func (r *request) match(recv *request) {
	recv.numBytes = r.numBytes
	if r.op == transport.OpWriteImm {
		recv.op, recv.hasImm, recv.imm = transport.OpRecvImm, true, r.imm
	}
	recv.finish(transport.StatusOK)
}

// move copies bytes, and reports whether the peer lets it and whether these
// were the last.
func (r *request) move(peer *Endpoint, recv *request) (allowed, whole bool) {
	if r.op == transport.OpSend {
		if r.numBytes > recv.numBytes {
			return false, false
		}
		r.moveToPieces(recv)
		return true, true
	}
	need := transport.AccessWrite
	if r.op == transport.OpRead {
		need = transport.AccessRead
	}
	mem := peer.transport.reach(r.remote, r.off, int(r.numBytes), need)
	if mem == nil {
		return false, false
	}
	from, to, whole := r.nextChunk(len(mem))
	r.overlap(from, to, func(local []byte, at int) {
		if r.op == transport.OpRead {
			copy(local, mem[at:])
		} else {
			copy(mem[at:], local)
		}
	})
	return true, whole
}

// nextChunk says which bytes of n are the next to move. The first chunk is any;
// then they come in order, from the start again after the end.
func (r *request) nextChunk(n int) (from, to int, last bool) {
	network := r.ep.transport.network
	size := network.cfg.ChunkBytes
	if size <= 0 || n <= size {
		return 0, n, true
	}
	num := (n + size - 1) / size
	if r.numChunks == 0 {
		r.firstChunk = network.rand.IntN(num)
	}
	k := (r.firstChunk + r.numChunks) % num
	r.numChunks++
	return k * size, min(n, (k+1)*size), r.numChunks == num
}

// overlap calls f with those parts of the pieces that lie in [from, to) of all
// their bytes, and where each part begins there.
func (r *request) overlap(from, to int, f func(local []byte, at int)) {
	at := 0
	r.gather(func(src []byte) {
		lo, hi := max(from, at), min(to, at+len(src))
		if lo < hi {
			f(src[lo-at:hi-at], lo)
		}
		at += len(src)
	})
}

// moveToPieces copies from one list of pieces to another.
func (r *request) moveToPieces(recv *request) {
	k, off := 0, 0
	r.gather(func(src []byte) {
		for len(src) > 0 {
			p := recv.pieces[k]
			done := copy(p.Region.Bytes()[p.Off+off:p.Off+p.Bytes], src)
			src, off = src[done:], off+done
			if off == p.Bytes {
				k, off = k+1, 0
			}
		}
	})
}
