package node

import (
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/ep/routing"
)

// group returns the group of the core. The core has memory for it from then on.
func (g *onCUDA) group() (*routing.Group, error) {
	core := g.buffer.Load()
	if core == nil {
		return nil, errNoCore
	}
	return g.routings.of(core, func() (*routing.Group, error) {
		rounds, err := core.Rounds()
		if err != nil {
			return nil, err
		}
		return routing.NewDeviceGroup(led{core, rounds}), nil
	})
}

// led is a core whose operations the host leads, as a group drives it.
type led struct {
	*cuda.Buffer
	*cuda.Rounds
}

func (l led) OneWayTokens(hidden int, extraRowBytes [protocol.NumExtras]int) (int, error) {
	return l.Tokens(hidden, extraRowBytes)
}

func (l led) Release(op uint64) error { return l.Rounds.Release(op) }

func (l led) Dispatch(a *ep.DispatchArgs, res *ep.Result, until ep.Phase, slice time.Duration) (routing.Pending, error) {
	err := l.Begin(a)
	if err == nil {
		err = l.Wait(until, slice)
	}
	switch err {
	case nil:
		return nil, l.Result(res)
	case ep.ErrInProgress:
		return l.Rounds, err
	}
	return nil, err
}
