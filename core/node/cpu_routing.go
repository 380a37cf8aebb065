package node

import (
	"fmt"
	"sync"
	"time"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/routing"
)

// routings has the group of a core, from the first routing on.
type routings struct {
	mu    sync.Mutex
	core  *cpu.Buffer
	group *routing.Group // nil: the core is closed
}

// group returns the group of the core. It has kernels of its own: it adds rows up while the core
// dispatches.
func (g *onCPU) group() (*routing.Group, error) {
	s := &g.routings
	s.mu.Lock()
	defer s.mu.Unlock()
	core := g.buffer.Load()
	switch {
	case core == nil:
		return nil, errNoCore
	case s.core == core && s.group == nil:
		return nil, ep.ErrByOwner
	case s.core == core:
		return s.group, nil
	}
	kern, err := kernels.Open(g.kernels)
	if err != nil {
		return nil, err
	}
	s.core, s.group = core, routing.NewGroup(driven{core}, kern)
	return s.group, nil
}

// close ends the group of a core, before the core is closed.
func (s *routings) close(core *cpu.Buffer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.core == core && s.group != nil {
		s.group.Close()
	}
	s.core, s.group = core, nil
}

// driven is a core as a group drives it.
type driven struct{ *cpu.Buffer }

func (d driven) Dispatch(a *ep.DispatchArgs, res *ep.Result, until ep.Phase, slice time.Duration) (routing.Pending, error) {
	p, err := d.Buffer.Dispatch(a, res, until, slice)
	if p == nil {
		return nil, err // and not a nil *cpu.Pending
	}
	return p, err
}

func (g *onCPU) makeRouting(a *routing.Args, slice time.Duration) (*Routing, Operation, error) {
	group, err := g.group()
	if err != nil {
		return nil, Operation{}, err
	}
	r, c, err := group.Make(a)
	if err != nil {
		return nil, Operation{}, err
	}
	o, err := begin(c, slice)
	if err != nil && err != ep.ErrInProgress {
		return nil, Operation{}, err
	}
	return &Routing{r, group, c}, o, err
}

func (g *onCPU) scatter(r *Routing, a *routing.ScatterArgs, slice time.Duration) (Operation, error) {
	group, err := g.groupFor(r)
	if err != nil {
		return Operation{}, err
	}
	c, err := group.Scatter(r.Routing, a)
	if err != nil {
		return Operation{}, err
	}
	return begin(c, slice)
}

func (g *onCPU) gather(r *Routing, a *routing.GatherArgs, slice time.Duration) (Operation, error) {
	group, err := g.groupFor(r)
	if err != nil {
		return Operation{}, err
	}
	c, err := group.Gather(r.Routing, a)
	if err != nil {
		return Operation{}, err
	}
	return begin(c, slice)
}

// groupFor returns the group if the routing is its own and may be used.
func (g *onCPU) groupFor(r *Routing) (*routing.Group, error) {
	group, err := g.group()
	if err != nil {
		return nil, err
	}
	if group != r.group {
		return nil, fmt.Errorf("%w: the routing is of another buffer, or of a time before this one joined its group anew", ep.ErrStaleHandle)
	}
	return group, r.Made()
}
