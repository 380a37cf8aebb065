package main

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/gpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/transport/multihost"
	"github.com/moewire/moewire/core/transport/shm"
	"github.com/moewire/moewire/core/wire"
)

const (
	pushes = "cuCtxPushCurrent_v2"
	soon   = time.Minute

	outOfMemory = 2 // one of the driver's error codes
)

// gpuBuffer makes rank 0 of several on the emulated device, not connected.
func gpuBuffer(t *testing.T, ranks int) *buffer {
	n, err := layout.SizeHint(layout.Shape{MaxTokens: 4, Hidden: 128, NumExperts: int64(ranks), NumRanks: int64(ranks)}, 2)
	require.NoError(t, err)
	b := &buffer{onGPU: &onGPU{cfg: gpu.Config{NumBytes: n}, driver: cudatest.Build{}.Library(t), given: []byte("kernels\x00")}}
	params, err := b.params(ep.Standing{})
	require.NoError(t, err)
	b.open = listenerConfig(0, ranks, params)
	require.NoError(t, b.onGPU.open())
	require.NoError(t, b.listen())
	b.id = buffers.add(b)
	return b
}

func listenerConfig(rank, ranks int, params []byte) multihost.Config {
	return multihost.Config{
		Shm: shm.Config{
			Rank: rank, NumRanks: ranks, ControlBytes: layout.ControlBytes, ABIVersion: 1, Params: params,
		},
		Keys: wire.GenerateKeyring(), Listen: netip.MustParseAddrPort("127.0.0.1:0"),
	}
}

// argsFor makes new structs for a call's arguments: a test cannot name their C types.
func argsFor[A, O any](func(*buffer, *A, *O) error) (*A, *O) { return new(A), new(O) }

func set[T ~uint64](p *T, v uint64) { *p = T(v) }

func setNumber[T ~uint32](p *T, v uintptr) { *p = T(v) }

func fresh[T any](at **T) *T {
	*at = new(T)
	return *at
}

// caller is what a caller of the library owns: two streams and memory.
type caller struct {
	b       *buffer
	streams [2]uint64
	memory  uint64
}

func newCaller(t *testing.T, emu *cudatest.Driver, b *buffer) *caller {
	c := &caller{b: b}
	require.NoError(t, b.onGPU.dev.Do(func() error {
		for i := range c.streams {
			s, err := emu.StreamCreate(0)
			if err != nil {
				return err
			}
			c.streams[i] = uint64(s)
		}
		p, err := emu.MemAlloc(1 << 20)
		c.memory = uint64(p)
		return err
	}))
	return c
}

// end destroys one of the streams, once it is idle, and the memory together with the last
// stream.
func (c *caller) end(t *testing.T, emu *cudatest.Driver, stream int) {
	s := c.streams[stream]
	c.streams[stream] = 0
	require.NoError(t, c.b.onGPU.dev.Do(func() error {
		err := errors.Join(with(emu.StreamSynchronize, s), with(emu.StreamDestroy, s))
		if c.streams == [2]uint64{} {
			err = errors.Join(err, with(emu.MemFree, c.memory))
		}
		return err
	}))
}

// with calls a driver function that takes one handle.
func with[T ~uint64 | ~uintptr](f func(T) error, handle uint64) error { return f(T(handle)) }

// dispatch and combine have no tokens.
func (c *caller) dispatch(t *testing.T, stream int, flags uintptr) uint64 {
	args, op := argsFor((*buffer).dispatchGPU)
	args.hidden, args.num_topk, args.num_max_tokens_per_rank, args.num_experts, args.timeout_us = 128, 1, 4, 1, -1
	args.phase = 2
	setNumber(&args.flags, flags)
	set(&args.stream, c.streams[stream])
	result := fresh(&args.result)
	setNumber(&result.size, unsafe.Sizeof(*result))
	require.NoError(t, c.b.dispatchGPU(args, op))
	return uint64(result.handle.id)
}

func (c *caller) combine(t *testing.T, handle uint64, stream int) {
	args, op := argsFor((*buffer).combineGPU)
	args.num_topk, args.timeout_us, args.phase = 1, -1, 2
	set(&args.handle.id, handle)
	set(&args.x, c.memory)
	set(&args.stream, c.streams[stream])
	require.NoError(t, c.b.combineGPU(args, op))
}

func connected(t *testing.T) (*buffer, *cudatest.Driver) {
	emu := cudatest.Emulate(t)
	b := gpuBuffer(t, 1)
	require.NoError(t, b.connect([][]byte{b.metadata()}, soon))
	return b, emu
}

