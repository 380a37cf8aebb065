package node

import (
	"fmt"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
)

// Routing is a routing of one buffer: ordinary memory, which may be read even when the buffer is
// closed. Safe for concurrent use.
type Routing struct {
	*routing.Routing
	group *routing.Group
	made  *routing.Call
}

// Made returns nil once the routing may be used. Before, no other method may be called. It returns
// ep.ErrInvalid until then, or the error of the operation that was to make the routing.
func (r *Routing) Made() error {
	switch err := r.made.Outcome(); err {
	case nil:
		return nil
	case ep.ErrInProgress:
		return ep.Invalid("the routing is not made yet: its operation has to end first")
	default:
		return fmt.Errorf("the routing was not made: %w", err)
	}
}

// routed are the calls of routings.
type routed interface {
	makeRouting(a *routing.Args, slice time.Duration) (*Routing, Operation, error)
	scatter(r *Routing, a *routing.ScatterArgs, slice time.Duration) (Operation, error)
	gather(r *Routing, a *routing.GatherArgs, slice time.Duration) (Operation, error)
}

// MakeRouting says where this rank's tokens go, learns which rows will come, and waits for the
// other ranks for one slice at most (negative: no limit but the call's own). See
// routing.Group.Make. After ep.ErrInProgress the operation is pending, and the routing may be used
// when it has ended well.
func (b *Buffer) MakeRouting(a *routing.Args, slice time.Duration) (*Routing, Operation, error) {
	r, o, err := b.engine.makeRouting(a, slice)
	return r, o, b.checked(err)
}

// Scatter brings rows to the ranks of their tokens: see routing.Group.Scatter.
// ep.ErrStaleHandle: the routing is of another epoch.
func (b *Buffer) Scatter(r *Routing, a *routing.ScatterArgs, slice time.Duration) (Operation, error) {
	o, err := b.engine.scatter(r, a, slice)
	return o, b.checked(err)
}

// Gather brings rows back to the tokens that they came from, and adds them up: see
// routing.Group.Gather. ep.ErrStaleHandle: the routing is of another epoch.
func (b *Buffer) Gather(r *Routing, a *routing.GatherArgs, slice time.Duration) (Operation, error) {
	o, err := b.engine.gather(r, a, slice)
	return o, b.checked(err)
}

// inRounds is a call of a routing.
type inRounds struct{ *routing.Call }

// begin drives a call for its first slice.
func begin(c *routing.Call, slice time.Duration) (Operation, error) {
	err := c.Drive(slice)
	if err != ep.ErrInProgress {
		return Operation{}, err
	}
	return Operation{of: inRounds{c}}, err
}

// wait knows one phase: the inputs are needed until the end.
func (o inRounds) wait(_ uint64, _ ep.Phase, slice time.Duration) error { return o.Drive(slice) }
func (o inRounds) result(*Result) error                                 { return nil }
func (o inRounds) state(uint64) op.State                                { return o.State() }
func (o inRounds) cancel(uint64)                                        { o.Cancel() }
func (o inRounds) close(uint64)                                         { o.Cancel() }

// errNoRoutings is what a buffer on CUDA answers.
var errNoRoutings = fmt.Errorf("%w: routings, scatter and gather are on the CPU only so far, and this buffer is on CUDA", transport.ErrNotSupported)

func (g *onCUDA) makeRouting(*routing.Args, time.Duration) (*Routing, Operation, error) {
	return nil, Operation{}, errNoRoutings
}

func (g *onCUDA) scatter(*Routing, *routing.ScatterArgs, time.Duration) (Operation, error) {
	return Operation{}, errNoRoutings
}

func (g *onCUDA) gather(*Routing, *routing.GatherArgs, time.Duration) (Operation, error) {
	return Operation{}, errNoRoutings
}
