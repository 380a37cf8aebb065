package tcp

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/standby"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// sleeper is a goroutine that sleeps until there is something to do.
type sleeper struct {
	asleep atomic.Bool
	bell   *sys.FD
	// Only for the goroutine that sleeps:
	spins   bool // the last sleep was over soon
	spinFor time.Duration
}

func (s *sleeper) open() (err error) {
	s.spinFor = spinFor
	s.bell, err = sys.NewEvent()
	return err
}

// sleep sleeps for at most d (negative: no bound) unless there is news.
func (t *Transport) sleep(s *sleeper, d time.Duration) error {
	begin := time.Now()
	defer func() { s.spins = time.Since(begin) < s.spinFor }()
	if s.spins && t.spin(s, begin, d) {
		return nil
	}
	s.asleep.Store(true)
	d = t.sleepLimit(d) // a goroutine that was not asleep was not told of a new deadline
	if t.isDue(s) {
		d = 0
	}
	err := t.poller.Sleep(s.bell, d)
	s.asleep.Store(false)
	return err
}

// isDue reports whether there is something to do that the sockets do not tell.
func (t *Transport) isDue(s *sleeper) bool {
	return t.hasReady() || s == &t.waiter && (t.news() || t.isClosed.Load())
}

// ring makes a sleeper look again. At most one call per sleep costs a system
// call.
func (s *sleeper) ring() {
	if s.asleep.Load() && s.asleep.CompareAndSwap(true, false) {
		_ = sys.Signal(s.bell)
	}
}

// interrupt makes every goroutine that sleeps look again.
func (t *Transport) interrupt() {
	t.waiter.ring()
	t.standby.ring()
}

// background is the goroutine that moves bytes while no caller polls: a peer may write
// here without this process's doing anything. It steps back when Poll or Wait is called.
type background struct {
	sleeper
	*standby.Watch // the callers of Poll and Wait
	ended          chan struct{}
	once           sync.Once
}

const standbyEvery = time.Millisecond

func (s *background) open(t *Transport) (err error) {
	if err = s.sleeper.open(); err != nil {
		return err
	}
	s.Watch, s.ended = standby.New(standbyEvery), make(chan struct{})
	safego.Go("tcp standby", func() { s.run(t) }, t.down)
	return nil
}

// down says that a goroutine of the transport has ended by itself.
func (t *Transport) down(err error) {
	t.events.push(transport.Event{Kind: transport.EventDeviceDown, Detail: err.Error()})
	t.interrupt()
}

// close ends the goroutine and waits for it. Idempotent.
func (s *background) close() (err error) {
	if s.Watch == nil {
		return nil
	}
	s.once.Do(func() {
		s.Quit()
		_ = sys.Signal(s.bell)
		<-s.ended
		err = s.bell.Close()
	})
	return err
}

func (s *background) run(t *Transport) {
	defer close(s.ended)
	timer := time.NewTimer(standbyEvery)
	defer timer.Stop()
	events := new(sys.PollEvents)
	for s.Rest(timer) {
		calls := s.Calls()
		for !s.IsBusy() && s.Calls() == calls && !s.Quits() {
			err := t.sleep(&s.sleeper, -1)
			if err == nil && !s.IsBusy() {
				err = t.progress(events)
			}
			if err != nil {
				t.down(err)
				return
			}
		}
	}
}