// TestReleasedHandleHasNoCombineBuffer: this holds for every way of releasing it.
func TestReleasedHandleHasNoCombineBuffer(t *testing.T) {
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	first := c.dispatch(t, 0, 0)
	_, err := b.combineBufferGPU(first, nil)
	require.NoError(t, err)
	require.NoError(t, b.releaseGPU(first, nil))
	_, err = b.combineBufferGPU(first, nil)
	require.ErrorIs(t, err, ep.ErrStaleHandle)
	second := c.dispatch(t, 0, 0)
	c.combine(t, second, 0)
	_, err = b.combineBufferGPU(second, nil)
	require.NoError(t, err)
	c.dispatch(t, 0, 0)
	_, err = b.combineBufferGPU(second, nil)
	require.ErrorIs(t, err, ep.ErrStaleHandle)
	c.end(t, emu, 0)
	c.end(t, emu, 1)
	require.Zero(t, mwiBufferClose(b.id))
}

// TestFlatCombineNeedsRows: only the device knows whether there are rows, and without an
// address it would sum the content of the slab.
func TestFlatCombineNeedsRows(t *testing.T) {
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	handle := c.dispatch(t, 0, 32) // MW_DISPATCH_FLAT
	args, op := argsFor((*buffer).combineGPU)
	args.timeout_us, args.phase, args.flags = -1, 2, 2 // MW_COMBINE_FLAT
	set(&args.handle.id, handle)
	set(&args.stream, c.streams[0])
	err := b.combineGPU(args, op)
	require.ErrorIs(t, err, ep.ErrInvalid)
	require.ErrorContains(t, err, "x is NULL")
	set(&args.x, c.memory)
	require.NoError(t, b.combineGPU(args, op))
	c.end(t, emu, 0)
	c.end(t, emu, 1)
	require.Zero(t, mwiBufferClose(b.id))
}

// TestReleaseFollowsTheLatestCall: without its own stream a release goes to the stream
// that used the handle last. The stream of the dispatch may be far ahead, or gone.
func TestReleaseFollowsTheLatestCall(t *testing.T) {
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	handle := c.dispatch(t, 0, 0)
	c.end(t, emu, 0)
	c.combine(t, handle, 1)
	require.NoError(t, b.releaseGPU(handle, nil))
	c.end(t, emu, 1)
	require.NoError(t, b.gpu.Load().Err())
	require.Zero(t, mwiBufferClose(b.id))
}

// TestLatestUseOfASlotStays: of two dispatches that threads launch at once, the later one
// has the slot, whichever thread goes on first.
func TestLatestUseOfASlotStays(t *testing.T) {
	g := &onGPU{}
	g.use(&gpu.Result{Handle: 2, CombineX: 22}, 12)
	g.use(&gpu.Result{Handle: 1, CombineX: 21}, 11)
	g.use(&gpu.Result{Handle: 1, Slot: 1}, 11)
	require.True(t, g.of(2, func(s *slotUse) { require.Equal(t, slotUse{handle: 2, stream: 12, combineX: 22}, *s) }))
	g.forget()
	g.use(&gpu.Result{Handle: 1, CombineX: 31}, 13)
	require.True(t, g.of(1, func(s *slotUse) { require.Equal(t, slotUse{handle: 1, stream: 13, combineX: 31}, *s) }))
	require.False(t, g.of(2, func(*slotUse) {}))
}

// TestCloseIsRepeated: after a close that fails, at any call of the driver, the buffer
// can only be closed again.
func TestCloseIsRepeated(t *testing.T) {
	failed := 0
	for n, left := 0, 1; left > 0; n++ {
		b, emu := connected(t)
		before := emu.Calls(pushes)
		emu.FailAfter(pushes, n, outOfMemory)
		status := mwiBufferClose(b.id)
		left = emu.Calls(pushes) - before - n
		emu.FailAfter(pushes, 1<<30, outOfMemory)
		if status != 0 {
			failed++
			for _, call := range []func() error{b.update, b.install, b.gpuErr} {
				require.ErrorIs(t, call(), ep.ErrClosed)
			}
			require.Zero(t, mwiBufferClose(b.id))
		}
		require.Equal(t, statusOf(errHandle), mwiBufferClose(b.id))
		require.Nil(t, b.onGPU.dev)
	}
	require.Positive(t, failed)
}

// gpuErr returns the error that a call would return now. The core may be gone when only
// the device is left.
func (b *buffer) gpuErr() error {
	g, err := b.gpuCore()
	if err == nil {
		err = g.Err()
	}
	return err
}

// TestRetainedMemoryIsFreedAgain: the last release of a closed buffer's memory reports
// that it could not be freed, and may be repeated.
func TestRetainedMemoryIsFreedAgain(t *testing.T) {
	b, emu := connected(t)
	memory := b.memories.of(&b.onGPU.memory)
	require.Zero(t, mwiMemoryRetain(memory.id))
	require.Zero(t, mwiMemoryRetain(memory.id))
	require.Zero(t, mwiBufferClose(b.id))
	require.Zero(t, mwiMemoryRelease(memory.id))
	emu.FailAfter(pushes, 0, outOfMemory)
	require.NotZero(t, mwiMemoryRelease(memory.id))
	require.Zero(t, mwiMemoryRelease(memory.id))
	require.Equal(t, statusOf(errHandle), mwiMemoryRelease(memory.id))
}

