package endpoint

import "github.com/moewire/moewire/core/transport"

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
	if s.mutant == lockedCalls && e.ep != nil {
		_ = e.ep.Retire()
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
