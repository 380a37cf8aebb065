package cpu

import (
	"fmt"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/op"
)

// Pending is an operation that has not ended, or has not been seen to end.
// Safe for concurrent use.
type Pending struct {
	b *Buffer
	t task
}

// outcome turns the end of a drive into what Dispatch and Combine return. The
// task is dropped, or lives on in the pending operation. Another thread (an
// update, a Close) may have ended the operation since it was sent.
func (b *Buffer) outcome(t task, res *ep.Result, err error) (*Pending, error) {
	if err == nil || err == ep.ErrInProgress {
		filled := b.fillResult(t, res)
		switch {
		case filled != nil:
			err = filled
		case err != nil || t.st.State() == op.Pending:
			if err == nil {
				b.leaveBehind(t)
			}
			return &Pending{b: b, t: t}, err
		default:
			err = t.st.Err()
		}
	}
	b.drop(t)
	return nil, err
}

// fillResult copies what is known of a dispatch so far; a combine has no
// Result. When the slot has moved on, another thread has released the handle:
// then there is nothing to copy.
func (b *Buffer) fillResult(t task, res *ep.Result) error {
	if res == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.s.call(t.kind).st != t.st {
		if err := t.st.Err(); err != nil {
			return err
		}
		return fmt.Errorf("%w: another thread's call released operation %d", ep.ErrStaleHandle, t.n)
	}
	*res = t.s.dispatch.res
	return nil
}

// Wait drives the operation as Dispatch does. ErrInProgress: call again. An
// ended operation returns its error at every later call.
func (p *Pending) Wait(until ep.Phase, slice time.Duration) error {
	if err := p.b.enter(); err == nil {
		defer p.b.users.Done()
		return p.b.resume(p.t, until, p.b.limitOf(slice))
	} else if p.t.st.State() == op.Pending {
		return err
	}
	return p.t.st.Err()
}

// Result copies what is known of a dispatch: the addresses from PhaseSent on,
// everything at PhaseDone. ErrStaleHandle: the handle was released meanwhile.
func (p *Pending) Result(res *ep.Result) error { return p.b.fillResult(p.t, res) }

// Cancel gives the operation up and releases its handle. Later calls write what
// peers still need from it. Cancel does nothing to an ended operation.
func (p *Pending) Cancel() {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.t.st.State() != op.Pending || p.b.usable() != nil {
		return
	}
	p.b.release(p.t.s, op.ErrCancelled)
}

// State returns the operation's state.
func (p *Pending) State() op.State { return p.t.st.State() }

// CombineBytes returns the size of operation n's expert outputs, [L, C, Hidden]
// or flat [rows received, Hidden], and of one row of a combine's result.
func (b *Buffer) CombineBytes(n uint64) (outputs, row int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(); err != nil {
		return 0, 0, err
	}
	s, err := b.find(n)
	if err != nil {
		return 0, 0, err
	}
	if s.params.flat && s.dispatch.pending() {
		return 0, 0, ep.Invalid("the handle's dispatch has not ended: it is not known how many rows x must have")
	}
	return s.outputBytes(), 2 * s.slab.Hidden, nil
}
