package endpoint

import (
	"time"

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
	announced := e.state() >= offered
	e.enter(retiring)
	e.since, e.pair = s.cfg.Now(), nil
	s.stats.Retiring++
	s.retired = append(s.retired, i)
	p.index = none
	p.gen = s.nextGen()
	s.idle.add(p)
	p.theirs.seen, p.theirs.ready = false, false
	if announced {
		s.sendState(p, false)
	}
	if !e.busy { // else its task goes on with it
		s.takeDown(i)
	}
	s.wakeWaiters()
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
		s.leave(i) // it never had one
		return
	}
	s.task(i, func(s *Store, i int32) {
		e := s.at(i)
		err := attempt("retire", e.ep.Retire)
		s.mu.Lock()
		e.busy, e.flushed = false, err == nil
		s.reclaim()
		s.mu.Unlock()
	})
}

// retake tries again where that has failed.
func (s *Store) retake() {
	for _, i := range s.retired {
		if e := s.entries[i]; !e.busy && !e.flushed && e.state() != destroying {
			s.takeDown(i)
		}
	}
}

// reclaim destroys what is retired and has nothing outstanding any more.
func (s *Store) reclaim() {
	s.maybeDrained.Store(0)
	for k := len(s.retired) - 1; k >= 0; k-- {
		i := s.retired[k]
		e := s.entries[i]
		if st := e.state(); st == destroying || e.busy || !e.flushed {
			continue
		}
		if !e.drained() {
			continue
		}
		s.uncount(e)
		e.enter(destroying)
		s.tasks.destroying++
		s.task(i, (*Store).destroy)
	}
}

// uncount: an entry is no longer just retired.
func (s *Store) uncount(e *entry) {
	if e.state() == retiring {
		s.stats.Retiring--
	}
}

// destroy closes an endpoint; if the transport does not, later once more.
func (s *Store) destroy(i int32) {
	e := s.at(i)
	err := attempt("close", e.ep.Close)
	s.mu.Lock()
	defer s.mu.Unlock()
	e.busy = false
	s.tasks.destroying--
	if err == nil {
		s.vacate(i)
		return
	}
	e.enter(retiring)
	s.stats.Retiring++
	s.confine(e, s.cfg.Now())
}

// confine puts a retired entry into quarantine if it has taken too long, or
// was there before.
func (s *Store) confine(e *entry, now time.Time) {
	if e.state() != retiring || e.busy || (!e.overdue && now.Sub(e.since) <= s.cfg.DrainFor) {
		return
	}
	s.stats.Retiring--
	e.enter(quarantined)
	if !e.overdue {
		e.overdue = true
		s.stats.Quarantined++
		s.wakeWaiters() // a pair that waits for this place takes another
	}
}

// vacate gives back a place when its queue pair is gone.
func (s *Store) vacate(i int32) {
	delete(s.byID, s.entries[i].id)
	s.stats.Destroyed++
	s.leave(i)
}

func (s *Store) leave(i int32) {
	for k, other := range s.retired {
		if other == i {
			s.retired = append(s.retired[:k], s.retired[k+1:]...)
			break
		}
	}
	e := s.entries[i]
	s.uncount(e)
	if e.overdue {
		s.stats.Quarantined--
	}
	e.leave()
	s.room.fruitless = 0
	s.vacant = append(s.vacant, i)
	s.wakeWaiters()
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
