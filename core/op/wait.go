package op

import (
	"errors"
	"time"
)

// Until says which of its two ends a transfer is waited for.
type Until uint8

// The values of Until.
const (
	UntilEnded    Until = iota // it is done, has failed or was cancelled
	UntilReleased              // its memory is its owner's again
)

// ErrTurn is the error of WaitTurn when it is the caller's turn.
var ErrTurn = errors.New("it is the caller's turn")

func (u Until) isOver(s *transfer) bool {
	if u == UntilReleased {
		return s.left <= 0
	}
	return s.op.State() != Pending
}

// Wait waits until a transfer has ended. ErrTimedOut at the deadline, which
// changes nothing; else the transfer's own error is in the result.
func (t *Table) Wait(r Ref, deadline time.Time) (Result, error) {
	return t.WaitTurn(r, UntilEnded, deadline, nil)
}

// WaitTurn is Wait, for either end of the transfer, that ends with ErrTurn if it takes
// something from turn, which may be nil.
func (t *Table) WaitTurn(r Ref, until Until, deadline time.Time, turn <-chan struct{}) (Result, error) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for timedOut := false; ; {
		res, over, wake, err := t.peek(r, until, true)
		if over || err != nil {
			return res, err
		}
		if timedOut {
			return res, ErrTimedOut
		}
		select {
		case <-wake:
		case <-turn:
			return res, ErrTurn
		case <-timer.C:
			timedOut = true
		}
	}
}

// Peek is Look, and also reports whether a wait would end now.
func (t *Table) Peek(r Ref, until Until) (res Result, over bool, err error) {
	res, over, _, err = t.peek(r, until, false)
	return res, over, err
}

func (t *Table) peek(r Ref, until Until, waits bool) (res Result, over bool, wake <-chan struct{}, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.find(r)
	if err != nil {
		return res, false, nil, err
	}
	if over = until.isOver(s); waits && !over {
		wake = s.waited()
	}
	return s.result(), over, wake, nil
}

// OnNews makes the table call f, without a lock, when there is news of the transfer that
// Attend was called for. Call it once, before the table is used.
func (t *Table) OnNews(f func()) { t.nudge = f }

// Attend is for a caller that sleeps elsewhere while it waits for a transfer: first
// Attend, then Peek, then sleep. News from then on calls the function of OnNews. The
// zero Ref ends it. For one caller at a time.
func (t *Table) Attend(r Ref) { t.attended.Store(r.RequestID(0)) }

// unlock releases the lock and calls the function of OnNews if there is news.
func (t *Table) unlock() {
	due := t.due
	t.due = false
	t.mu.Unlock()
	if due {
		t.nudge()
	}
}

// waited returns the channel that is closed at the next news of the transfer.
func (s *transfer) waited() <-chan struct{} {
	if s.wake == nil {
		s.wake = make(chan struct{})
	}
	return s.wake
}

// wakeWaiters wakes all callers that wait for a transfer.
func (t *Table) wakeWaiters(slot uint32) {
	s := &t.slots[slot]
	if t.attended.Load() == (Ref{slot, s.gen}).RequestID(0) {
		t.due = true
	}
	if s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}
