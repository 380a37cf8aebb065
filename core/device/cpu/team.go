//go:build cgo

package cpu

import (
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/internal/safego"
)

// leastShare is how many bytes a thread must have to move before waking it is
// worth its while: a wake-up takes as long as some tens of kilobytes.
const leastShare = 128 << 10

// team is the workers of one set of kernels. Between batches they sleep.
type team struct {
	work func(part int) // one part of the present batch
	todo chan int       // parts of it
	done sync.WaitGroup // counts them

	failed atomic.Pointer[any] // what the first part that panicked said
}

// newTeam starts workers for n threads, one of which is the caller's.
func newTeam(n int, work func(part int)) *team {
	t := &team{work: work, todo: make(chan int)}
	for range n - 1 {
		safego.Go("rows", t.serve, nil)
	}
	return t
}

func (t *team) serve() {
	for part := range t.todo {
		t.one(part)
	}
}

func (t *team) one(part int) {
	defer t.done.Done()
	defer t.keep()
	t.work(part)
}

// keep holds a panic back until all parts have ended: they share the caller's
// memory. Workers outlive it.
func (t *team) keep() {
	if v := recover(); v != nil {
		said := v // on the heap only now
		t.failed.CompareAndSwap(nil, &said)
	}
}

// run does all parts, the first on the caller's thread, and returns when they
// are done. It panics if one of them did.
func (t *team) run(parts int) {
	t.done.Add(parts)
	for part := 1; part < parts; part++ {
		t.todo <- part
	}
	t.one(0)
	t.done.Wait()
	if v := t.failed.Swap(nil); v != nil {
		panic(*v)
	}
}

func (t *team) close() { close(t.todo) }