// TestJoinThatCannotBeUndone: a core that was not connected and could not be freed is
// freed before another core is made.
func TestJoinThatCannotBeUndone(t *testing.T) {
	emu := cudatest.Emulate(t)
	b := gpuBuffer(t, 2)
	for n := 0; ; n++ {
		require.Less(t, n, 50)
		before := emu.Calls(pushes)
		require.ErrorContains(t, failToJoin(b), "memory of rank 1: ")
		require.True(t, b.gpu.Load() == nil)
		require.NoError(t, b.update())
		emu.FailAfter(pushes, emu.Calls(pushes)-before-1, outOfMemory)
		err := failToJoin(b)
		emu.FailAfter(pushes, 1<<30, outOfMemory)
		kept := b.gpu.Load() != nil // otherwise it made fewer calls of the device this time
		if kept {
			require.ErrorIs(t, err, cuda.ErrNoMemory)
		}
		require.NoError(t, b.update())
		require.True(t, b.gpu.Load() == nil)
		if kept {
			break
		}
	}
	require.ErrorContains(t, failToJoin(b), "memory of rank 1: ")
	require.Zero(t, mwiBufferClose(b.id))
}

// TestCloseWhileConnecting: a connect ends when another thread closes the buffer, at any
// point of its work on the device. The close frees what the connect made.
func TestCloseWhileConnecting(t *testing.T) {
	emu := cudatest.Emulate(t)
	for n := range 8 {
		b := gpuBuffer(t, 2)
		before := emu.Calls(pushes)
		ended := make(chan error, 1)
		go func() { ended <- joinWith(b, time.Hour, func(*multihost.Domain) error { return nil }) }()
		require.Eventually(t, func() bool { return emu.Calls(pushes) >= before+min(n, 4) }, soon, 50*time.Microsecond)
		require.Zero(t, mwiBufferClose(b.id))
		require.ErrorIs(t, <-ended, ep.ErrClosed)
		require.Nil(t, b.onGPU.dev)
	}
}

// failToJoin makes rank 1 come to the rendezvous and offer a file that is not a memory
// descriptor.
func failToJoin(b *buffer) error {
	return joinWith(b, soon, func(dom *multihost.Domain) error {
		_, slab, err := dom.AddSlab(4096)
		if err == nil {
			slab.Word(0).Store(7)
		}
		return err
	})
}

// joinWith makes rank 1 come to the rendezvous and then run a function, while rank 0
// connects.
func joinWith(b *buffer, timeout time.Duration, then func(*multihost.Domain) error) error {
	params, err := b.params(ep.Standing{})
	if err != nil {
		return err
	}
	l, err := multihost.Open(listenerConfig(1, 2, params))
	if err != nil {
		return err
	}
	all := [][]byte{b.metadata(), l.Metadata()}
	other := make(chan error, 1)
	var dom *multihost.Domain
	go func() {
		var err error
		if dom, err = l.Connect(all, soon); err == nil {
			err = then(dom)
		}
		other <- err
	}()
	err = b.connect(all, timeout)
	if failed := <-other; failed != nil && !errors.Is(err, ep.ErrClosed) { // otherwise rank 1 may have met no rank
		return fmt.Errorf("rank 1: %w", failed)
	}
	if dom != nil {
		if closed := dom.Close(); closed != nil {
			return fmt.Errorf("rank 1: %w", closed)
		}
	}
	return err
}

// TestObservedAfterAPanic: a buffer with a defect takes no calls, but callers can still
// observe it.
func TestObservedAfterAPanic(t *testing.T) {
	b, _ := connected(t)
	require.Equal(t, statusOf(errPanic), guard(b, func() error { panic("boom") }))
	require.Equal(t, statusOf(errPanic), guard(b, func() error { return nil }))
	stats, length := lengthFor(mwiBufferStats)
	require.Zero(t, stats(b.id, nil, 0, length))
	require.NotZero(t, *length)
	paths, length := lengthFor(mwiBufferPaths)
	require.Zero(t, paths(b.id, nil, 0, length))
	require.NotZero(t, *length)
	require.Zero(t, observe(b.id, func(observed) error { return nil }))
	require.Zero(t, mwiBufferClose(b.id))
}

// lengthFor makes the length that a function of the C ABI sets; tests cannot name its type.
func lengthFor[B, L, S any](f func(uint64, *B, uint64, *L) S) (func(uint64, *B, uint64, *L) S, *L) {
	return f, new(L)
}
