package tcp

import (
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/transport"
)

// finished is the queue of work requests that have ended and were not polled.
// It has room for all that endpoints may have outstanding, so it never
// overflows.
type finished struct {
	num   atomic.Int64 // what Wait looks at
	mu    sync.Mutex
	ring  []ended
	first int
	need  int // of all endpoints not closed
}

type ended struct {
	transport.Completion
	ep *endpoint
}

// reserve makes room for n more; n < 0 releases it.
func (f *finished) reserve(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.need += n
	if f.need <= len(f.ring) {
		return
	}
	ring := make([]ended, max(f.need, 2*len(f.ring)))
	num := int(f.num.Load())
	for i := range num {
		ring[i] = f.ring[(f.first+i)%len(f.ring)]
	}
	f.ring, f.first = ring, 0
}

func (f *finished) push(c transport.Completion, ep *endpoint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ring[(f.first+int(f.num.Load()))%len(f.ring)] = ended{c, ep}
	f.num.Add(1)
}

func (f *finished) take(dst []transport.Completion) int {
	if f.num.Load() == 0 {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(len(dst), int(f.num.Load()))
	for i := range n {
		e := &f.ring[f.first]
		dst[i] = e.Completion
		if e.Op >= transport.OpRecv {
			e.ep.unpolledRecvs.Add(-1)
		} else {
			e.ep.unpolledSends.Add(-1)
		}
		e.ep = nil
		f.first = (f.first + 1) % len(f.ring)
	}
	f.num.Add(int64(-n))
	return n
}

// reports is the queue of events. When no caller polls, the oldest go.
type reports struct {
	num   atomic.Int64
	mu    sync.Mutex
	ring  []transport.Event
	first int
}

func (r *reports) push(e transport.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if int(r.num.Load()) == len(r.ring) {
		r.first = (r.first + 1) % len(r.ring)
		r.num.Add(-1)
	}
	r.ring[(r.first+int(r.num.Load()))%len(r.ring)] = e
	r.num.Add(1)
}

func (r *reports) take(dst []transport.Event) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(dst), int(r.num.Load()))
	for i := range n {
		dst[i] = r.ring[r.first]
		r.first = (r.first + 1) % len(r.ring)
	}
	r.num.Add(int64(-n))
	return n
}
