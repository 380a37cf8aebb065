package server

import (
	"fmt"
	"os"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
)

// Drain takes no more connections and no more requests, lets those that run end, and closes
// the server; at the deadline it does so in any case.
func (s *Server) Drain(deadline time.Time) {
	s.shut()
	for _, c := range s.all() {
		c.in.Stop()
	}
	select {
	case <-s.over:
	case <-time.After(time.Until(deadline)):
	}
	s.Close()
}

// Close ends all connections and waits for them, for Config.End at most: a disk that does not answer holds the request
// that has asked it. What a flush has begun ends with the store, or at its deadline. Idempotent.
func (s *Server) Close() {
	s.shut()
	s.cutOff()
	for _, c := range s.all() {
		_ = c.nc.Close()
	}
	s.closeSingles()
	select {
	case <-s.over:
	case <-time.After(s.cfg.End):
	}
}

// CloseStore closes the store of a server that was closed, once no request uses it. A store with a disk that does not answer in
// time is left to a goroutine: os.ErrDeadlineExceeded.
func (s *Server) CloseStore(closeStore func() error, within time.Duration) error {
	done := make(chan error, 1)
	safego.Go("store: storage", func() {
		<-s.over
		done <- closeStore()
	}, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-time.After(within):
		return fmt.Errorf("the storage was not closed within %v, because its disk does not answer: what was not flushed "+
			"may be lost, and the folder stays in use until this process ends: %w", within, os.ErrDeadlineExceeded)
	}
}

// shut ends the listener, and what is not authenticated.
func (s *Server) shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return
	}
	s.closing = true
	close(s.closed)
	_ = s.listener.Close()
	s.pending.Close()
	for c := range s.singles {
		if c.waits {
			_ = c.nc.SetReadDeadline(time.Unix(1, 0))
		}
	}
}

// awaitEnd closes over. Nothing is started any more once the listener has ended.
func (s *Server) awaitEnd() {
	safego.Go("store: end", func() {
		<-s.closed
		s.ended.Wait()
		close(s.over)
	}, nil)
}

func (s *Server) cutOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.cut:
	default:
		close(s.cut)
	}
}
