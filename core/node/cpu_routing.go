package node

import (
	"time"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/routing"
)

// group returns the group of the core. It has kernels of its own: it adds rows up while the core
// dispatches.
func (g *onCPU) group() (*routing.Group, error) {
	core := g.buffer.Load()
	if core == nil {
		return nil, errNoCore
	}
	return g.routings.of(core, func() (*routing.Group, error) {
		kern, err := kernels.Open(g.kernels)
		if err != nil {
			return nil, err
		}
		return routing.NewGroup(driven{core}, kern), nil
	})
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
