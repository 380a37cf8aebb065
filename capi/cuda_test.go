package main

import (
	"errors"
	"math"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/node"
)

const (
	pushes = "cuCtxPushCurrent_v2"
	soon   = time.Minute

	outOfMemory = 2 // one of the driver's error codes
)

// onDevice is the only rank of a group on the emulated device.
func onDevice(t *testing.T) node.Config {
	n, err := layout.SizeHint(layout.Shape{MaxTokens: 4, Hidden: 128, NumExperts: 1, NumRanks: 1}, 2)
	require.NoError(t, err)
	return node.Config{
		NumRanks: 1, Config: ep.Config{NumBytes: n}, CUDA: &node.CUDA{Driver: cudatest.Build{}.Library(t), Code: []byte("kernels\x00")},
	}
}

func connected(t *testing.T) (*buffer, *cudatest.Driver) {
	emu := cudatest.Emulate(t)
	b := newBuffer(t, onDevice(t))
	require.NoError(t, b.Connect([][]byte{b.Metadata()}, soon))
	return b, emu
}

// TestAFailedCloseKeepsItsID: only the close that succeeds takes it.
func TestAFailedCloseKeepsItsID(t *testing.T) {
	failed := 0
	for n, left := 0, 1; left > 0; n++ { // some failures are made good within the close
		b, emu := connected(t)
		before := emu.Calls(pushes)
		emu.FailAfter(pushes, n, outOfMemory)
		status := mwiBufferClose(b.id)
		left = emu.Calls(pushes) - before - n
		emu.FailAfter(pushes, 1<<30, outOfMemory)
		if status != 0 {
			failed++
			require.Zero(t, mwiBufferClose(b.id))
		}
		require.Equal(t, statusOf(errHandle), mwiBufferClose(b.id))
	}
	require.Positive(t, failed)
}

// argsFor makes new structs for a call's arguments: a test cannot name their C types.
func argsFor[A, O any](func(*buffer, *A, *O) error) (*A, *O) { return new(A), new(O) }

func set[T ~uint64](p *T, v uint64) { *p = T(v) }

func setNumber[T ~uint32](p *T, v uintptr) { *p = T(v) }

func fresh[T any](at **T) *T {
	*at = new(T)
	return *at
}

// caller is what a caller of the library owns: a stream and memory.
type caller struct {
	b      *buffer
	dev    *cuda.Device
	stream uint64
	memory uint64
}

func newCaller(t *testing.T, emu *cudatest.Driver, b *buffer) *caller {
	dev, _, err := cuda.OpenAt(cudatest.Build{}.Library(t), 0, func(int, int) ([]byte, string, error) {
		return []byte("kernels\x00"), "", nil
	})
	require.NoError(t, err)
	c := &caller{b: b, dev: dev}
	require.NoError(t, dev.Do(func() error {
		s, err := emu.StreamCreate(0)
		if err != nil {
			return err
		}
		c.stream = uint64(s)
		p, err := emu.MemAlloc(1 << 20)
		c.memory = uint64(p)
		return err
	}))
	return c
}

// end frees what the caller owns, once the stream is idle, and closes the buffer.
func (c *caller) end(t *testing.T, emu *cudatest.Driver) {
	require.NoError(t, c.free(emu))
	require.Zero(t, mwiBufferClose(c.b.id))
}

func (c *caller) free(emu *cudatest.Driver) error {
	err := c.dev.Do(func() error {
		return errors.Join(with(emu.StreamSynchronize, c.stream), with(emu.StreamDestroy, c.stream), with(emu.MemFree, c.memory))
	})
	return errors.Join(err, c.dev.Close())
}

// with calls a driver function that takes one handle.
func with[T ~uint64 | ~uintptr](f func(T) error, handle uint64) error { return f(T(handle)) }

// begun makes the calls of one stream.
type begun struct {
	b        *buffer
	dispatch func() (op, memory uint64)
	combine  func() (op uint64)
	handle   func() uint64
}

// newBegun has the flags of its dispatches, and the phase that all calls reach.
func newBegun(t *testing.T, c *caller, flags uintptr, phase int32) *begun {
	d, dop := argsFor((*buffer).dispatch)
	d.hidden, d.num_topk, d.num_max_tokens_per_rank, d.num_experts, d.timeout_us = 128, 1, 4, 1, -1
	setPhase(&d.phase, phase)
	setNumber(&d.flags, flags)
	set(&d.stream, c.stream)
	result := fresh(&d.result)
	setNumber(&result.size, unsafe.Sizeof(*result))
	m, mop := argsFor((*buffer).combine)
	m.num_topk, m.timeout_us = 1, -1
	setPhase(&m.phase, phase)
	set(&m.x, c.memory)
	set(&m.stream, c.stream)
	return &begun{
		b: c.b, handle: func() uint64 { return uint64(result.handle.id) },
		dispatch: func() (op, memory uint64) {
			if err := c.b.dispatch(d, dop); err != nil {
				t.Fatal(err)
			}
			return uint64(*dop), uint64(result.memory.id)
		},
		combine: func() uint64 {
			m.handle = result.handle
			if err := c.b.combine(m, mop); err != nil {
				t.Fatal(err)
			}
			return uint64(*mop)
		},
	}
}

