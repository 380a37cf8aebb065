package cpu

import (
	"sync"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/op"
)

// background goes on with operations that their caller left at PhaseSent: it
// receives, pulls and reduces until the caller comes back for them. One
// goroutine per buffer, from the first such operation on. It has no deadlines,
// fences no rank and shows no wait: the rank computes meanwhile, and is late by
// its own will.
type background struct {
	mu      sync.Mutex
	tasks   []task // new ones
	running bool
	wake    chan struct{}
}

func newBackground() background { return background{wake: make(chan struct{}, 1)} }

func (g *background) notify() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// leaveBehind gives a pending operation to the background.
func (b *Buffer) leaveBehind(t task) {
	b.mu.Lock()
	c := t.s.call(t.kind)
	if c.st != t.st || c.behind || b.err() != nil {
		b.mu.Unlock()
		return
	}
	c.behind = true
	known := c.queued
	if c.queued = true; !known {
		c.holders++
	}
	b.mu.Unlock()

	g := &b.behind
	g.mu.Lock()
	if !known {
		g.tasks = append(g.tasks, t)
	}
	if !g.running {
		g.running = true
		b.users.Add(1)
		safego.Go("background", b.serveBackground, func(err error) {
			defer b.users.Done()
			b.fail(op.Failed, err)
		})
	}
	g.mu.Unlock()
	g.notify()
	b.dom.Wake(b.self) // it may sleep for an earlier task
}

// resume drives an operation whose caller has come back for it. The background
// has it only while no caller does.
func (b *Buffer) resume(t task, until ep.Phase, limit time.Time) error {
	b.mu.Lock()
	if c := t.s.call(t.kind); c.st == t.st {
		c.behind = false
	}
	b.mu.Unlock()
	err := b.drive(t, until, limit)
	if t.st.State() == op.Pending {
		b.leaveBehind(t)
	}
	return err
}

func (b *Buffer) serveBackground() {
	var tasks []task
	for b.err() == nil {
		tasks = b.behind.take(tasks)
		if len(tasks) == 0 {
			<-b.behind.wake
			continue
		}
		ticket := b.dom.PrepareSleep() // before the words are looked at
		left := b.stepBehind(tasks)
		if left < len(tasks) {
			b.dom.CancelSleep()
		} else {
			b.dom.Sleep(ticket, b.pollInterval)
		}
		tasks = tasks[:left]
	}
	for _, t := range tasks {
		b.drop(t)
	}
	b.users.Done()
}

// take appends the new tasks to those at hand.
func (g *background) take(tasks []task) []task {
	g.mu.Lock()
	defer g.mu.Unlock()
	tasks = append(tasks, g.tasks...)
	g.tasks = g.tasks[:0]
	return tasks
}

// stepBehind steps every task once and moves those that remain to the front.
func (b *Buffer) stepBehind(tasks []task) (left int) {
	for _, t := range tasks {
		if b.stillBehind(t) {
			_, reached, err := b.step(t, ep.PhaseDone)
			if err != nil && t.st.State() == op.Pending { // not this operation's alone
				b.fail(op.Failed, err)
			}
			if !reached && err == nil {
				tasks[left] = t
				left++
				continue
			}
			b.dom.Wake(b.self) // its caller may have come back and sleep
		}
		b.drop(t)
	}
	return left
}

func (b *Buffer) stillBehind(t task) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := t.s.call(t.kind)
	if c.st == t.st && !c.behind {
		c.queued = false
	}
	return c.st == t.st && c.behind
}
