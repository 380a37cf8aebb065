package op

import (
	"errors"
	"fmt"
)

// ErrFull means that a bounded queue has no room. Nothing has happened.
var ErrFull = errors.New("queue is full")

// Arrival is a write with immediate that has come in.
type Arrival struct {
	Imm      uint32
	NumBytes int64
}

// Matcher matches the writes with immediate of one peer with the receives that
// wait for them, both in order. Either side may be ahead, by at most
// the bound. Not safe for concurrent use.
type Matcher struct {
	arrivals  ring[Arrival]
	receives  ring[Ref]
	condemned int // receives, the oldest ones
}

// NewMatcher makes a matcher for at most n unmatched entries on either side.
func NewMatcher(n int) (*Matcher, error) {
	if n < 1 || n > MaxSlots {
		return nil, fmt.Errorf("op: %d arrivals, allowed 1 to %d", n, MaxSlots)
	}
	return &Matcher{arrivals: ring[Arrival]{at: make([]Arrival, n)}, receives: ring[Ref]{at: make([]Ref, n)}}, nil
}

// Arrive gives an arrival to the oldest receive, which is returned, or keeps
// it. ErrFull: too many are unmatched already, so the peer has sent more than
// it was allowed to.
func (m *Matcher) Arrive(a Arrival) (r Ref, matched bool, err error) {
	if r, matched = m.receives.pop(); matched {
		m.condemned = max(0, m.condemned-1)
		return r, true, nil
	}
	if !m.arrivals.push(a) {
		return r, false, ErrFull
	}
	return r, false, nil
}

// Receive gives a receive the oldest arrival, or lets it wait for one.
func (m *Matcher) Receive(r Ref) (a Arrival, matched bool, err error) {
	if a, matched = m.arrivals.pop(); matched {
		return a, true, nil
	}
	if !m.receives.push(r) {
		return a, false, ErrFull
	}
	return a, false, nil
}

// Withdraw takes a waiting receive out, and reports whether it was there.
func (m *Matcher) Withdraw(r Ref) bool {
	found, condemned := false, m.condemned
	for i := range m.receives.count {
		other, _ := m.receives.pop()
		if other == r && !found {
			found = true
			if i < condemned {
				m.condemned--
			}
			continue
		}
		m.receives.push(other)
	}
	return found
}

// IsEmpty reports whether nothing waits on either side.
func (m *Matcher) IsEmpty() bool { return m.arrivals.count == 0 && m.receives.count == 0 }

// Condemn marks the receives that wait now: nothing more will come for them, except what
// has arrived and is not known yet.
func (m *Matcher) Condemn() { m.condemned = m.receives.count }

// Abandon takes the oldest condemned receive out.
func (m *Matcher) Abandon() (r Ref, was bool) {
	if m.condemned == 0 {
		return r, false
	}
	m.condemned--
	return m.receives.pop()
}

// ring is a bounded queue.
type ring[T any] struct {
	at          []T
	head, count int
}

func (q *ring[T]) push(v T) bool {
	if q.count == len(q.at) {
		return false
	}
	q.at[(q.head+q.count)%len(q.at)] = v
	q.count++
	return true
}

func (q *ring[T]) pop() (v T, ok bool) {
	if q.count == 0 {
		return v, false
	}
	v = q.at[q.head]
	q.head = (q.head + 1) % len(q.at)
	q.count--
	return v, true
}
