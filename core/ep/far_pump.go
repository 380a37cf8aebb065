package ep

import (
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/op"
)

// pump takes messages while no caller waits: a rank that computes, or never
// calls again, must not hold its peers up. One goroutine per buffer that has
// ever had far ranks.
type pump struct {
	callers atomic.Int32  // that wait, and look at messages themselves
	idle    chan struct{} // there may be none any more
	running bool          // guarded by Buffer.mu
}

func newPump() pump { return pump{idle: make(chan struct{}, 1)} }

// pumpSleep bounds what a lost bell costs while nobody calls.
const pumpSleep = 20 * time.Millisecond

func (b *Buffer) startPump() {
	if b.far == nil || b.pump.running {
		return
	}
	b.pump.running = true
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
	if b.err() == nil && b.far != nil && b.isMember() {
		_ = b.progress() // the next call tries again, and reports it
	}
}

func (p *pump) kick() {
	select {
	case p.idle <- struct{}{}:
	default:
	}
}

// enter and leave tell the pump who looks at messages himself.
func (p *pump) enter() { p.callers.Add(1) }

func (p *pump) leave() {
	if p.callers.Add(-1) == 0 {
		p.kick()
	}
}
