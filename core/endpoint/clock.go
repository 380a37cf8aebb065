package endpoint

import (
	"fmt"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/transport"
)

// Tick does what time asks for: it reclaims, sends handshakes again, gives attempts
// up, and puts into quarantine what has had completions outstanding for too long. Start
// calls it; two never overlap.
func (s *Store) Tick() {
	if !s.ticking.TryLock() {
		return
	}
	defer s.ticking.Unlock()
	defer s.flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Now()
	s.reclaim()
	s.quarantine(now)
	s.retake()
	s.stuckTasks(now)
	s.letAsk(now)
	for _, p := range s.pairs {
		s.hurry(p, now)
	}
}

func (s *Store) quarantine(now time.Time) {
	for _, i := range s.retired {
		s.confine(s.entries[i], now)
	}
}

// hurry looks after one attempt.
func (s *Store) hurry(p *pair, now time.Time) {
	if p.index == none || s.entries[p.index].state() == live {
		return
	}
	if p.until.IsZero() {
		p.until = now.Add(s.cfg.ConnectFor)
	}
	switch {
	case !now.Before(p.until):
		s.failed(p.index, s.errLate())
	case !now.Before(p.resend):
		s.sendState(p, true)
	}
}

// ticker calls Tick.
type ticker struct {
	stop, ended chan struct{}
}

// Start has Tick called every d until Close.
func (s *Store) Start(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.ticker.stop != nil {
		return
	}
	s.ticker = ticker{make(chan struct{}), make(chan struct{})}
	t := s.ticker
	safego.Go("endpoint ticker", func() {
		defer close(t.ended)
		clock := time.NewTicker(d)
		defer clock.Stop()
		for {
			select {
			case <-t.stop:
				return
			case <-clock.C:
				s.tickSafely()
			}
		}
	}, nil)
}

// tickSafely: a mistake in the owner's Send or Changed must not end what
// reclaims and gives up.
func (s *Store) tickSafely() {
	if safego.Call("endpoint tick", s.Tick) == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Panics++
}

// Close retires everything, and returns when all queue pairs are gone and no callback
// runs. An error says how many are left at the deadline. Close polls the transport
// itself; no other goroutine may from here on. The transport stays open. Idempotent; a
// second call at the same time waits for the end of the first.
func (s *Store) Close(deadline time.Time) error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	t := s.ticker
	s.ticker = ticker{}
	if first {
		for i, e := range s.entries {
			if st := e.state(); st >= creating && st <= live {
				s.retire(int32(i), ErrClosed)
			}
		}
	}
	s.mu.Unlock()
	if t.stop != nil {
		close(t.stop)
		<-t.ended
	}
	s.closing.Lock()
	defer s.closing.Unlock()
	return s.drain(deadline)
}

func (s *Store) drain(deadline time.Time) error {
	done := make([]transport.Completion, 64)
	for {
		if _, err := s.Poll(done, nil); err != nil {
			return err
		}
		s.Tick()
		s.mu.RLock()
		left := len(s.entries) - len(s.vacant)
		idle := len(s.tasks.active) == 0 && !s.delivering && len(s.outbox)+len(s.news) == 0
		s.mu.RUnlock()
		switch {
		case left == 0 && idle:
			return nil
		case !time.Now().Before(deadline):
			return fmt.Errorf("%d connections could not be taken down", left)
		}
		_ = s.cfg.Transport.Wait(time.Millisecond)
	}
}
