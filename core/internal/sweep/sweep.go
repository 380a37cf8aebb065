// Package sweep ends later what could not be ended at once.
package sweep

import (
	"sync"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
)

// Sweeper calls a function again and again while something is left over. It has a
// goroutine only then.
type Sweeper struct {
	// Every is the time between two calls.
	Every time.Duration

	name  string
	clean func() bool
	quit  chan struct{}
	ended sync.WaitGroup

	mu      sync.Mutex // guards what follows
	running bool
	more    bool // something may have been left over since clean looked
	stopped bool
}

// New makes a Sweeper. clean ends what it can, and reports whether nothing is left.
func New(name string, every time.Duration, clean func() bool) *Sweeper {
	return &Sweeper{Every: every, name: name, clean: clean, quit: make(chan struct{})}
}

// Begin says that something is left over. It does not wait. After Stop it does nothing.
func (s *Sweeper) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.more = true
	if s.running || s.stopped {
		return
	}
	s.running = true
	s.ended.Add(1)
	safego.Go(s.name, s.run, s.broken)
}

func (s *Sweeper) run() {
	defer s.ended.Done()
	tick := time.NewTicker(s.Every)
	defer tick.Stop()
	for s.goesOn() {
		select {
		case <-s.quit:
			return
		case <-tick.C:
		}
		if !s.clean() {
			s.Begin()
		}
	}
}

// broken runs when clean has panicked: the next Begin begins anew.
func (s *Sweeper) broken(error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = false
}

// goesOn reports whether there is something to sweep.
func (s *Sweeper) goesOn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.more = s.more && !s.stopped, false
	return s.running
}

// Stop ends the sweeping and waits for a call of clean that runs. Idempotent.
func (s *Sweeper) Stop() {
	s.mu.Lock()
	if !s.stopped {
		s.stopped = true
		close(s.quit)
	}
	s.mu.Unlock()
	s.ended.Wait()
}
