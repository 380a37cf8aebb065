package pool

import (
	"errors"
	"time"
)

// waiter is one call of Wait, in order of arrival.
type waiter[T any] struct {
	// lease gets one lease: a value, or, with retry set before it is closed,
	// the news that a place is free. Closed without: the pool is.
	lease chan Lease[T]
	retry bool
}

// shift takes the oldest waiter off the list.
func (p *Pool[T]) shift() *waiter[T] {
	w := p.waiters[0]
	p.waiters = p.waiters[:copy(p.waiters, p.waiters[1:])]
	return w
}

// invite tells the oldest waiter that a place is free.
func (p *Pool[T]) invite() {
	if p.mutant == loseWakeup || len(p.waiters) == 0 || len(p.bare) == 0 || p.closed {
		return
	}
	w := p.shift()
	w.retry = true
	close(w.lease)
}

// Wait lends a value, waiting for one until the deadline: then ErrWouldBlock.
// Who waits longest is served first.
func (p *Pool[T]) Wait(deadline time.Time) (Lease[T], error) {
	for {
		l, again, err := p.wait(deadline)
		if !again {
			return l, err
		}
	}
}

func (p *Pool[T]) wait(deadline time.Time) (l Lease[T], again bool, err error) {
	p.mu.Lock()
	l, index, err := p.take()
	if !errors.Is(err, ErrWouldBlock) {
		p.mu.Unlock()
		if err == nil && index >= 0 {
			l, err = p.make(uint32(index))
		}
		return l, false, err
	}
	w := &waiter[T]{lease: make(chan Lease[T], 1)}
	p.waiters = append(p.waiters, w)
	p.mu.Unlock()
	return p.sleep(w, deadline)
}

func (p *Pool[T]) sleep(w *waiter[T], deadline time.Time) (l Lease[T], again bool, err error) {
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
			return l, false, ErrWouldBlock
		}
	}
	p.mu.Unlock()
	l, ok := <-w.lease // served in the last moment
	return p.woken(w, l, ok)
}

func (p *Pool[T]) woken(w *waiter[T], l Lease[T], ok bool) (Lease[T], bool, error) {
	switch {
	case ok:
		return l, false, nil
	case w.retry:
		return l, true, nil
	}
	return l, false, ErrClosed
}
