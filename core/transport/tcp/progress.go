package tcp

import (
	"time"

	"github.com/moewire/moewire/core/internal/sys"
)

// lookEvery is how often endpoints that wait for a receive are looked at.
const lookEvery = 10 * time.Millisecond

// progress looks at the sockets and does what there is to do, without waiting.
func (t *Transport) progress(e *sys.PollEvents) error {
	ready, err := t.poller.Poll(e)
	for i := range ready {
		t.mark(&ready[i])
	}
	t.runReady()
	t.lookAtShort()
	return err
}

// mark notes what a socket can do. The socket may be gone, and its place taken
// by another: then the generation differs.
func (t *Transport) mark(r *sys.Ready) {
	c := t.conns[uint32(r.Token)].Load()
	if c == nil || c.token != r.Token {
		return
	}
	if r.Readable {
		c.readable.Store(true)
	}
	if r.Ended {
		c.ended.Store(true)
	}
	if r.Writable {
		c.writable.Store(true)
	}
	if r.Errors && c.pin.allowed {
		c.noticed.Store(true)
	}
	t.enqueue(c.ep)
}

// schedule makes a goroutine call run for the endpoint.
func (t *Transport) schedule(ep *endpoint) {
	t.enqueue(ep)
	t.interrupt()
}

func (t *Transport) enqueue(ep *endpoint) {
	t.readyMu.Lock()
	defer t.readyMu.Unlock()
	if !ep.queued {
		ep.queued = true
		t.ready = append(t.ready, ep)
	}
}

func (t *Transport) hasReady() bool {
	t.readyMu.Lock()
	defer t.readyMu.Unlock()
	return len(t.ready) > 0
}

// runReady gives every endpoint that is ready one turn. It waits for the end of a turn
// that another goroutine gives: whatever a peer has been told is in place is then visible
// to the caller, too.
func (t *Transport) runReady() {
	t.turnMu.Lock()
	defer t.turnMu.Unlock()
	t.readyMu.Lock()
	t.ready, t.turn = t.turn[:0], t.ready
	for _, ep := range t.turn {
		ep.queued = false
	}
	t.readyMu.Unlock()
	for _, ep := range t.turn {
		ep.run()
	}
	clear(t.turn)
}

// age is the time since Open, in ns, at least 1.
func (t *Transport) age() int64 { return max(1, int64(time.Since(t.started))) }

// lookAtShort ends requests that have waited for a receive for too long.
func (t *Transport) lookAtShort() {
	if t.short.Load() == 0 {
		return
	}
	now := t.age()
	last := t.looked.Load()
	if now-last < int64(lookEvery) || !t.looked.CompareAndSwap(last, now) {
		return
	}
	for i := range t.conns {
		if c := t.conns[i].Load(); c != nil && c.index == 0 {
			c.ep.endIfShort(now - int64(t.config.ReceiveTimeout))
		}
	}
}
