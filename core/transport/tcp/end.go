package tcp

import (
	"fmt"

	"github.com/moewire/moewire/core/transport"
)

// ending says why an endpoint leaves StateReady, or StateNew.
type ending struct {
	retired bool             // the owner wanted it: no event
	status  transport.Status // of request op, if any; 0: of the oldest
	op      uint64
	named   bool // op is valid
	recv    uint64
	recvBad bool // receive recv ends with StatusLocal
	cause   error
	vendor  uint32
}

// end brings the endpoint to StateError and completes everything. The caller
// holds io, so that no byte moves any more once a completion is out. Only the
// first call does anything.
func (ep *endpoint) end(e ending) {
	ep.mu.Lock()
	if s := ep.State(); s == transport.StateError || s == transport.StateClosed {
		ep.mu.Unlock()
		return
	}
	if !ep.linger {
		ep.closeConns()
	}
	ep.state.Store(uint32(transport.StateError))
	ep.rendezvous.cancel()
	ep.setShort(false)
	ep.flush(&e)
	ep.mu.Unlock()

	ep.t.forget(ep)
	if !e.retired {
		ep.t.counters.Broken.Add(1)
		ep.t.events.push(transport.Event{
			Kind: transport.EventEndpointFailed, Endpoint: ep.id, Detail: e.cause.Error(),
		})
	}
	ep.t.interrupt()
}

// flush completes all requests in order, and all receives; the caller holds io
// and mu.
func (ep *endpoint) flush(e *ending) {
	o := &ep.out
	if !e.named && e.status != 0 && o.head != o.tail {
		e.named, e.op = true, o.head
	}
	ep.ended, ep.ending = true, *e
	ep.flushSends()
	in := &ep.in
	for in.head != in.tail {
		status := transport.StatusFlushed
		if e.recvBad && e.recv == in.head {
			status = transport.StatusLocal
		}
		ep.completeRecv(in.at(in.head), status)
	}
	in.reset()
}

// flushSends completes the requests of an endpoint that has ended, up to the first with
// memory that the kernel may still read; the caller holds mu.
func (ep *endpoint) flushSends() {
	o, e := &ep.out, &ep.ending
	for o.head != o.tail && o.at(o.head).pins == 0 {
		status := transport.StatusFlushed
		if e.named && e.op == o.head && !e.retired {
			status = e.status
		}
		ep.completeSend(o.at(o.head), status, e.vendor)
	}
}

// fail ends the endpoint because its connection did. The oldest request has
// waited for an answer in vain.
func (ep *endpoint) fail(cause error) {
	ep.end(ending{status: transport.StatusUnreachable, cause: cause})
}

// violate ends the endpoint because the peer, which has the key, sent something
// that makes no sense.
func (ep *endpoint) violate(what string) {
	ep.t.counters.Violations.Add(1)
	ep.end(ending{status: transport.StatusOther, cause: fmt.Errorf("tcp: peer violates the protocol: %s", what)})
}

// closeConns closes the sockets, but for those that are kept for their
// notices; the caller holds io and mu.
func (ep *endpoint) closeConns() {
	for _, c := range ep.conns {
		if !c.leave() {
			ep.leaving = append(ep.leaving, c)
		}
	}
	ep.conns = nil
}

// setShort notes whether the endpoint waits for the peer to post a receive; the
// caller holds mu.
func (ep *endpoint) setShort(short bool) {
	was := ep.sinceShort.Load() != 0
	if was == short {
		return
	}
	if short {
		ep.sinceShort.Store(ep.t.age())
		ep.t.short.Add(1)
		ep.t.interrupt() // its time limits a sleep that has begun
	} else {
		ep.sinceShort.Store(0)
		ep.t.short.Add(-1)
	}
}

// endIfShort ends the endpoint if it has waited for a receive since before
// then.
func (ep *endpoint) endIfShort(then int64) {
	if since := ep.sinceShort.Load(); since == 0 || since > then {
		return
	}
	ep.io.Lock()
	defer ep.unlockIO()
	ep.mu.Lock()
	since, op := ep.sinceShort.Load(), ep.out.next
	ep.mu.Unlock()
	if since == 0 || since > then {
		return
	}
	ep.end(ending{
		status: transport.StatusNoReceive, op: op, named: true,
		cause: fmt.Errorf("tcp: peer posted no receive for %v", ep.t.config.ReceiveTimeout),
	})
}
