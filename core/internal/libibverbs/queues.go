package libibverbs

import (
	"syscall"

	"github.com/moewire/moewire/core/internal/dl"
)

// What the header defines inline has no symbol: it calls through the context's
// table, and so do these. Each value has its own argument list: one goroutine
// at a time. None allocates; all addresses are outside the Go heap.

// Poller takes completions off one queue, and arms it.
type Poller struct {
	cq           uintptr
	poll, notify *dl.Hot
}

// Poller makes one for a queue of this context.
func (ctx Context) Poller(cq CQ) *Poller {
	head := dl.At[ContextHead](uintptr(ctx))
	return &Poller{
		cq:     uintptr(cq),
		poll:   dl.Func(head.PollCQ).Hot(),
		notify: dl.Func(head.ReqNotifyCQ).Hot(),
	}
}

// Poll writes up to n completions to the array at wcs and returns how many.
func (p *Poller) Poll(n int, wcs uintptr) (int, error) {
	r := int32(p.poll.Call(p.cq, uintptr(n), wcs))
	if r < 0 {
		return 0, errPoll
	}
	return int(r), nil
}

// Arm makes the next completion raise an event on the queue's channel.
func (p *Poller) Arm() error {
	if r := p.notify.Call(p.cq, 0, 0); int32(r) != 0 {
		return returned("ibv_req_notify_cq", r)
	}
	return nil
}

// errPoll is a value, so that it costs nothing to return.
var errPoll = failed("ibv_poll_cq", syscall.EIO)

// Listener takes the completion events of one channel.
type Listener struct {
	ch       uintptr
	get, ack *dl.Hot
	out      uintptr
}

// OutBytes is the memory that a Listener needs.
const OutBytes = 16

// Listener makes one. out is the address of OutBytes bytes, outside the Go
// heap, that only this Listener uses.
func (l *Library) Listener(ch CompChannel, out uintptr) *Listener {
	return &Listener{ch: uintptr(ch), get: l.call.getCQEvent.Hot(), ack: l.call.ackCQEvents.Hot(), out: out}
}

// Take takes and acknowledges one event, and reports whether there was one:
// the channel's descriptor must not block. Destroying the event's queue waits
// for the acknowledgement.
func (l *Listener) Take() bool {
	if int32(l.get.Call(l.ch, l.out, l.out+8)) != 0 {
		return false
	}
	l.ack.Call(*dl.At[uintptr](l.out), 1, 0)
	return true
}

// Poster posts to one side of one queue pair.
type Poster struct {
	qp   uintptr
	post *dl.Hot
	bad  uintptr
}

// SendPoster makes one for the sending side. bad is the address of a word,
// outside the Go heap, that only this Poster uses.
func (ctx Context) SendPoster(qp QP, bad uintptr) *Poster {
	head := dl.At[ContextHead](uintptr(ctx))
	return &Poster{qp: uintptr(qp), post: dl.Func(head.PostSend).Hot(), bad: bad}
}

// RecvPoster makes one for the receiving side.
func (ctx Context) RecvPoster(qp QP, bad uintptr) *Poster {
	head := dl.At[ContextHead](uintptr(ctx))
	return &Poster{qp: uintptr(qp), post: dl.Func(head.PostRecv).Hot(), bad: bad}
}

// Post hands over the chain of work requests that begins at wr. If it fails,
// those before the one at the returned address were accepted.
func (p *Poster) Post(wr uintptr) (bad uintptr, errno syscall.Errno) {
	*dl.At[uintptr](p.bad) = 0
	r := int32(p.post.Call(p.qp, wr, p.bad))
	if r == 0 {
		return 0, 0
	}
	if r < 0 {
		r = -r
	}
	return *dl.At[uintptr](p.bad), syscall.Errno(r)
}
