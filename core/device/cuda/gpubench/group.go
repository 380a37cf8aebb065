package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"unsafe"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/images"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// group is all ranks, each with a stream of its own.
type group struct {
	o        *options
	lib      *libcuda.Library
	d        *cuda.Device
	code     string
	shape    layout.Shape
	slab     layout.Slab
	ranks    []*rank
	slots    int
	closers  []func() error
	gate     gate
	distinct int64 // pairs of token and expert of all ranks
	perRank  int64 // pairs of token and rank that owns one of its experts
}

type rank struct {
	*cuda.Engine
	stream   libcuda.Stream
	dispatch cuda.Dispatch
	combine  cuda.Combine
	ids      []int64
	weights  []float32
}

var errNoMemory = errors.New("too little memory")

func open(o *options) (*group, error) {
	lib, err := libcuda.Load(o.driver)
	if err != nil {
		return nil, err
	}
	major, minor, err := cuda.Capability(lib, o.ordinal)
	if err != nil {
		return nil, err
	}
	code, description, err := o.engineCode(major, minor)
	if err != nil {
		return nil, err
	}
	g := &group{o: o, lib: lib, code: description, slots: 2}
	if g.d, err = cuda.Open(lib, o.ordinal, code); err != nil {
		return nil, err
	}
	g.closers = append(g.closers, g.d.Close)
	leave, err := enter(lib, o.ordinal)
	if err != nil {
		return g, err
	}
	g.closers = append(g.closers, leave)
	return g, errors.Join(g.fill(), g.makeGate())
}

// engineCode is any for the emulator, each module of which has all kernels.
func (o *options) engineCode(major, minor int) ([]byte, string, error) {
	if o.emulated {
		return []byte("kernels\x00"), "emulated", nil
	}
	return images.For(major, minor, images.Options{})
}

// close undoes open, last things first.
func (g *group) close() (err error) {
	for i := len(g.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, g.closers[i]())
	}
	g.closers = nil
	return err
}

// fill makes the ranks, and connects them.
func (g *group) fill() error {
	if err := g.layOut(); err != nil {
		return err
	}
	if err := g.makeRoom(); err != nil {
		return err
	}
	for r := range g.o.ranks {
		if err := g.join(r); err != nil {
			return err
		}
	}
	if g.o.baseline {
		return nil
	}
	return g.connect()
}

func (g *group) layOut() (err error) {
	o := g.o
	g.shape = layout.Shape{
		MaxTokens: int64(o.tokens), Hidden: int64(o.hidden), NumExperts: int64(o.experts), NumRanks: int64(o.ranks), RowType: o.rowType(),
	}
	g.slab, err = layout.Of(g.shape)
	return err
}

// makeRoom chooses the number of slots: one does where two do not fit.
func (g *group) makeRoom() error {
	o := g.o
	free, _, err := g.lib.MemInfo()
	if err != nil {
		return err
	}
	each := uint64(o.ranks) * uint64(g.slab.SizeBytes)
	if 2*each+2<<30 > free {
		g.slots = 1
	}
	if o.baseline {
		each = o.baselineShape().NumBytes()
	}
	if each+2<<30 > free && !o.emulated {
		return fmt.Errorf("%w: %d ranks with %d tokens need %d bytes, %d are free", errNoMemory, o.ranks, o.tokens, each+2<<30, free)
	}
	return nil
}

// connect makes every rank reach every other one, as the members of an epoch.
func (g *group) connect() error {
	for _, m := range g.ranks {
		for r, peer := range g.ranks {
			if err := m.SetPeer(r, peer.Shared()); err != nil {
				return err
			}
		}
		if err := m.Join(1); err != nil {
			return err
		}
		m.SetMembers(uint64(membership.Full(1, g.o.ranks)))
	}
	return nil
}

func (g *group) join(r int) error {
	m := &rank{}
	if err := g.makeEngine(m, r); err != nil {
		return err
	}
	var err error
	if m.stream, err = g.lib.StreamCreate(0); err != nil {
		return err
	}
	g.closers = append(g.closers, func() error { return g.lib.StreamDestroy(m.stream) })
	g.choose(m, rand.New(rand.NewPCG(1, uint64(r))))
	if err := g.tensors(m); err != nil {
		return err
	}
	g.ranks = append(g.ranks, m)
	return nil
}

func (g *group) makeEngine(m *rank, r int) (err error) {
	o := g.o
	if o.baseline {
		return nil
	}
	m.Engine, err = cuda.NewEngine(g.d, cuda.Config{
		Rank: r, NumRanks: o.ranks, NumSlots: g.slots, SlabBytes: g.slab.SizeBytes,
		MaxSelections: o.tokens * o.topK, MaxExperts: o.experts, Loads: cuda.Loads(o.loads),
	})
	if err == nil {
		g.closers = append(g.closers, m.Close)
	}
	return err
}

// choose draws each token's experts, all different, as a gate without a bias.
func (g *group) choose(m *rank, rng *rand.Rand) {
	o := g.o
	local := o.experts / o.ranks
	for range o.tokens {
		owners := map[int]bool{}
		for _, e := range rng.Perm(o.experts)[:o.topK] {
			m.ids = append(m.ids, int64(e))
			m.weights = append(m.weights, rng.Float32())
			owners[e/local] = true
		}
		g.distinct += int64(o.topK)
		g.perRank += int64(len(owners))
	}
}

