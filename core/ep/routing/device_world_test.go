package routing_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// onDevice is a buffer on the emulated device as a group takes it.
type onDevice struct {
	*cuda.Buffer
	*cuda.Rounds
	most int
}

func (e onDevice) OneWayTokens(hidden int, extra [protocol.NumExtras]int) (int, error) {
	m, err := e.Tokens(hidden, extra)
	return min(m, e.most), err
}

func (e onDevice) Release(n uint64) error { return e.Rounds.Release(n) }

func (e onDevice) Dispatch(a *ep.DispatchArgs, res *ep.Result, until ep.Phase, slice time.Duration) (routing.Pending, error) {
	err := e.Begin(a)
	if err == nil {
		err = e.Wait(until, slice)
	}
	switch err {
	case nil:
		return nil, e.Result(res)
	case ep.ErrInProgress:
		return e.Rounds, err
	}
	return nil, err
}

// deviceMemory is one rank's memory that kernels and tests see, and its stream.
type deviceMemory struct {
	d      *device.Device
	at     uint64
	used   int
	stream uint64
}

const deviceMemoryBytes = 4 << 20

var deviceMemories sync.Map // by *routing.Group

func deviceMemoryOf(g *routing.Group) *deviceMemory {
	m, _ := deviceMemories.Load(g)
	mem, _ := m.(*deviceMemory)
	return mem
}

// deviceWorld is a world of ranks on the emulated device. drop ends one of them.
type deviceWorld struct {
	*world
	ranks []*cuda.Buffer
	emu   *cudatest.Driver
	cfg   cuda.Config
}

func newDeviceWorld(t testing.TB, doms []domain.Domain, most int, change ...func(*cuda.Config)) *deviceWorld {
	emu := cudatest.Emulate(t)
	emu.Schedule(uint64(len(doms)), 16, 8)
	w := &deviceWorld{world: &world{t: t}, emu: emu, cfg: cuda.Config{Config: ep.Config{NumSlots: 2, NumBytes: 24 << 20}}}
	for _, f := range change {
		f(&w.cfg)
	}
	for _, dom := range doms {
		w.join(emu, dom, most)
	}
	for _, b := range w.ranks {
		require.NoError(t, b.Connect(time.Minute))
	}
	for _, b := range w.ranks {
		rounds, err := b.Rounds()
		require.NoError(t, err)
		w.groups = append(w.groups, routing.NewDeviceGroup(onDevice{b, rounds, most}))
		w.bufs = append(w.bufs, nil) // each counts them
	}
	w.share(emu)
	return w
}

func (w *deviceWorld) join(emu *cudatest.Driver, dom domain.Domain, most int) {
	d, err := device.Open(emu.Library, 0, emu.Code(w.t))
	require.NoError(w.t, err)
	b, err := cuda.New(dom, d, w.cfg)
	require.NoError(w.t, err)
	w.ranks = append(w.ranks, b)
	w.t.Cleanup(func() { require.NoError(w.t, errors.Join(b.Close(), d.Close())) })
}

// share gives every rank memory and a stream.
func (w *deviceWorld) share(emu *cudatest.Driver) {
	for r, g := range w.groups {
		d, err := device.Open(emu.Library, 0, emu.Code(w.t))
		require.NoError(w.t, err)
		mem := &deviceMemory{d: d}
		var free func() error
		require.NoError(w.t, d.Do(func() (err error) {
			if mem.at, free, err = emu.Shown(deviceMemoryBytes); err != nil {
				return err
			}
			s, err := emu.StreamCreate(0)
			mem.stream = uint64(s)
			return err
		}))
		deviceMemories.Store(g, mem)
		w.t.Cleanup(func() {
			deviceMemories.Delete(g)
			w.groups[r].Close()
			require.NoError(w.t, d.Do(func() error { return errors.Join(emu.StreamDestroy(libcuda.Stream(mem.stream)), free()) }))
			require.NoError(w.t, d.Close())
		})
	}
}

// place copies a slice to the device, and returns where it is and how it comes back.
func place[T any](mem *deviceMemory, values []T) (at uint64, back func()) {
	if len(values) == 0 {
		return 0, func() {}
	}
	at = mem.at + uint64(mem.used)
	mem.used = (mem.used + len(values)*4 + 15) &^ 15
	if mem.used > deviceMemoryBytes {
		panic("the tensors do not fit")
	}
	there := cudatest.Slice[T](at, len(values))
	copy(there, values)
	return at, func() { copy(values, there) }
}

func (mem *deviceMemory) scatter(m *member, a *routing.ScatterArgs) error {
	mem.used = 0
	d, backs := &routing.DeviceScatter{Stream: mem.stream}, [6]func(){}
	d.X, backs[0] = place(mem, a.X)
	d.Out, backs[1] = place(mem, a.Out)
	d.Weights, backs[2] = place(mem, a.Weights)
	d.OutWeights, backs[3] = place(mem, a.OutWeights)
	d.Extra, backs[4] = place(mem, a.Extra)
	d.OutExtra, backs[5] = place(mem, a.OutExtra)
	on := *a
	on.X, on.Out, on.Weights, on.OutWeights, on.Extra, on.OutExtra, on.Device = nil, nil, nil, nil, nil, nil, d
	err := run(m.group.Scatter(m.Routing, &on))
	for _, back := range backs {
		back()
	}
	return err
}

func (mem *deviceMemory) gather(m *member, a *routing.GatherArgs) error {
	mem.used = 0
	d, backs := &routing.DeviceGather{Stream: mem.stream}, [4]func(){}
	d.X, backs[0] = place(mem, a.X)
	d.Out, backs[1] = place(mem, a.Out)
	d.Weights, backs[2] = place(mem, a.Weights)
	d.OutWeights, backs[3] = place(mem, a.OutWeights)
	for i, bias := range a.Bias {
		d.Bias[i], _ = place(mem, bias)
	}
	on := *a
	on.X, on.Out, on.Weights, on.OutWeights, on.Bias, on.Device = nil, nil, nil, nil, [2][]byte{}, d
	err := run(m.group.Gather(m.Routing, &on))
	for _, back := range backs {
		back()
	}
	return err
}
