package node

import (
	"fmt"
	"sync"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/op"
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

// routings has the group of a core, from the first routing on.
type routings struct {
	mu    sync.Mutex
	core  core
	group *routing.Group // nil: the core is closed
}

// of returns the group of a core, which open makes the first time.
func (s *routings) of(core core, open func() (*routing.Group, error)) (g *routing.Group, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.core == core && s.group == nil:
		return nil, ep.ErrByOwner
	case s.core == core:
		return s.group, nil
	}
	if g, err = open(); err == nil {
		s.core, s.group = core, g
	}
	return g, err
}

// close ends the group of a core, before the core is closed.
func (s *routings) close(core core) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.core == core && s.group != nil {
		s.group.Close()
	}
	s.core, s.group = core, nil
}

// MakeRouting says where this rank's tokens go, learns which rows will come, and waits for the
// other ranks for one slice at most (negative: no limit but the call's own). See
// routing.Group.Make. After ep.ErrInProgress the operation is pending, and the routing may be used
// when it has ended well.
func (b *Buffer) MakeRouting(a *routing.Args, slice time.Duration) (*Routing, Operation, error) {
	group, err := b.engine.group()
	if err != nil {
		return nil, Operation{}, b.checked(err)
	}
	r, c, err := group.Make(a)
	if err != nil {
		return nil, Operation{}, b.checked(err)
	}
	o, err := begin(c, slice)
	if err != nil && err != ep.ErrInProgress {
		return nil, Operation{}, b.checked(err)
	}
	return &Routing{r, group, c}, o, err
}

// Scatter brings rows to the ranks of their tokens: see routing.Group.Scatter.
// ep.ErrStaleHandle: the routing is of another epoch.
func (b *Buffer) Scatter(r *Routing, a *routing.ScatterArgs, slice time.Duration) (Operation, error) {
	return b.routed(r, slice, func(g *routing.Group) (*routing.Call, error) { return g.Scatter(r.Routing, a) })
}

// Gather brings rows back to the tokens that they came from, and adds them up: see
// routing.Group.Gather. ep.ErrStaleHandle: the routing is of another epoch.
func (b *Buffer) Gather(r *Routing, a *routing.GatherArgs, slice time.Duration) (Operation, error) {
	return b.routed(r, slice, func(g *routing.Group) (*routing.Call, error) { return g.Gather(r.Routing, a) })
}

// routed makes a call of a routing, if that is this buffer's and may be used.
func (b *Buffer) routed(r *Routing, slice time.Duration, call func(g *routing.Group) (*routing.Call, error)) (o Operation, err error) {
	group, err := b.engine.group()
	switch {
	case err != nil:
		return o, b.checked(err)
	case group != r.group:
		return o, b.checked(fmt.Errorf("%w: the routing is of another buffer, or of a time before this one joined its group anew", ep.ErrStaleHandle))
	}
	if err := r.Made(); err != nil {
		return o, b.checked(err)
	}
	c, err := call(group)
	if err == nil {
		o, err = begin(c, slice)
	}
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