func setPhase[T ~int32](p *T, v int32) { *p = T(v) }

// operation makes a dispatch and a combine of two phases each, and another dispatch that
// is cancelled.
func (c *begun) operation(t *testing.T) {
	received, _ := c.dispatch()
	for _, id := range []uint64{received, c.combine()} {
		if mwiOpWait(id, 2, 0) != 0 || mwiOpClose(id) != 0 {
			t.Fatal("a second phase failed")
		}
	}
	if given, _ := c.dispatch(); mwiOpClose(given) != 0 {
		t.Fatal("giving up failed")
	}
}

// TestOperationsOnCUDAAllocateNothing: no step of an operation allocates, by the calls of
// the C ABI.
func TestOperationsOnCUDAAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, and pools forget")
	}
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	calls := newBegun(t, c, 0, 1)
	for range 20 {
		calls.operation(t)
	}
	// The count includes other allocations of this process, so the test takes the least
	// of several.
	least := math.Inf(1)
	for tries := 0; tries < 5 && least > 0; tries++ {
		least = min(least, testing.AllocsPerRun(100, func() { calls.operation(t) }))
	}
	require.Zero(t, least)
	c.end(t, emu)
}

// TestAnOldIDIsNotOfTheOperationThatServesAgain: a caller that found an operation before
// it was closed cannot change the operation that reuses its memory.
func TestAnOldIDIsNotOfTheOperationThatServesAgain(t *testing.T) {
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	calls := newBegun(t, c, 0, 1)
	for range 20 { // a pool may forget one
		old, _ := calls.dispatch()
		found, err := ops.get(old)
		require.NoError(t, err)
		require.NoError(t, found.wait(old, ep.PhaseDone, 0))
		require.Zero(t, mwiOpClose(old))
		id, _ := calls.dispatch()
		require.NotEqual(t, old, id)
		require.ErrorIs(t, found.wait(old, ep.PhaseDone, 0), errHandle)
		found.Cancel()
		require.Equal(t, statusOf(errHandle), mwiOpWait(old, 2, 0))
		require.Equal(t, statusOf(errHandle), mwiOpClose(old))
		require.Zero(t, mwiOpWait(id, 2, 0), "it was neither cancelled nor closed")
		require.Zero(t, mwiOpClose(id))
	}
	c.end(t, emu)
}

// TestFlatCombineNeedsRows: only the device knows whether there are rows, and without an
// address it would sum the content of the slab.
func TestFlatCombineNeedsRows(t *testing.T) {
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	calls := newBegun(t, c, 32, 2) // MW_DISPATCH_FLAT
	calls.dispatch()
	args, op := argsFor((*buffer).combine)
	args.timeout_us, args.phase, args.flags = -1, 2, 2 // MW_COMBINE_FLAT
	set(&args.handle.id, calls.handle())
	set(&args.stream, c.stream)
	err := b.combine(args, op)
	require.ErrorIs(t, err, ep.ErrInvalid)
	require.ErrorContains(t, err, "x is NULL")
	set(&args.x, c.memory)
	require.NoError(t, b.combine(args, op))
	c.end(t, emu)
}

// TestRetainedMemoryIsFreedAgain: the last release of a closed buffer's memory reports
// that it could not be freed, and may be repeated.
func TestRetainedMemoryIsFreedAgain(t *testing.T) {
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	_, memory := newBegun(t, c, 0, 2).dispatch()
	require.NoError(t, c.free(emu))
	require.Zero(t, mwiMemoryRetain(memory))
	require.Zero(t, mwiMemoryRetain(memory))
	require.Zero(t, mwiBufferClose(b.id))
	require.Zero(t, mwiMemoryRelease(memory))
	emu.FailAfter(pushes, 0, outOfMemory)
	require.NotZero(t, mwiMemoryRelease(memory))
	require.Zero(t, mwiMemoryRelease(memory))
	require.Equal(t, statusOf(errHandle), mwiMemoryRelease(memory))
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
	require.Zero(t, observe(b.id, func(node.Observed) error { return nil }))
	require.Zero(t, mwiBufferClose(b.id))
}

// lengthFor makes the length that a function of the C ABI sets; tests cannot name its type.
func lengthFor[B, L, S any](f func(uint64, *B, uint64, *L) S) (func(uint64, *B, uint64, *L) S, *L) {
	return f, new(L)
}