func (g *group) tensors(m *rank) error {
	o := g.o
	call := cuda.Call{
		Shape: g.shape, NumTokens: o.tokens, TopK: o.topK, Flags: o.rowType().Flags(), Stream: uint64(m.stream), TimeoutNs: -1,
	}
	local := g.slab.LocalExperts
	var x, out, ids, weights, counts, ranges uint64
	for _, t := range []struct {
		at       *uint64
		numBytes int64
		from     unsafe.Pointer
	}{
		{&x, 2 * int64(o.tokens) * int64(o.hidden), nil},
		{&out, 2 * int64(o.tokens) * int64(o.hidden), nil},
		{&ids, 8 * int64(len(m.ids)), unsafe.Pointer(&m.ids[0])},
		{&weights, 4 * int64(len(m.weights)), unsafe.Pointer(&m.weights[0])},
		{&counts, 4 * local, nil},
		{&ranges, 8 * local * int64(o.ranks), nil},
	} {
		var err error
		if *t.at, err = g.tensor(uint64(t.numBytes), t.from, m.stream); err != nil {
			return err
		}
	}
	m.dispatch = cuda.Dispatch{Call: call, X: x, RecvCount: counts, Layout: ranges}
	m.dispatch.TopkIdx = ids
	call.TopkIdx = ids
	m.combine = cuda.Combine{Call: call, Weights: weights, Out: out}
	return nil
}

// tensor allocates device memory, and fills it with what from points to, or with filling.
func (g *group) tensor(numBytes uint64, from unsafe.Pointer, s libcuda.Stream) (address uint64, err error) {
	memory, err := g.d.Alloc(numBytes)
	if err != nil {
		return 0, err
	}
	g.closers = append(g.closers, memory.Close)
	p := libcuda.DevicePtr(memory.Address())
	if from != nil {
		err = g.lib.CopyToDeviceAsync(p, uintptr(from), numBytes, s)
	} else {
		err = g.lib.MemsetAsync(p, filling, numBytes, s)
	}
	return memory.Address(), errors.Join(err, g.lib.StreamSynchronize(s))
}

// filling makes bf16 values that are no zeros: 0x3f3f.
const filling = 0x3f

// check fills the outputs of all experts and compares counts and sums with
// plain loops.
func (g *group) check() error {
	for _, m := range g.ranks {
		y := libcuda.DevicePtr(m.Slab(0)) + libcuda.DevicePtr(g.slab.YOff)
		if err := g.lib.MemsetAsync(y, filling, uint64(g.slab.Y().Bytes), m.stream); err != nil {
			return err
		}
	}
	if err := g.sync(); err != nil {
		return err
	}
	for _, m := range g.ranks {
		if err := m.all(0); err != nil {
			return err
		}
	}
	if err := g.sync(); err != nil {
		return err
	}
	for r, m := range g.ranks {
		if err := errors.Join(g.checkCounts(r, m), g.checkSums(r, m)); err != nil {
			return err
		}
	}
	return nil
}

func (g *group) checkCounts(r int, m *rank) error {
	local := int(g.slab.LocalExperts)
	want := make([]int32, local)
	for _, peer := range g.ranks {
		for _, e := range peer.ids {
			if int(e)/local == r {
				want[int(e)%local]++
			}
		}
	}
	got := make([]int32, local)
	if err := g.fetch(unsafe.Pointer(&got[0]), m.dispatch.RecvCount, 4*local, m.stream); err != nil {
		return err
	}
	for l := range want {
		if got[l] != want[l] {
			return fmt.Errorf("rank %d has %d rows for its expert %d, not %d", r, got[l], l, want[l])
		}
	}
	return nil
}

// checkSums looks at all sums: every output is the same value, so that a sum is
// one of the weights, in order.
func (g *group) checkSums(r int, m *rank) error {
	n, h := g.o.tokens, g.o.hidden
	got := make([]uint16, n*h)
	if err := g.fetch(unsafe.Pointer(&got[0]), m.combine.Out, 2*n*h, m.stream); err != nil {
		return err
	}
	value := math.Float32frombits(uint32(filling<<8|filling) << 16)
	for t := range n {
		sum := float32(0)
		for k := range g.o.topK {
			sum += float32(m.weights[t*g.o.topK+k] * value)
		}
		u := math.Float32bits(sum)
		want := uint16((u + 0x7fff + u>>16&1) >> 16)
		for i, v := range got[t*h:][:h] {
			if v != want {
				return fmt.Errorf("rank %d, token %d, value %d: %#x, not %#x", r, t, i, v, want)
			}
		}
	}
	return nil
}

func (g *group) fetch(to unsafe.Pointer, from uint64, n int, s libcuda.Stream) error {
	return errors.Join(
		g.lib.CopyToHostAsync(uintptr(to), libcuda.DevicePtr(from), uint64(n), s), g.lib.StreamSynchronize(s))
}

func (g *group) sync() (err error) {
	for _, m := range g.ranks {
		err = errors.Join(err, g.lib.StreamSynchronize(m.stream))
	}
	return err
}

// all launches a dispatch and a combine of the outputs that lie in the slab.
func (m *rank) all(slot int) error {
	m.dispatch.Slot, m.combine.Slot = slot, slot
	return errors.Join(m.Send(&m.dispatch), m.Receive(&m.dispatch), m.Publish(&m.combine), m.Reduce(&m.combine))
}

// dispatch launches both phases of one on all ranks: all send before any receives.
func (g *group) dispatch(slot int) (err error) {
	for _, m := range g.ranks {
		m.dispatch.Slot = slot
		err = errors.Join(err, m.Send(&m.dispatch))
	}
	for _, m := range g.ranks {
		err = errors.Join(err, m.Receive(&m.dispatch))
	}
	return err
}

// combine launches one of the outputs that lie in the slabs, on all ranks.
func (g *group) combine(slot int) (err error) {
	for _, m := range g.ranks {
		m.combine.Slot = slot
		err = errors.Join(err, m.Publish(&m.combine))
	}
	for _, m := range g.ranks {
		err = errors.Join(err, m.Reduce(&m.combine))
	}
	return err
}
