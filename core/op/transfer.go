package op

import "time"

// Result is what became of a transfer.
type Result struct {
	State    State
	Err      error // nil while pending, and when done
	NumBytes int64 // of all parts that have ended well
	Imm      uint32
	Released bool // nothing touches its memory any more
}

// Look returns what is known of a transfer now.
func (t *Table) Look(r Ref) (Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.find(r)
	if err != nil {
		return Result{}, err
	}
	return s.result(), nil
}

func (s *transfer) result() Result {
	return Result{State: s.op.State(), Err: s.op.Err(), NumBytes: s.numBytes, Imm: s.imm, Released: s.left <= 0}
}

// Cancel abandons a transfer: whoever waits for its end wakes up. It reports
// whether this call ended it. Its memory is still the carrier's until it is
// released.
func (t *Table) Cancel(r Ref, why error) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.find(r)
	if err != nil {
		return false, err
	}
	won := s.op.End(Cancelled, why)
	if won {
		s.rouse()
		t.reuse(r.slot)
	}
	return won, nil
}

// Drop ends the owner's use of a transfer. It must have ended: cancel it
// first. Its slot serves another one once it is released, too.
func (t *Table) Drop(r Ref) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.find(r)
	if err != nil {
		return err
	}
	s.op.End(Cancelled, nil)
	s.dropped = true
	s.rouse() // others that wait learn that it is gone
	t.reuse(r.slot)
	return nil
}

// Wait waits until a transfer has ended. ErrTimedOut at the deadline, which
// changes nothing; else the transfer's own error is in the result.
func (t *Table) Wait(r Ref, deadline time.Time) (Result, error) {
	return t.waitFor(r, deadline, func(s *transfer) bool { return s.op.State() != Pending })
}

// WaitReleased waits until the memory of a transfer is its owner's again.
func (t *Table) WaitReleased(r Ref, deadline time.Time) (Result, error) {
	return t.waitFor(r, deadline, func(s *transfer) bool { return s.left <= 0 })
}

func (t *Table) waitFor(r Ref, deadline time.Time, over func(*transfer) bool) (Result, error) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for late := false; ; {
		t.mu.Lock()
		s, err := t.find(r)
		if err != nil {
			t.mu.Unlock()
			return Result{}, err
		}
		res := s.result()
		if is := over(s); is || late {
			t.mu.Unlock()
			if !is {
				err = ErrTimedOut
			}
			return res, err
		}
		wake := s.waited()
		t.mu.Unlock()
		select {
		case <-wake:
		case <-timer.C:
			late = true
		}
	}
}

// Close ends every transfer that is pending with Cancelled and err, which is
// ErrCancelled if nil; Begin returns err from then on. Slots stay lent until they are released and
// dropped. Idempotent.
func (t *Table) Close(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed != nil {
		return
	}
	if err == nil {
		err = ErrCancelled
	}
	t.closed = err
	for i := range t.slots {
		if s := &t.slots[i]; s.lent && s.op.End(Cancelled, err) {
			s.rouse()
		}
	}
}

// waited returns what is closed at the next news of the transfer.
func (s *transfer) waited() <-chan struct{} {
	if s.wake == nil {
		s.wake = make(chan struct{})
	}
	return s.wake
}

// rouse wakes everybody who waits.
func (s *transfer) rouse() {
	if s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}
