package ep

import (
	"errors"
	"time"

	"github.com/moewire/moewire/core/op"
)

// Pending is an operation that has not ended, or has not been seen to end.
// Safe for concurrent use.
type Pending struct {
	b   *Buffer
	t   task
	res *Result // of a dispatch: where the caller wants it
}

// outcome turns the end of a drive into what Dispatch and Combine return.
func (b *Buffer) outcome(t task, until Phase, res *Result, err error) (*Pending, error) {
	if err != nil && !errors.Is(err, ErrInProgress) {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fillResult(t, res)
	if err == nil && t.st.State() == op.Done {
		return nil, nil
	}
	if c := t.s.call(t.kind); c.st == t.st {
		c.escaped = true
	}
	return &Pending{b: b, t: t, res: res}, err
}

// fillResult copies what is known of a dispatch so far.
func (b *Buffer) fillResult(t task, res *Result) {
	if res != nil && t.s.op == t.n {
		*res = t.s.dispatch.res
	}
}

// Wait drives the operation as Dispatch does. ErrInProgress: call again. An
// ended operation returns its error at every later call.
func (p *Pending) Wait(until Phase, slice time.Duration) error {
	if err := p.b.enter(); err == nil {
		defer p.b.users.Done()
		if err := p.b.drive(p.t, until, slice); err != nil {
			return err
		}
	} else if p.t.st.State() == op.Pending {
		return err
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.b.fillResult(p.t, p.res)
	return p.t.st.Err()
}

// Cancel gives the operation up and releases its handle. What peers need from
// it is written by later calls. An ended operation is left alone.
func (p *Pending) Cancel() {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.t.st.State() != op.Pending || p.b.err() != nil {
		return
	}
	p.b.release(p.t.s, op.ErrCancelled)
}

// State returns the operation's state.
func (p *Pending) State() op.State { return p.t.st.State() }

// OutputBytes returns the size of operation n's expert outputs [L, C, Hidden]
// and of one row of them.
func (b *Buffer) OutputBytes(n uint64) (outputs, row int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.err(); err != nil {
		return 0, 0, err
	}
	s, err := b.find(n)
	if err != nil {
		return 0, 0, err
	}
	row = 2 * s.slab.Hidden
	return s.slab.LocalExperts * s.slab.RowsPerExpert * row, row, nil
}
