package routing

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/op"
)

// Call is a collective in flight. Drive it until it returns another error than
// ep.ErrInProgress. All methods are safe for concurrent use.
type Call struct {
	g      *Group
	use    protocol.Use
	stream uint64 // on a device
	epoch  membership.Epoch
	turn   chan struct{} // has one entry while no goroutine drives it

	gone   chan struct{} // closed when the call is given up
	giveUp sync.Once

	// The goroutine that drives the call has these.
	steps []*exchange // what is left of it
	done  int         // steps that have ended well

	mu    sync.Mutex // guards the outcome
	ended bool
	err   error
}

// newCall makes a call of some epoch. It runs when all calls that were made before it have ended.
func (g *Group) newCall(use protocol.Use, epoch membership.Epoch, steps ...*exchange) (*Call, error) {
	c := &Call{g: g, use: use, stream: steps[0].stream, epoch: epoch, steps: steps, turn: make(chan struct{}, 1), gone: make(chan struct{})}
	c.turn <- struct{}{}
	if err := g.calls.add(c); err != nil {
		return nil, err
	}
	return c, nil
}

// Drive goes on with the call for one slice at most (negative: no limit but the call's own).
// ep.ErrInProgress: call again. An ended call returns its error at every later call. A call that
// waits for its turn drives the one that runs.
func (c *Call) Drive(slice time.Duration) error {
	limit := limitOf(slice)
	if !c.takeTurn(limit) {
		return ep.ErrInProgress
	}
	defer func() { c.turn <- struct{}{} }()
	if ended, err := c.outcome(); ended {
		return err
	}
	err := c.drive(limit)
	if err == ep.ErrInProgress {
		return err
	}
	return c.end(c.cause(err))
}

// takeTurn waits until no other goroutine drives the call.
func (c *Call) takeTurn(limit time.Time) bool {
	if limit.IsZero() {
		<-c.turn
		return true
	}
	select {
	case <-c.turn:
		return true
	default:
	}
	over := time.NewTimer(time.Until(limit))
	defer over.Stop()
	select {
	case <-c.turn:
		return true
	case <-over.C:
		return false
	}
}

func (c *Call) drive(limit time.Time) error {
	if err := c.enter(limit); err != nil {
		return err
	}
	if c.done == 0 && !c.steps[0].begun { // later this would end the epoch
		if err := c.g.engine.NoneHeld(); err != nil {
			return err
		}
	}
	for len(c.steps) > 0 {
		if err := c.steps[0].drive(limit); err != nil {
			if err != ep.ErrInProgress && !errors.Is(err, ep.ErrMismatch) && c.done > 0 {
				c.g.engine.LeaveEpoch(c.epoch, err) // the others wait for this step
			}
			return err
		}
		c.steps, c.done = c.steps[1:], c.done+1
	}
	return nil
}

// helpFor is how long a call drives another one before it looks whether it was given up.
const helpFor = 10 * time.Millisecond

// enter waits until the call is the first one, and drives the one that is: its caller may not.
func (c *Call) enter(limit time.Time) error {
	for {
		first := c.g.calls.first()
		// In this order: who gives the call up and comes too late for this look sees that it runs.
		if err := c.givenUp(); err != nil || first == c {
			return err
		}
		help(first, limit)
		if !limit.IsZero() && time.Until(limit) <= 0 {
			return ep.ErrInProgress
		}
	}
}

// runs reports whether the call is the first one: it may have begun.
func (c *Call) runs() bool { return c.g.calls.first() == c }

// givenUp says whether Close, which cancels all calls, or Cancel has come.
func (c *Call) givenUp() error {
	if c.g.calls.isClosed() {
		return ep.ErrByOwner
	}
	select {
	case <-c.gone:
		return op.ErrCancelled
	default:
		return nil
	}
}

// help drives the call that runs.
func help(first *Call, limit time.Time) {
	slice := helpFor
	if !limit.IsZero() {
		slice = min(slice, left(limit))
	}
	_ = first.Drive(slice) // its own caller gets the error
}

// Cancel gives the call up, and returns when no memory of its caller's is used any more. If it
// has begun, the other ranks' calls fail, and this rank takes no part in its epoch any more. It
// does nothing to an ended call.
func (c *Call) Cancel() {
	c.giveUp.Do(func() { close(c.gone) })
	select {
	case <-c.turn:
	default: // a goroutine drives it, and may wait for another rank
		if c.runs() {
			c.g.engine.LeaveEpoch(c.epoch, c.gaveUp())
		}
		<-c.turn
	}
	defer func() { c.turn <- struct{}{} }()
	if ended, _ := c.outcome(); ended {
		return
	}
	if c.done > 0 || c.steps[0].hasBegun() {
		c.g.engine.LeaveEpoch(c.epoch, c.gaveUp())
	}
	_ = c.end(c.cause(op.ErrCancelled))
}

func (c *Call) gaveUp() error {
	return fmt.Errorf("%w: a %s was given up; update the membership, then make new routings", ep.ErrLost, c.use)
}

// cause is the error of a call: what has ended it, not what followed from that.
func (c *Call) cause(err error) error {
	if err == nil {
		return nil
	}
	if given := c.givenUp(); given != nil {
		return given
	}
	return err
}

func (c *Call) end(err error) error {
	err = c.settled(err)
	c.mu.Lock()
	c.ended, c.err = true, err
	c.mu.Unlock()
	c.steps = nil
	c.g.calls.remove(c)
	return err
}

// settled is the error of a call, when no memory of its caller's is in use on a device any more.
func (c *Call) settled(err error) error {
	begun := len(c.steps) > 0 && (c.done > 0 || c.steps[0].begun)
	if err == nil || c.g.device == nil || !begun {
		return err
	}
	if used := c.g.device.Settle(c.stream); used != nil {
		return errors.Join(err, used)
	}
	return err
}

func (c *Call) outcome() (ended bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended, c.err
}

// Outcome is the error of an ended call, and ep.ErrInProgress until then.
func (c *Call) Outcome() error {
	if ended, err := c.outcome(); ended {
		return err
	}
	return ep.ErrInProgress
}

// State returns how far the call is.
func (c *Call) State() op.State {
	ended, err := c.outcome()
	switch {
	case !ended:
		return op.Pending
	case err == nil:
		return op.Done
	case errors.Is(err, op.ErrCancelled):
		return op.Cancelled
	}
	return op.Failed
}

// limitOf turns a slice of time into the moment when it is over; zero: never.
func limitOf(slice time.Duration) time.Time {
	if slice < 0 {
		return time.Time{}
	}
	return time.Now().Add(slice)
}

// left is the slice of time until a limit.
func left(limit time.Time) time.Duration {
	if limit.IsZero() {
		return -1
	}
	return max(time.Until(limit), 0)
}
