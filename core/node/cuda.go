package node

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/images"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/cudaring"
	"github.com/moewire/moewire/core/group/multihost"
)

// CUDA says on which device rows lie, and how it is found. Each rank chooses for itself.
type CUDA struct {
	Ordinal int      // which device, as the driver counts them
	Driver  string   // path of the driver's library; "": libcuda.so.1
	NVRTC   []string // files or folders where NVRTC may be, before the usual places
	Code    []byte   // code of the kernels, in place of the library's; for tests
	// KillFenced kills ranks of this host that the group has taken out and that still use
	// their device cuda.DefaultEndAfter later: see cuda.Config.EndAfter.
	KillFenced bool
}

// onCUDA is the engine of a buffer with its rows in the memory of a GPU.
type onCUDA struct {
	CUDA
	cfg    cuda.Config
	buffer atomic.Pointer[cuda.Buffer]
	memory deviceMemory
	laters sync.Pool // of *later, for this buffer alone

	routings routings

	mu    sync.Mutex // guards the fields below
	dev   *device.Device
	from  string          // where the device's code comes from
	rings *cudaring.Rings // memory for messages to ranks of other hosts
	slots [protocol.MaxSlotsCUDA]slotUse
	order string // why the group places rows by counts; "": it was asked to, or it does not
}

func newCUDA(c *Config) *onCUDA {
	g := &onCUDA{CUDA: *c.CUDA, cfg: cuda.Config{Config: c.Config}}
	if c.CUDA.KillFenced {
		g.cfg.EndAfter = cuda.DefaultEndAfter
	}
	return g
}

func (g *onCUDA) core() core {
	if b := g.buffer.Load(); b != nil {
		return b
	}
	return nil // and not a nil *cuda.Buffer
}

// open opens the device and loads the kernels. It makes the device's context if there is
// none. Messages to ranks of other hosts lie in memory that the device sees, so it comes
// before the rendezvous.
func (g *onCUDA) open(cfg *multihost.Config) error {
	dev, from, err := device.OpenAt(g.Driver, g.Ordinal, g.codeFor)
	if err != nil {
		return err
	}
	g.dev, g.from, g.rings = dev, from, cudaring.Of(dev)
	cfg.Rings = g.rings.Make
	if g.cfg.Links, err = dev.Links(); err == nil { // the ranks compare the links, too
		cfg.Shm.Params, err = g.params(ep.Standing{})
	}
	if err != nil {
		return errors.Join(err, g.closeDevice())
	}
	return nil
}

// codeFor returns the kernels' code for a compute capability, and where it comes from.
func (g *onCUDA) codeFor(major, minor int) (code []byte, from string, err error) {
	if len(g.Code) > 0 {
		return g.Code, "code that was given", nil
	}
	return images.For(major, minor, images.Options{NVRTC: g.NVRTC})
}

func (g *onCUDA) params(st ep.Standing) ([]byte, error) {
	if b := g.buffer.Load(); b != nil {
		return b.Params(st)
	}
	return g.cfg.Params(st)
}

// check also finds the order of the group's rows. A buffer that was made for an order
// keeps it.
func (g *onCUDA) check(self int, params [][]byte, infos []multihost.Info) (ep.Standing, error) {
	next, err := cuda.CheckParams(self, params)
	if err != nil {
		return next, err
	}
	order, why, err := cuda.AgreePlacement(params, func(a, b int) bool { return infos[a].LocalTo(&infos[b]) })
	if err != nil {
		return next, err
	}
	g.cfg.Placement = order
	if why != "" {
		why = "; rows get their places by counts, as with deterministic: " + why
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.order = why
	return next, nil
}

func (g *onCUDA) make(dom *multihost.Domain, joining bool) error {
	cfg := g.cfg
	cfg.Joining = joining
	b, err := cuda.New(dom, g.dev, cfg)
	if err != nil {
		return err
	}
	g.forget()
	g.buffer.Store(b)
	return nil
}

func (g *onCUDA) connect(deadline time.Duration) error { return g.buffer.Load().Connect(deadline) }

func (g *onCUDA) install(next ep.Standing, commit func() error, deadline time.Duration) error {
	return g.buffer.Load().Install(next.Epoch, next.Next, commit, deadline)
}

func (g *onCUDA) stop() {
	if b := g.buffer.Load(); b != nil {
		b.Stop()
	}
}

func (g *onCUDA) freeRings() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.rings == nil {
		return nil
	}
	return g.rings.Free()
}

func (g *onCUDA) drop() error {
	b := g.buffer.Load()
	if b == nil {
		return nil
	}
	g.routings.close(b)
	err := b.Close()
	if err == nil {
		g.buffer.CompareAndSwap(b, nil)
	}
	return err
}

// close leaves the group now. The memory is freed when no caller retains it.
func (g *onCUDA) close() error {
	if !g.memory.close(g.free) {
		return g.free()
	}
	if b := g.buffer.Load(); b != nil {
		g.routings.close(b)
		return b.Leave()
	}
	return nil
}

// free frees the memory and releases the device.
func (g *onCUDA) free() error {
	if err := g.drop(); err != nil {
		return err // the device still works for this buffer
	}
	return g.closeDevice()
}

// closeDevice releases the device, once its core is closed. If a carrier does not end its
// requests, the memory of its messages stays in use, and so does the device. closeDevice
// reports this once.
func (g *onCUDA) closeDevice() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dev == nil {
		return nil
	}
	err := g.rings.Close()
	if errors.Is(err, cudaring.ErrInUse) {
		g.dev = nil
		return fmt.Errorf("the device stays open: %w", err)
	}
	if err != nil {
		return err
	}
	err = g.dev.Close()
	if err == nil {
		g.dev = nil
	}
	return err
}

// pathWords say how memory on a device gets from rank to rank.
var pathWords = map[string]string{
	"self":    "its own memory",
	"process": "memory of the same process",
	"fd":      "memory mapped by descriptor",
	"fabric":  "memory mapped by fabric handle",
	"ipc":     "memory opened by CUDA IPC",
}

// describe explains paths: for ranks that are reached through device memory, how; for
// ranks of other hosts, where the messages lie.
func (g *onCUDA) describe(paths []multihost.Path) {
	b := g.buffer.Load()
	if b == nil {
		return
	}
	g.mu.Lock()
	device, rings, order := fmt.Sprintf("CUDA device %d, %s", g.Ordinal, g.from), g.rings, g.order
	g.mu.Unlock()
	for r := range paths {
		p := &paths[r]
		switch how := b.Path(r); how {
		case "":
		case "messages":
			if where := rings.Where(p.Carrier); where != "" {
				p.Why += "; messages in " + where
			}
		case "self":
			*p = multihost.Path{Rank: r, Carrier: how, Device: device, Why: selfWords(b.NoFabric())}
		default:
			*p = multihost.Path{Rank: r, Carrier: "cuda", Device: device, Why: pathWords[how] + order}
		}
	}
}

// selfWords describe a rank's path to itself.
func selfWords(noFabric error) string {
	if noFabric == nil {
		return pathWords["self"]
	}
	return pathWords["self"] + "; " + noFabric.Error()
}
