package routing

import (
	"time"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/membership"
)

// Engine is what a group needs of a buffer: *cpu.Buffer has it, but for the type of a pending
// operation.
type Engine interface {
	Rank() int
	NumRanks() int
	// Epoch is the epoch that this rank has joined.
	Epoch() membership.Epoch
	// OneWayTokens is M of one-way operations with such rows.
	OneWayTokens(hidden int, extraRowBytes [protocol.NumExtras]int) (int, error)
	// Dispatch returns no pending operation, not a nil one of some type, when there is none.
	Dispatch(a *ep.DispatchArgs, res *ep.Result, until ep.Phase, slice time.Duration) (Pending, error)
	Release(n uint64) error
	// LeaveEpoch ends this rank's part in its epoch.
	LeaveEpoch(why error)
}

// Pending is an operation of an engine that has not ended.
type Pending interface {
	Wait(until ep.Phase, slice time.Duration) error
	Result(res *ep.Result) error
	Cancel()
}

// Group makes the routings of a buffer and runs their calls, one at a time. All methods are safe
// for concurrent use. All ranks make the same calls in the same order.
type Group struct {
	engine Engine
	kern   device.Kernels
	busy   chan struct{} // has one entry while no call runs

	// What follows belongs to the call that runs.
	to          []int64 // destinations of one round's rows
	weightBytes []byte  // their weights
	rows        []byte  // their sums
	jobs        []device.ReduceJob
	copies      []device.CopyJob
	ones        []float32
	cursor      []int
}

// NewGroup makes the group of a buffer. It owns kern, and no other code may use it.
func NewGroup(e Engine, kern device.Kernels) *Group {
	g := &Group{engine: e, kern: kern, busy: make(chan struct{}, 1)}
	g.busy <- struct{}{}
	return g
}

// Close ends the kernels' threads, once no call runs. The engine ends calls when it is closed.
func (g *Group) Close() {
	<-g.busy
	g.kern.Close()
}

// Call is a collective in flight. Drive it until it returns another error than
// ep.ErrInProgress. Not safe for concurrent use, but for Cancel.
type Call struct {
	g     *Group
	steps []*exchange // what is left of it
	holds bool        // this call is the one that runs
	ended bool
	err   error
}

// Drive goes on with the call for one slice at most (negative: no limit but the call's own).
// ep.ErrInProgress: call again. An ended call returns its error at every later call.
func (c *Call) Drive(slice time.Duration) error {
	if c.ended {
		return c.err
	}
	limit := limitOf(slice)
	if !c.enter(limit) {
		return ep.ErrInProgress
	}
	for len(c.steps) > 0 {
		switch err := c.steps[0].drive(limit); err {
		case nil:
			c.steps = c.steps[1:]
		case ep.ErrInProgress:
			return err
		default:
			c.end(err)
			return err
		}
	}
	c.end(nil)
	return nil
}

// Cancel gives the call up. If it has begun, the other ranks' calls fail, and this rank takes
// no part in its epoch any more.
func (c *Call) Cancel() {
	if c.ended {
		return
	}
	if c.holds {
		c.steps[0].abandon()
	}
	c.end(ep.Invalid("the call was given up"))
}

func (c *Call) end(err error) {
	c.ended, c.err, c.steps = true, err, nil
	if c.holds {
		c.g.busy <- struct{}{}
	}
}

// enter waits until no other call runs.
func (c *Call) enter(limit time.Time) bool {
	if c.holds {
		return true
	}
	select {
	case <-c.g.busy:
		c.holds = true
		return true
	default:
	}
	var over <-chan time.Time
	if !limit.IsZero() {
		t := time.NewTimer(time.Until(limit))
		defer t.Stop()
		over = t.C
	}
	select {
	case <-c.g.busy:
		c.holds = true
	case <-over:
	}
	return c.holds
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
