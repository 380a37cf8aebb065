package proxy

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/safego"
)

// Proxy sends and receives for kernels. Start and Stop are for one goroutine at
// a time; the rest is safe for concurrent use.
type Proxy struct {
	cfg  Config
	bell chan struct{}
	rung atomic.Bool // something may have changed with a rank

	stop atomic.Bool
	done chan struct{} // of the present goroutine; nil: there is none

	asked, settled atomic.Uint64 // of Settle: the latest number, the latest that holds

	sent, released, dropped atomic.Uint64

	mu  sync.Mutex
	err error
}

// Stats is what a proxy has done since New. A message that was given to a link
// counts as sent, also if the link fails and drops it.
type Stats struct {
	Sent, Released uint64 // messages
	Dropped        uint64 // messages to ranks that had been lost
}

// New makes a proxy that does nothing yet.
func New(cfg Config) (*Proxy, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	return &Proxy{cfg: cfg, bell: make(chan struct{}, 1)}, nil
}

var errRuns = errors.New("proxy: it runs")

// Start begins to serve the device over remote, which has no other user until Stop has
// returned. It returns the number that the device's end of the queue begins with. The
// device is idle; it has released nothing of what it was shown before, and is shown it
// again.
func (p *Proxy) Start(remote domain.RemotePlaces) (next uint64, err error) {
	if p.done != nil {
		return 0, errRuns
	}
	next = p.cfg.Queue.Restart()
	r := &round{p: p, remote: remote, generation: next >> protocol.FifoShift << protocol.FifoShift}
	p.fail(nil)
	p.stop.Store(false)
	p.rung.Store(true)
	done := make(chan struct{})
	p.done = done
	safego.Go("proxy", func() { p.run(r); close(done) }, func(err error) {
		p.end(ReasonDefect, err)
		close(done)
	})
	return next, nil
}

// Stop ends it. What the device has pushed before is still done, unless the proxy has
// failed. Threads of the device that wait for it are told. Idempotent.
func (p *Proxy) Stop() {
	if p.done == nil {
		return
	}
	p.stop.Store(true)
	p.wake()
	<-p.done
	p.done = nil
	p.cfg.Queue.End(ReasonStopped) // of a goroutine that has not come to it
}

// Ring says that a message may have come, that there may be room, or that a
// kernel was launched. It never blocks.
func (p *Proxy) Ring() {
	p.rung.Store(true)
	p.wake()
}

// Settle rings, and returns what Settled is asked with.
func (p *Proxy) Settle() (ticket uint64) {
	ticket = p.asked.Add(1)
	p.Ring()
	return ticket
}

// Settled says whether what the device had pushed before that Settle is done:
// messages were given to their links. It also is once the queue has been ended, by
// Stop or a failure: nothing may come of it then.
func (p *Proxy) Settled(ticket uint64) bool {
	return p.settled.Load() >= ticket || p.cfg.Queue.EndReason() != 0
}

func (p *Proxy) wake() {
	select {
	case p.bell <- struct{}{}:
	default:
	}
}

// Err says why the proxy has failed; nil if it has not. The device was told, too.
func (p *Proxy) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Stats returns the counts.
func (p *Proxy) Stats() Stats {
	return Stats{Sent: p.sent.Load(), Released: p.released.Load(), Dropped: p.dropped.Load()}
}

func (p *Proxy) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

func (p *Proxy) end(reason uint64, err error) {
	p.fail(err)
	p.cfg.Queue.End(reason)
}

func reasonOf(err error) uint64 {
	if errors.Is(err, errFlush) {
		return ReasonFlush
	}
	return ReasonBroken
}

// run serves until it is stopped.
func (p *Proxy) run(r *round) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	idle, since := 0, time.Now() // how often nothing was there, and since when
	for !p.stop.Load() {
		some, err := r.step()
		switch {
		case err != nil:
			p.end(reasonOf(err), err)
			return
		case some:
			idle = 0
		case idle < p.cfg.Spins:
			if idle == 0 {
				since = time.Now()
			}
			idle++
			runtime.Gosched()
		case p.sleep(timer, napAfter(time.Since(since), p.cfg.Nap)):
			idle = 0
		}
	}
	p.cfg.Queue.End(ReasonStopped)
	if err := r.last(); err != nil {
		p.fail(err)
	}
}

// napAfter is how long to sleep after so long a time with nothing to do: what
// comes next is late by no more than an eighth of the time that it let pass.
func napAfter(idle, most time.Duration) time.Duration {
	return min(max(idle/8, firstNap), most)
}

// sleep waits for the bell, and reports whether it has rung.
func (p *Proxy) sleep(timer *time.Timer, d time.Duration) bool {
	timer.Reset(d)
	select {
	case <-p.bell:
		return true
	case <-timer.C:
		return false
	}
}

// last does what was pushed before the end.
func (r *round) last() error {
	for {
		n := r.p.cfg.Queue.Take(r.taken[:])
		if n == 0 {
			return nil
		}
		for i := range n {
			if err := r.serve(&r.taken[i]); err != nil {
				return err
			}
		}
	}
}
