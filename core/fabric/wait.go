package fabric

import (
	"errors"
	"time"

	"github.com/moewire/moewire/core/op"
)

// Wait waits until an operation has ended. op.ErrTimedOut at the deadline,
// which changes nothing.
func (f *Fabric) Wait(r op.Ref, deadline time.Time) (op.Result, error) {
	return f.waitFor(r, op.UntilEnded, deadline)
}

// WaitReleased waits until the memory of an operation is its owner's again.
func (f *Fabric) WaitReleased(r op.Ref, deadline time.Time) (op.Result, error) {
	return f.waitFor(r, op.UntilReleased, deadline)
}

// waitFor polls itself if no other goroutine does; else it waits to be told, or until it
// is its turn to poll. A caller that polls for itself allocates nothing.
func (f *Fabric) waitFor(r op.Ref, until op.Until, deadline time.Time) (op.Result, error) {
	if res, over, err := f.table.Peek(r, until); over || err != nil {
		return res, err
	}
	q := &f.poller
	q.watch.Enter()
	defer q.watch.Leave()
	for polls := q.take(); ; polls = true {
		if polls {
			if res, ended, err := f.steer(r, until, deadline); ended {
				return res, err
			}
		}
		res, err := f.table.WaitTurn(r, until, deadline, q.turn(f))
		if !errors.Is(err, op.ErrTurn) {
			return res, err
		}
	}
}

// turn has something when the caller shall poll; nil: never again.
func (q *poller) turn(f *Fabric) <-chan struct{} {
	if q.watch.Quits() || f.broken.Load() != nil {
		return nil
	}
	return q.free
}

// steer polls until an operation is over, at least once, and gives the right to poll
// back. ended is false when polling is no longer allowed.
func (f *Fabric) steer(r op.Ref, until op.Until, deadline time.Time) (res op.Result, ended bool, err error) {
	q := &f.poller
	defer q.give(f)
	defer f.table.Attend(op.Ref{})
	for timedOut := false; !q.watch.Quits() && f.broken.Load() == nil; {
		f.table.Attend(r)
		res, over, err := f.table.Peek(r, until)
		if over || err != nil {
			return res, true, err
		}
		if timedOut {
			return res, true, op.ErrTimedOut
		}
		left := time.Until(deadline)
		if timedOut = left <= 0; !timedOut {
			err = f.cfg.Transport.Wait(min(left, pollAtLeast))
		}
		f.table.Attend(op.Ref{})
		if err == nil {
			_, err = q.poll(f)
		}
		if err != nil {
			f.breakDown(err)
		}
	}
	return res, false, nil
}
