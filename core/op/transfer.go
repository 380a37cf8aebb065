package op

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

// Cancel abandons a transfer: callers that wait for its end wake up. It reports
// whether this call ended the transfer. Its memory is still the carrier's until it is
// released.
func (t *Table) Cancel(r Ref, why error) (bool, error) {
	t.mu.Lock()
	defer t.unlock()
	s, err := t.find(r)
	if err != nil {
		return false, err
	}
	won := s.op.End(Cancelled, why)
	if won {
		t.wakeWaiters(r.slot)
		t.reuse(r.slot)
	}
	return won, nil
}

// Drop ends the owner's use of a transfer. It must have ended: cancel it
// first. Its slot serves another one once it is released, too.
func (t *Table) Drop(r Ref) error {
	t.mu.Lock()
	defer t.unlock()
	s, err := t.find(r)
	if err != nil {
		return err
	}
	s.op.End(Cancelled, nil)
	s.dropped = true
	t.wakeWaiters(r.slot) // others that wait learn that it is gone
	t.reuse(r.slot)
	return nil
}

// Close ends every pending transfer with Cancelled and err, which is ErrCancelled if
// nil. Begin returns err from then on. Slots stay in use until their transfers are
// released and dropped. Idempotent.
func (t *Table) Close(err error) {
	t.mu.Lock()
	defer t.unlock()
	if t.closed != nil {
		return
	}
	if err == nil {
		err = ErrCancelled
	}
	t.closed = err
	for i := range t.slots {
		if s := &t.slots[i]; s.inUse && s.op.End(Cancelled, err) {
			t.wakeWaiters(uint32(i))
		}
	}
}
