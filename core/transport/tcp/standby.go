package tcp

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// sleeper is somebody who sleeps until there is something to do.
type sleeper struct {
	asleep atomic.Bool
	bell   *sys.FD
}

// sleep sleeps for at most d (negative: no bound) unless there is news.
func (t *Transport) sleep(s *sleeper, d time.Duration) error {
	s.asleep.Store(true)
	if t.hasReady() || s == &t.waiter && (t.news() || t.isClosed.Load()) {
		d = 0
	}
	err := t.poller.Sleep(s.bell, d)
	s.asleep.Store(false)
	return err
}

// ring makes a sleeper look again. At most one call per sleep costs a system
// call.
func (s *sleeper) ring() {
	if s.asleep.Load() && s.asleep.CompareAndSwap(true, false) {
		_ = sys.Signal(s.bell)
	}
}

// interrupt makes everybody who sleeps look again.
func (t *Transport) interrupt() {
	t.waiter.ring()
	t.standby.ring()
}

// standby is the goroutine that moves bytes while nobody polls: a peer may
// write here without this process's doing anything. It steps back when Poll or
// Wait is called, because one who works for himself is faster than two who wake
// each other: it looks every standbyEvery whether that is still so, and not at
// all while somebody is in Wait.
type standby struct {
	sleeper
	calls  atomic.Uint64 // of Poll and Wait
	inside atomic.Int32  // calls of Wait that run
	parked atomic.Bool   // until somebody leaves Wait
	unpark chan struct{}
	quit   chan struct{}
	ended  chan struct{}
	once   sync.Once
}

const standbyEvery = time.Millisecond

func (s *standby) open(t *Transport) (err error) {
	s.unpark, s.quit, s.ended = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	if s.bell, err = sys.NewEvent(); err != nil {
		s.quit = nil
		return err
	}
	safego.Go("tcp standby", func() { s.run(t) }, t.down)
	return nil
}

// down says that a goroutine of the transport has ended by itself.
func (t *Transport) down(err error) {
	t.events.push(transport.Event{Kind: transport.EventDeviceDown, Detail: err.Error()})
	t.interrupt()
}

// close ends the goroutine and waits for it. Idempotent.
func (s *standby) close(*Transport) (err error) {
	if s.quit == nil {
		return nil
	}
	s.once.Do(func() {
		close(s.quit)
		_ = sys.Signal(s.bell)
		<-s.ended
		err = s.bell.Close()
	})
	return err
}

// leave and enter are called by Wait: the caller works now, or not any more.
func (s *standby) leave() {
	s.calls.Add(1)
	s.inside.Add(1)
}

func (s *standby) enter() {
	s.inside.Add(-1)
	if s.parked.Load() && s.parked.CompareAndSwap(true, false) {
		select {
		case s.unpark <- struct{}{}:
		default:
		}
	}
}

func (s *standby) run(t *Transport) {
	defer close(s.ended)
	timer := time.NewTimer(standbyEvery)
	defer timer.Stop()
	events := new(sys.PollEvents)
	for s.rest(timer) {
		calls := s.calls.Load()
		for s.inside.Load() == 0 && s.calls.Load() == calls && !s.quits() {
			err := t.sleep(&s.sleeper, t.nap(-1))
			if err == nil && s.inside.Load() == 0 {
				err = t.progress(events)
			}
			if err != nil {
				t.down(err)
				return
			}
		}
	}
}

func (s *standby) quits() bool {
	select {
	case <-s.quit:
		return true
	default:
		return false
	}
}

// rest returns when nobody has polled for standbyEvery; false at the end.
func (s *standby) rest(timer *time.Timer) bool {
	for {
		calls := s.calls.Load()
		timer.Reset(standbyEvery)
		select {
		case <-s.quit:
			return false
		case <-timer.C:
		}
		if s.inside.Load() == 0 && s.calls.Load() == calls {
			return true
		}
		if !s.park() {
			return false
		}
	}
}

// park waits while somebody is in Wait; false at the end.
func (s *standby) park() bool {
	s.parked.Store(true)
	if s.inside.Load() == 0 {
		s.parked.Store(false)
		return true
	}
	select {
	case <-s.quit:
		return false
	case <-s.unpark:
		return true
	}
}
