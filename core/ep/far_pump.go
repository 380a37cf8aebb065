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
	running atomic.Bool   // set under Buffer.mu
}

func newPump() pump { return pump{idle: make(chan struct{}, 1)} }

// pumpSleep bounds what a lost bell costs while nobody calls.
const pumpSleep = 20 * time.Millisecond

func (b *Buffer) startPump() {
	if b.far == nil || b.pump.running.Load() {
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

// enter tells the pump, if there is one, that its caller looks at messages
// himself, until leave.
func (p *pump) enter() (told bool) {
	if told = p.running.Load(); told {
		p.callers.Add(1)
	}
	return told
}

func (p *pump) leave(told bool) {
	if told && p.callers.Add(-1) == 0 {
		p.kick()
	}
}

// takenBound is how long Close waits for far ranks to take what they were sent.
// They do so at once, but for one that is frozen, or cut off.
const takenBound = time.Second

// waitUntilTaken lets far members take what was said to them. A link ends with
// its rank, and what an operation of theirs still waits for would be lost,
// though here it has ended.
func (b *Buffer) waitUntilTaken() {
	for until := time.Now().Add(takenBound); time.Now().Before(until); {
		ticket := b.dom.PrepareSleep()
		if b.isTaken() {
			b.dom.CancelSleep()
			return
		}
		b.dom.Sleep(ticket, time.Millisecond)
	}
}

func (b *Buffer) isTaken() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err() != nil || b.far == nil || !b.isMember() || b.progress() != nil {
		return true
	}
	return b.far.carrier.Untaken()&b.members() == 0
}
