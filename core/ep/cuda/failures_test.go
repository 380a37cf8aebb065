package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
)

// TestEveryFailureLeavesNothing has every call fail that two connected buffers make:
// while they are made, exchange rows, begin another epoch and are closed. Watchers
// ask the device, too, and ask again when they get no answer.
func TestEveryFailureLeavesNothing(t *testing.T) {
	testenv.InAll(t)
	emu, seed := cudatest.Emulate(t), testenv.Seed(t)
	failed := cudatest.Sweep{
		Life: func() error { return livePair(t, emu, seed) }, Times: 4, Turns: true,
		Unheard: []string{synchronizes, pushes, "cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode"},
	}.Run(t, emu)
	require.Subset(t, failed, []string{
		"cuLaunchKernel", "cuStreamIsCapturing", "cuMemExportToShareableHandle", "cuDeviceGetAttribute",
		"cuMemcpyHtoDAsync_v2", "cuMemUnmap", "cuMemAddressFree", "cuMemRelease", "cuMemFreeHost",
	})
}

// pair is two ranks of one device, and what they exchange.
type pair struct {
	t       *testing.T
	emu     *cudatest.Driver
	seed    uint64
	doms    []domain.Domain
	d       *device.Device
	ranks   []*rank
	tensors uintptr
	ops     []*op
}

// livePair is the life of a pair, up to the first error. Everything is closed, as
// often as it takes.
func livePair(t *testing.T, emu *cudatest.Driver, seed uint64) error {
	p := &pair{t: t, emu: emu, seed: seed}
	err := p.make()
	for _, step := range []func() error{p.exchange, p.update, p.exchange} {
		if err == nil {
			err = step()
		}
	}
	return errors.Join(err, p.close())
}

func (p *pair) make() (err error) {
	p.doms = append(p.doms, inproc.New(2, layout.ControlBytes)...)
	if p.d, err = openDevice(p.t, p.emu); err != nil {
		return err
	}
	for _, dom := range p.doms {
		b, err := cuda.New(dom, p.d, configOf(p.t, 2))
		if err != nil {
			return err
		}
		p.ranks = append(p.ranks, &rank{Buffer: b, t: p.t, d: p.d, emu: p.emu, dom: dom, self: dom.Rank(), ranks: 2})
	}
	for _, r := range p.ranks {
		if err := r.Connect(connectIn); err != nil {
			return err
		}
	}
	return p.d.Do(p.makeTensors)
}

// makeTensors makes one stream per rank, and room that the test sees.
func (p *pair) makeTensors() (err error) {
	if p.tensors, err = p.emu.HostAlloc(2*pairBytes, libcuda.HostAllocPortable); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(p.seed, 190))
	for _, r := range p.ranks {
		s, err := p.emu.StreamCreate(0)
		if err != nil {
			return err
		}
		r.stream, r.tensors = uint64(s), uint64(p.tensors)+uint64(r.self)*pairBytes
		r.active = newTensor[int32](r, 2)
		p.ops = append(p.ops, newOp(r, rng))
	}
	return nil
}

const pairBytes = 64 << 10

// exchange is an operation with phases that are launched apart. If one rank fails, the
// other one's call goes on without it.
func (p *pair) exchange() error {
	for _, r := range p.ranks {
		r.active.values[0], r.active.values[1] = 1, 1
	}
	var all []error
	for _, o := range p.ops {
		all = append(all, o.r.Dispatch(&o.args, &o.res, ep.PhaseSent))
	}
	for i, o := range p.ops {
		if all[i] == nil {
			all[i] = o.rest()
		}
	}
	for _, r := range p.ranks {
		all = append(all, p.d.Do(func() error { return p.emu.StreamSynchronize(libcuda.Stream(r.stream)) }), r.Err())
	}
	if err := errors.Join(all...); err != nil {
		return err
	}
	for _, o := range p.ops {
		o.check()
	}
	return nil
}

// rest is all but the first phase, and a dispatch that is released.
func (o *op) rest() error {
	if err := o.r.Receive(o.res.Handle); err != nil {
		return err
	}
	o.combin.Device.X = o.res.RecvX
	ticket, err := o.r.Combine(o.res.Handle, &o.combin, ep.PhaseSent)
	if err != nil {
		return err
	}
	if err := o.r.Reduce(ticket); err != nil {
		return err
	}
	if err := o.r.Dispatch(&o.args, &o.res, ep.PhaseDone); err != nil {
		return err
	}
	return o.r.Release(o.res.Handle, o.r.stream)
}

// update begins another epoch.
func (p *pair) update() error {
	next := ep.Standing{}
	for _, r := range p.ranks {
		st, err := r.Prepare()
		if err != nil {
			return err
		}
		next.Epoch, next.Next = st.Epoch+1, max(next.Next, st.Next)
	}
	for _, r := range p.ranks {
		if err := r.Install(next.Epoch, next.Next, nil, connectIn); err != nil {
			return err
		}
	}
	return nil
}

// close closes buffers first, which wait for the device.
func (p *pair) close() error {
	var all []error
	for _, r := range p.ranks {
		all = append(all, again(r.Close))
	}
	for _, dom := range p.doms[len(p.ranks):] {
		all = append(all, dom.Close())
	}
	if p.d == nil {
		return errors.Join(all...)
	}
	all = append(all, again(func() error { return p.d.Do(p.freeTensors) }))
	return errors.Join(append(all, again(p.d.Close))...)
}

// freeTensors asks the driver once to free each.
func (p *pair) freeTensors() error {
	var all []error
	for _, r := range p.ranks {
		if stream := libcuda.Stream(r.stream); stream != 0 {
			r.stream = 0
			all = append(all, p.emu.StreamDestroy(stream))
		}
	}
	if at := p.tensors; at != 0 {
		p.tensors = 0
		all = append(all, p.emu.HostFree(at))
	}
	return errors.Join(all...)
}

// again calls what may be called again after an error until it has none. It gives the
// first one.
func again(f func() error) error {
	first := f()
	err := first
	for range 8 {
		if err == nil {
			return first
		}
		time.Sleep(time.Millisecond)
		err = f()
	}
	return fmt.Errorf("it does not end: %w", errors.Join(first, err))
}
