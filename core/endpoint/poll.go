package endpoint

import (
	"fmt"

	"github.com/moewire/moewire/core/transport"
)

// Poll takes completions from the transport, has handle look at them, and only then
// counts them. So while they are looked at, the endpoints that they belong to are not
// destroyed. Events are taken care of, too. It returns how many completions there were.
func (s *Store) Poll(done []transport.Completion, handle func([]transport.Completion)) (int, error) {
	events := s.takeEvents() // first: they say why requests have failed
	n, err := s.cfg.Transport.Poll(done)
	if n > 0 {
		if handle != nil {
			handle(done[:n])
		}
		s.account(done[:n])
	}
	if events || s.maybeDrained.Load() > 0 {
		s.mu.Lock()
		s.reclaim()
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
			s.maybeDrained.Add(1)
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
	n := s.cfg.Transport.PollEvents(s.events[:])
	if n == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ev := range s.events[:n] {
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
