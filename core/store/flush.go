package store

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// flusher are the calls of Flush: one goroutine flushes for all of them, however many wait.
type flusher struct {
	running sync.Mutex // one flush at a time
	wakeup  chan struct{}
	mu      sync.Mutex
	next    *round // that has not begun; nil if no call waits for one
}

// round is one flush, and what came of it.
type round struct {
	done chan struct{}
	err  error // once done is closed
}

// Flush returns once all that was committed before is on the disk, or with an error at the deadline, or ErrClosed. A call that
// finds a flush running waits for the next one, which serves all that have come meanwhile.
func (s *Store) Flush(deadline time.Time) error {
	r := s.flusher.join()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-r.done:
		return r.err
	case <-s.done:
		return ErrClosed
	case <-timer.C:
		return fmt.Errorf("flush: not done at its deadline")
	}
}

func (f *flusher) join() *round {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil {
		f.next = &round{done: make(chan struct{})}
		wake(f.wakeup)
	}
	return f.next
}

// flushRounds flushes for the calls of Flush, until the store is closed.
func (s *Store) flushRounds() {
	f := &s.flusher
	for {
		select {
		case <-s.done:
			return
		case <-f.wakeup:
		}
		f.mu.Lock()
		r := f.next
		f.next = nil
		f.mu.Unlock()
		r.err = s.flush()
		close(r.done)
	}
}

func (s *Store) flush() error {
	s.flusher.running.Lock()
	defer s.flusher.running.Unlock()
	s.deletes.wait()
	if err := s.giveUpDoubted(); err != nil {
		return err
	}
	erased := s.eraseAll()
	n := s.dirty.Load()
	if n == 0 || !s.medium.Lasts() {
		return errors.Join(erased, s.inDoubt())
	}
	if err := s.sync(0); err != nil {
		return errors.Join(erased, err)
	}
	s.dirty.Add(-n)
	s.counts.flushes.Add(1)
	return errors.Join(erased, s.inDoubt())
}
