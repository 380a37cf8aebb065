package cpu

import (
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/op"
)

// pump takes messages while no caller waits: a rank that computes, or never
// calls again, must not hold its peers up. One goroutine per buffer that has
// ever had remote ranks.
type pump struct {
	callers atomic.Int32  // that wait, and look at messages themselves
	idle    chan struct{} // a signal: there may be no caller any more
	running atomic.Bool   // set under Buffer.mu
	off     bool          // for tests: callers alone take messages
}

func newPump(on bool) pump { return pump{idle: make(chan struct{}, 1), off: !on} }

// pumpSleep bounds what a lost bell costs while there are no calls.
const pumpSleep = 20 * time.Millisecond

func (b *Buffer) startPump() {
	if b.remote == nil || b.pump.off || b.pump.running.Load() {
		return
	}
	b.pump.running.Store(true)
	b.users.Add(1)
	safego.Go("messages", b.servePump, func(err error) {
		defer b.users.Done()
		b.fail(op.Failed, err)
	})
}

func (b *Buffer) servePump() {
	for b.err() == nil {
		if b.pump.callers.Load() > 0 {
			<-b.pump.idle
			continue
		}
		ticket := b.dom.PrepareSleep() // before the messages are looked at
		b.pumpOnce()
		b.dom.Sleep(ticket, pumpSleep)
	}
	b.users.Done()
}

func (b *Buffer) pumpOnce() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err() == nil && b.remote != nil && b.isMember() {
		_ = b.progress() // the next call tries again, and reports it
	}
}

func (p *pump) notify() {
	select {
	case p.idle <- struct{}{}:
	default:
	}
}

// enter tells the pump, if there is one, that the caller looks at messages
// itself, until leave.
func (p *pump) enter() (entered bool) {
	if entered = p.running.Load(); entered {
		p.callers.Add(1)
	}
	return entered
}

func (p *pump) leave(entered bool) {
	if entered && p.callers.Add(-1) == 0 {
		p.notify()
	}
}
