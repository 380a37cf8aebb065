package endpoint

import (
	"fmt"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/transport"
)

// retire ends an entry's use: nothing can be posted on it from here on. What
// was posted completes, and then it is destroyed.
func (s *Store) retire(i int32, why error) {
	e := s.entries[i]
	p := e.pair
	if e.state() == live {
		s.live.remove(i)
		s.stats.Live--
		s.news = append(s.news, change{e.peer, Ref{i, e.gen()}, orEvicted(why)})
	} else {
		s.stats.Connecting--
	}
	told := e.state() >= offered
	e.enter(retiring)
	e.since, e.pair = s.cfg.Now(), nil
	s.stats.Retiring++
	s.retired = append(s.retired, i)
	p.index = none
	p.gen++
	p.theirs.seen, p.theirs.ready = false, false
	if told {
		s.say(p, false)
	}
	if !e.busy { // else its task goes on with it
		s.takeDown(i)
	}
	s.rouse()
}

func orEvicted(why error) error {
	if why == nil {
		return transport.ErrState
	}
	return why
}

// takeDown has a retired entry's endpoint moved to the error state.
func (s *Store) takeDown(i int32) {
	if e := s.entries[i]; e.ep == nil {
		s.vacate(i) // it never had one
		return
	}
	s.task(i, func(s *Store, i int32) {
		e := s.at(i)
		_ = e.ep.Retire()
		s.mu.Lock()
		e.busy, e.flushed = false, true
		s.sweep()
		s.mu.Unlock()
	})
}

// sweep is reclaim for everybody but an insert.
func (s *Store) sweep() {
	if s.mutant != reclaimOnInsert {
		s.reclaim()
	}
}

// reclaim destroys what is retired and owes nothing any more.
func (s *Store) reclaim() {
	s.owed.Store(0)
	for k := len(s.retired) - 1; k >= 0; k-- {
		i := s.retired[k]
		e := s.entries[i]
		if st := e.state(); st == destroying || e.busy || !e.flushed {
			continue
		}
		if !e.drained() && s.mutant != destroyOwed {
			continue
		}
		s.count(e, -1)
		e.enter(destroying)
		s.tasks.destroying++
		s.task(i, (*Store).destroy)
	}
}

// count keeps the numbers of retired entries.
func (s *Store) count(e *entry, by int) {
	switch e.state() {
	case retiring:
		s.stats.Retiring += by
	case quarantined:
		s.stats.Quarantined += by
	}
}

// destroy closes an endpoint; if the transport says that it is owed something,
// later once more.
func (s *Store) destroy(i int32) {
	e := s.at(i)
	id := e.ep.ID()
	err := e.ep.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	e.busy = false
	s.tasks.destroying--
	if err != nil {
		e.enter(retiring)
		s.count(e, 1)
		return
	}
	delete(s.byID, id)
	s.stats.Destroyed++
	s.leave(i)
}

// vacate gives a retired entry's place back.
func (s *Store) vacate(i int32) {
	e := s.entries[i]
	s.count(e, -1)
	if e.ep != nil {
		delete(s.byID, e.ep.ID())
		s.stats.Destroyed++
	}
	s.leave(i)
}

func (s *Store) leave(i int32) {
	for k, other := range s.retired {
		if other == i {
			s.retired = append(s.retired[:k], s.retired[k+1:]...)
			break
		}
	}
	s.entries[i].leave()
	s.vacant = append(s.vacant, i)
	s.rouse()
}

// Retire ends a connection, because its owner says so. A stale reference does
// nothing.
func (s *Store) Retire(r Ref) {
	defer s.flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entryOf(r, creating, live); e != nil {
		s.retire(r.index, nil)
	}
}

// Poll takes completions from the transport, has handle look at them, and
// only then counts them: while they are looked at, nothing that they are of is
// destroyed. Events are taken care of, too. It returns how many completions
// there were.
func (s *Store) Poll(done []transport.Completion, handle func([]transport.Completion)) (int, error) {
	n, err := s.cfg.Transport.Poll(done)
	if n > 0 {
		if handle != nil {
			handle(done[:n])
		}
		s.account(done[:n])
	}
	if s.takeEvents() || s.owed.Load() > 0 {
		s.mu.Lock()
		s.sweep()
		s.mu.Unlock()
		s.flush()
	}
	return n, err
}

func (s *Store) account(done []transport.Completion) {
	failed := false
	s.mu.RLock()
	for i := range done {
		at, ok := s.byID[done[i].Endpoint]
		if !ok {
			continue
		}
		e := s.entries[at]
		e.ended.Add(1)
		if st := e.state(); st >= retiring {
			s.owed.Add(1)
		} else if done[i].Status != transport.StatusOK {
			failed = true
		}
	}
	s.mu.RUnlock()
	if failed {
		s.retireFailed(done)
	}
}

// retireFailed retires connections of which a request has failed.
func (s *Store) retireFailed(done []transport.Completion) {
	defer s.flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range done {
		if done[i].Status != transport.StatusOK {
			s.lose(done[i].Endpoint, fmt.Errorf("%w: a request failed with status %d", ErrUnreachable, done[i].Status))
		}
	}
}

// lose retires the connection of an endpoint that has failed by itself.
func (s *Store) lose(id transport.EndpointID, why error) {
	i, ok := s.byID[id]
	if !ok || s.entries[i].state() > live {
		return
	}
	s.entries[i].pair.give(why, s.cfg.Now(), s.cfg.RetryAfter)
	s.stats.Failed++
	s.retire(i, why)
}

// takeEvents reports whether there were any.
func (s *Store) takeEvents() bool {
	var events [16]transport.Event
	n := s.cfg.Transport.PollEvents(events[:])
	if n == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ev := range events[:n] {
		switch ev.Kind {
		case transport.EventEndpointFailed:
			s.lose(ev.Endpoint, fmt.Errorf("%w: %s", ErrUnreachable, ev.Detail))
		case transport.EventDeviceDown:
			for id := range s.byID {
				s.lose(id, fmt.Errorf("%w: device down: %s", ErrUnreachable, ev.Detail))
			}
		default:
			s.stats.Events++
		}
	}
	return true
}

// Tick does what time asks for: it reclaims, sends notes again, gives attempts
// up, and puts into quarantine what is owed completions for too long. Start
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
	s.sweep()
	s.quarantine(now)
	s.stuckTasks(now)
	for _, p := range s.pairs {
		s.hurry(p, now)
	}
}

func (s *Store) quarantine(now time.Time) {
	for _, i := range s.retired {
		if e := s.entries[i]; e.state() == retiring && !e.busy && now.Sub(e.since) > s.cfg.DrainFor {
			s.count(e, -1)
			e.enter(quarantined)
			s.count(e, 1)
		}
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
		s.say(p, true)
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
				s.Tick()
			}
		}
	}, nil)
}

// Close retires everything, and returns when all queue pairs are gone; an
// error says how many are left at the deadline. It polls the transport itself:
// nobody else may from here on. The transport stays open. Idempotent.
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
		left, idle := len(s.entries)-len(s.vacant), len(s.tasks.active) == 0
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
