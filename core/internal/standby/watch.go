// Package standby lets callers of a library do work on their own goroutines, and a
// goroutine in the background do it while no caller does. A caller that works for itself
// is faster than two goroutines that wake each other.
package standby

import (
	"sync"
	"sync/atomic"
	"time"
)

// Watch tells the goroutine in the background whether callers work. Make one
// with New.
type Watch struct {
	every  time.Duration
	calls  atomic.Uint64
	inside atomic.Int32
	parked atomic.Bool // until a caller leaves
	unpark chan struct{}
	quit   chan struct{}
	once   sync.Once
}

// New makes a watch for a goroutine that has to work once no caller has worked
// for a time between every and twice that.
func New(every time.Duration) *Watch {
	return &Watch{every: every, unpark: make(chan struct{}, 1), quit: make(chan struct{})}
}

// Call says that a caller works now, for a moment.
func (w *Watch) Call() { w.calls.Add(1) }

// Enter says that a caller works until it calls Leave.
func (w *Watch) Enter() {
	w.inside.Add(1)
	w.calls.Add(1) // code that has counted this call sees the caller inside
}

// Leave ends what Enter began.
func (w *Watch) Leave() {
	w.inside.Add(-1)
	if w.parked.Load() && w.parked.CompareAndSwap(true, false) {
		select {
		case w.unpark <- struct{}{}:
		default:
		}
	}
}

// IsBusy reports whether a caller is inside.
func (w *Watch) IsBusy() bool { return w.inside.Load() != 0 }

// Calls counts the calls that have begun. A goroutine that has seen another number should
// step back.
func (w *Watch) Calls() uint64 { return w.calls.Load() }

// Quit ends Rest for good. Idempotent.
func (w *Watch) Quit() { w.once.Do(func() { close(w.quit) }) }

// Quits reports whether Quit was called.
func (w *Watch) Quits() bool {
	select {
	case <-w.quit:
		return true
	default:
		return false
	}
}

// Rest returns true once no caller works, false after Quit. It looks every now
// and then, and not at all while a caller stays inside. For one goroutine, with a
// timer of its own.
func (w *Watch) Rest(timer *time.Timer) bool {
	for {
		calls := w.Calls()
		timer.Reset(w.every)
		select {
		case <-w.quit:
			return false
		case <-timer.C:
		}
		switch {
		case w.Calls() != calls: // being woken twice costs more than looking again
		case !w.IsBusy():
			return true
		case !w.park():
			return false
		}
	}
}

// park waits while a caller is inside; false at the end.
func (w *Watch) park() bool {
	w.parked.Store(true)
	if !w.IsBusy() {
		w.parked.Store(false)
		return true
	}
	select {
	case <-w.quit:
		return false
	case <-w.unpark:
		return true
	}
}
