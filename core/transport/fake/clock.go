package fake

import (
	"sync"
	"time"
)

// Clock is a time that only moves when it is told to. All methods are safe for
// concurrent use.
type Clock struct {
	mu     sync.Mutex
	now    time.Time
	change chan struct{} // closed by the next Advance
}

// NewClock returns a clock that shows start.
func NewClock(start time.Time) *Clock {
	return &Clock{now: start, change: make(chan struct{})}
}

// Now is what the clock shows.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock on by d, which is not negative.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(max(d, 0))
	close(c.change)
	c.change = make(chan struct{})
}

// look returns the time and a channel that is closed when it has changed.
func (c *Clock) look() (time.Time, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now, c.change
}

// sleeper waits for a signal or a time. One goroutine at a time.
type sleeper struct {
	clock *Clock // nil: real time
	timer *time.Timer
}

func (s *sleeper) now() time.Time {
	if s.clock == nil {
		return time.Now()
	}
	return s.clock.Now()
}

// until returns when signal has something, or at the time given (the zero
// time: never). It reports whether it was the signal.
func (s *sleeper) until(at time.Time, signal <-chan struct{}) bool {
	if s.clock != nil {
		return s.untilFake(at, signal)
	}
	if at.IsZero() {
		<-signal
		return true
	}
	if s.timer == nil {
		s.timer = time.NewTimer(time.Until(at))
	} else {
		s.timer.Reset(time.Until(at))
	}
	defer s.timer.Stop()
	select {
	case <-signal:
		return true
	case <-s.timer.C:
		return false
	}
}

func (s *sleeper) untilFake(at time.Time, signal <-chan struct{}) bool {
	for {
		now, change := s.clock.look()
		if !at.IsZero() && !now.Before(at) {
			return false
		}
		select {
		case <-signal:
			return true
		case <-change:
		}
	}
}
