package endpoint

import (
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/transport"
)

// tasks are the calls into the transport that may block: each entry has at most one under
// way. Connects, which wait for a peer, have a lane of their own, so that unresponsive
// peers, however many, do not delay the rest. NumTasks run at a time in each lane. A task
// that lasts too long counts as quarantined, and lets another one run.
type tasks struct {
	connects, others lane
	active           map[*running]struct{}
	destroying       int
}

type lane struct {
	queue []task
	busy  int // that run and are not stuck
}

type task struct {
	index int32
	do    func(*Store, int32)
}

type running struct {
	lane    *lane
	index   int32
	began   time.Time
	stuck   bool
	counted bool // as quarantined
}

// task has f called for an entry, soon and without the lock. f ends by
// clearing busy.
func (s *Store) task(i int32, f func(*Store, int32)) { s.taskIn(&s.tasks.others, i, f) }

func (s *Store) taskIn(l *lane, i int32, f func(*Store, int32)) {
	s.entries[i].busy = true
	l.queue = append(l.queue, task{i, f})
	s.spawn(l)
}

func (s *Store) spawn(l *lane) {
	for len(l.queue) > 0 && l.busy < s.cfg.NumTasks {
		next := l.queue[0]
		l.queue = l.queue[:copy(l.queue, l.queue[1:])]
		r := &running{lane: l, index: next.index, began: s.cfg.Now()}
		if s.tasks.active == nil {
			s.tasks.active = map[*running]struct{}{}
		}
		s.tasks.active[r] = struct{}{}
		l.busy++
		safego.Go("endpoint task", func() {
			defer s.ended(r)
			next.do(s, next.index)
		}, nil)
	}
}

func (s *Store) ended(r *running) {
	s.mu.Lock()
	delete(s.tasks.active, r)
	if r.counted {
		s.stats.Quarantined--
	}
	if !r.stuck {
		r.lane.busy--
	}
	s.spawn(r.lane)
	s.wakeWaiters()
	s.mu.Unlock()
	s.flush()
}

// create makes an entry's endpoint.
func (s *Store) create(i int32) {
	e := s.at(i)
	ep, err := s.newEndpoint()
	ref := Ref{i, e.gen()}
	if err == nil {
		id, local := ep.ID(), ep.Local()
		s.mu.Lock()
		e.ep, e.id, e.local = ep, id, local
		s.byID[id] = i
		s.stats.Made++
		s.mu.Unlock()
		if s.cfg.Prepare != nil {
			err = attempt("prepare", func() error { return s.cfg.Prepare(ref) })
		}
	}
	s.reached(i, offered, err)
}

// reached ends an attempt to bring an entry to a state.
func (s *Store) reached(i int32, next state, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[i]
	e.busy = false
	switch {
	case e.state() == retiring: // no pair wants it any more
		s.takeDown(i)
	case err != nil:
		s.failed(i, err)
	default:
		e.enter(next)
		s.sendState(e.pair, true)
		s.advance(e.pair)
	}
}

// attempt is a call into the transport, or of the owner's code, as part of a task.
// A panic is a failure like others: the task goes on, so that its entry does not
// stay busy for good.
func attempt(name string, f func() error) (err error) {
	if panicked := safego.Call("endpoint "+name, func() { err = f() }); panicked != nil {
		return panicked
	}
	return err
}

// newEndpoint tries once more when the system has no queue pair left and an
// idle connection can give its own.
func (s *Store) newEndpoint() (transport.Endpoint, error) {
	ep, err := s.tryEndpoint()
	if errors.Is(err, transport.ErrNoResource) {
		s.mu.Lock()
		s.stats.NoResource++
		s.mu.Unlock()
		if s.evictIdle() {
			return s.tryEndpoint()
		}
	}
	return ep, err
}

func (s *Store) tryEndpoint() (ep transport.Endpoint, err error) {
	err = attempt("creation", func() (err error) {
		ep, err = s.cfg.Transport.NewEndpoint(s.cfg.Spec)
		return err
	})
	return ep, err
}

// evictIdle takes down a connection without outstanding requests, at once. Receives are
// requests: a caller that keeps some posted on every connection has none that is idle.
func (s *Store) evictIdle() bool {
	s.mu.Lock()
	idle := func(i int32) bool { return s.entries[i].drained() }
	i := s.live.candidate(idle, s.wasVisited)
	if i == none {
		s.mu.Unlock()
		return false
	}
	s.stats.Evicted++
	e := s.entries[i]
	e.busy = true
	s.retire(i, nil)
	s.mu.Unlock()
	s.flush()
	flushed := attempt("retire", e.ep.Retire) == nil
	closed := flushed && e.drained() && attempt("close", e.ep.Close) == nil // a caller may have posted meanwhile
	s.mu.Lock()
	defer s.mu.Unlock()
	e.busy, e.flushed = false, flushed
	if closed {
		s.vacate(i)
	} else {
		s.reclaim()
	}
	return closed
}

// join connects an entry's endpoint to the address that its peer has said.
func (s *Store) join(i int32) {
	s.mu.Lock()
	e := s.entries[i]
	var address []byte
	if e.pair != nil {
		address = e.pair.theirs.address
	}
	deadline := s.cfg.Now().Add(s.cfg.ConnectFor)
	s.mu.Unlock()
	err := transport.ErrState // retired before it began
	if address != nil {
		err = attempt("connect", func() error { return e.ep.Connect(address, deadline) })
	}
	s.reached(i, joined, err)
}

// failed ends an attempt: the entry goes, and the pause begins.
func (s *Store) failed(i int32, err error) {
	p := s.entries[i].pair
	p.give(err, s.cfg.Now(), s.cfg.RetryAfter)
	s.stats.Failed++
	s.retire(i, p.err)
}

func (s *Store) at(i int32) *entry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.entries[i]
}

// stuckTasks records the tasks that last too long. Each counts as quarantined
// until it ends.
func (s *Store) stuckTasks(now time.Time) {
	for r := range s.tasks.active {
		if !r.stuck && now.Sub(r.began) > s.cfg.DrainFor {
			r.stuck, r.counted = true, !s.entries[r.index].overdue
			r.lane.busy--
			if r.counted {
				s.stats.Quarantined++
			}
			s.spawn(r.lane)
			s.wakeWaiters() // a pair that waits for this place takes another
		}
	}
}

// errLate is the error of a connection attempt that its deadline ended.
func (s *Store) errLate() error {
	return fmt.Errorf("%w: no connection after %v", ErrUnreachable, s.cfg.ConnectFor)
}
