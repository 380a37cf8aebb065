// Package accept takes connections of clients that nothing is known of yet, and keeps
// them in bounds: a few at a time, each for a while, and the oldest makes room. So they
// cost the others nothing. Each carrier has a loop of its own around it.
package accept

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/atomic"

	"github.com/moewire/moewire/core/internal/sys"
)

// InARow is how many connections Take takes before others have their turn: connections
// may come without end. What waits is reported again.
const InARow = 32

// Take hands over connections that wait at a listener, which does not block. The error
// says why no more can be taken, such as a want of descriptors: the listener stays
// readable, so the caller has to leave it alone for a while.
func Take(listener *sys.FD, admit func(*sys.FD)) error {
	for range InARow {
		fd, err := sys.Accept(listener)
		if errors.Is(err, sys.ErrAgain) {
			return nil
		}
		if err != nil {
			return err
		}
		admit(fd)
	}
	return nil
}

// Pending are the connections that have not shown yet that they may be here, the oldest
// first. For one goroutine.
type Pending[T comparable] struct {
	max  int
	stay time.Duration
	drop func(T)
	list []pending[T]
}

type pending[T comparable] struct {
	conn  T
	until time.Time
}

// NewPending makes an empty list of at most max connections, each of which may stay for
// so long. drop ends one that may not.
func NewPending[T comparable](most int, stay time.Duration, drop func(T)) Pending[T] {
	return Pending[T]{max: most, stay: stay, drop: drop}
}

// Add lists a connection. It reports whether the oldest one had to make room: a peer that
// may be here is through in a moment.
func (p *Pending[T]) Add(conn T) (crowded bool) {
	if crowded = len(p.list) == p.max; crowded {
		p.drop(p.take(0))
	}
	p.list = append(p.list, pending[T]{conn, time.Now().Add(p.stay)})
	return crowded
}

// Remove takes a connection off the list, which is its owner's then. It reports whether it was there, and not dropped.
func (p *Pending[T]) Remove(conn T) (there bool) {
	for i := range p.list {
		if p.list[i].conn == conn {
			p.take(i)
			return true
		}
	}
	return false
}

func (p *Pending[T]) take(i int) T {
	conn := p.list[i].conn
	p.list = slices.Delete(p.list, i, i+1)
	return conn
}

// Expire drops the connections that have been here for too long, and returns how many.
func (p *Pending[T]) Expire(now time.Time) (expired int) {
	for ; len(p.list) > 0 && !now.Before(p.list[0].until); expired++ {
		p.drop(p.take(0))
	}
	return expired
}

// Next is when Expire has something to do; the zero time if there is no connection.
func (p *Pending[T]) Next() (at time.Time) {
	if len(p.list) > 0 {
		at = p.list[0].until
	}
	return at
}

// All is a copy of the list.
func (p *Pending[T]) All() (all []T) {
	for i := range p.list {
		all = append(all, p.list[i].conn)
	}
	return all
}

// Close drops all.
func (p *Pending[T]) Close() {
	for len(p.list) > 0 {
		p.drop(p.take(0))
	}
}

// Refusal remembers why a connection could not be taken at last. Safe for concurrent use.
type Refusal struct{ err atomic.Error }

// Note remembers an error.
func (r *Refusal) Note(err error) { r.err.Store(err) }

// String is for the end of another error's text; "" if all were taken.
func (r *Refusal) String() string {
	if err := r.err.Load(); err != nil {
		return fmt.Sprintf(" (here, a connection could not be taken: %v)", err)
	}
	return ""
}
