package pool

import (
	"errors"
	"time"
)

// waiter is one call of Wait, in order of arrival.
type waiter[T any] struct {
	// lease brings one lease, or is closed: with make set, place is reserved for a new
	// value; without it, the pool is closed.
	lease chan Lease[T]
	make  bool
	place uint32
}

// shift takes the oldest waiter off the list.
func (p *Pool[T]) shift() *waiter[T] {
	w := p.waiters[0]
	p.waiters = p.waiters[:copy(p.waiters, p.waiters[1:])]
	return w
}

// invite reserves a free place for the oldest waiter, so that no later caller
// takes it.
func (p *Pool[T]) invite() {
	if len(p.waiters) == 0 || len(p.empty) == 0 || p.closed {
		return
	}
	w := p.shift()
	w.make, w.place = true, p.reserve()
	close(w.lease)
}

// Wait leases a value, waiting for one until the deadline: then ErrWouldBlock.
// The caller that has waited longest is served first.
func (p *Pool[T]) Wait(deadline time.Time) (Lease[T], error) {
	p.mu.Lock()
	l, index, err := p.take()
	if !errors.Is(err, ErrWouldBlock) {
		p.mu.Unlock()
		if err == nil && index >= 0 {
			return p.make(uint32(index))
		}
		return l, err
	}
	w := &waiter[T]{lease: make(chan Lease[T], 1)}
	p.waiters = append(p.waiters, w)
	p.mu.Unlock()
	return p.sleep(w, deadline)
}

func (p *Pool[T]) sleep(w *waiter[T], deadline time.Time) (l Lease[T], err error) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case l, ok := <-w.lease:
		return p.woken(w, l, ok)
	case <-timer.C:
	}
	p.mu.Lock()
	for i, other := range p.waiters {
		if other == w {
			p.waiters = append(p.waiters[:i], p.waiters[i+1:]...)
			p.mu.Unlock()
			return l, ErrWouldBlock
		}
	}
	p.mu.Unlock()
	l, ok := <-w.lease // served in the last moment
	return p.woken(w, l, ok)
}

func (p *Pool[T]) woken(w *waiter[T], l Lease[T], ok bool) (Lease[T], error) {
	switch {
	case ok:
		return l, nil
	case w.make:
		return p.make(w.place)
	}
	return l, ErrClosed
}
