package node

import (
	"sync/atomic"
	"time"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/group/multihost"
)

// onCPU is the engine of a buffer with its rows in the memory of the host.
type onCPU struct {
	cfg     ep.Config
	kernels kernels.Options
	buffer  atomic.Pointer[cpu.Buffer]

	routings routings
}

func newCPU(c *Config) *onCPU {
	return &onCPU{kernels: c.Kernels, cfg: c.Config}
}

func (g *onCPU) core() core {
	if e := g.buffer.Load(); e != nil {
		return e
	}
	return nil // and not a nil *cpu.Buffer
}

func (g *onCPU) params(st ep.Standing) ([]byte, error) { return cpu.Params(g.cfg, st) }

func (g *onCPU) check(self int, params [][]byte, _ []multihost.Info) (ep.Standing, error) {
	return cpu.CheckParams(self, params)
}

func (g *onCPU) make(dom *multihost.Domain, joining bool) error {
	kern, err := kernels.Open(g.kernels)
	if err != nil {
		return err
	}
	cfg := g.cfg
	cfg.Joining = joining
	e, err := cpu.New(dom, kern, cfg)
	if err != nil {
		kern.Close()
		return err
	}
	g.buffer.Store(e)
	return nil
}

func (g *onCPU) install(next ep.Standing, commit func() error, _ time.Duration) error {
	return g.buffer.Load().Install(next.Epoch, next.Next, commit)
}

func (g *onCPU) drop() error {
	if e := g.buffer.Swap(nil); e != nil {
		g.routings.close(e)
		return e.Close()
	}
	return nil
}

// close leaves the closed core in its place: a call that has found it gets ep.ErrClosed.
func (g *onCPU) close() error {
	if e := g.buffer.Load(); e != nil {
		g.routings.close(e)
		return e.Close()
	}
	return nil
}

func (g *onCPU) open(*multihost.Config) error { return nil }
func (g *onCPU) freeRings() error             { return nil }
func (g *onCPU) connect(time.Duration) error  { return nil }
func (g *onCPU) stop()                        {}
func (g *onCPU) describe(_ []multihost.Path)  {}
