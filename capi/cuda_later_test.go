package main

import (
	"errors"
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/op"
)

// begun makes the calls of one stream that leave their second phase for later.
type begun struct {
	b                 *buffer
	dispatch, combine func() (op uint64)
	handle            func() uint64
}

func newBegun(t *testing.T, c *caller) *begun {
	d, dop := argsFor((*buffer).dispatchGPU)
	d.hidden, d.num_topk, d.num_max_tokens_per_rank, d.num_experts, d.timeout_us, d.phase = 128, 1, 4, 1, -1, 1
	set(&d.stream, c.streams[0])
	result := fresh(&d.result)
	setNumber(&result.size, unsafe.Sizeof(*result))
	m, mop := argsFor((*buffer).combineGPU)
	m.num_topk, m.timeout_us, m.phase = 1, -1, 1
	set(&m.x, c.memory)
	set(&m.stream, c.streams[0])
	return &begun{
		b: c.b, handle: func() uint64 { return uint64(result.handle.id) },
		dispatch: func() uint64 {
			if err := c.b.dispatchGPU(d, dop); err != nil {
				t.Fatal(err)
			}
			return uint64(*dop)
		},
		combine: func() uint64 {
			m.handle = result.handle
			if err := c.b.combineGPU(m, mop); err != nil {
				t.Fatal(err)
			}
			return uint64(*mop)
		},
	}
}

// operation makes a dispatch and a combine of two phases each, and another dispatch that
// is cancelled.
func (c *begun) operation(t *testing.T) {
	for _, begin := range []func() uint64{c.dispatch, c.combine} {
		id := begin()
		if mwiOpWait(id, 2, 0) != 0 || mwiOpClose(id) != 0 {
			t.Fatal("a second phase failed")
		}
	}
	if mwiOpClose(c.dispatch()) != 0 {
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
	calls := newBegun(t, c)
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
	c.end(t, emu, 0)
	c.end(t, emu, 1)
	require.Zero(t, mwiBufferClose(b.id))
}

// TestAnOldIDIsNotOfTheOperationThatServesAgain: a caller that found an operation before
// it was closed cannot change the operation that reuses its memory.
func TestAnOldIDIsNotOfTheOperationThatServesAgain(t *testing.T) {
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	calls := newBegun(t, c)
	for range 20 { // a pool may forget one
		old := calls.dispatch()
		found, err := ops.get(old)
		require.NoError(t, err)
		require.NoError(t, found.wait(old, ep.PhaseDone, 0))
		require.Zero(t, mwiOpClose(old))
		id := calls.dispatch()
		require.NotEqual(t, old, id)
		if again, _ := ops.get(id); again != found {
			require.Zero(t, mwiOpWait(id, 2, 0))
			require.Zero(t, mwiOpClose(id))
			continue
		}
		require.ErrorIs(t, found.wait(old, ep.PhaseDone, 0), errHandle)
		found.cancel(old)
		require.Equal(t, statusOf(errHandle), mwiOpWait(old, 2, 0))
		require.Equal(t, statusOf(errHandle), mwiOpClose(old))
		require.Zero(t, mwiOpWait(id, 2, 0), "it was neither cancelled nor closed")
		require.Zero(t, mwiOpClose(id))
		break
	}
	id := calls.combine()
	found, err := ops.get(id)
	require.NoError(t, err)
	found.cancel(id) // this also releases the handle
	require.ErrorIs(t, found.wait(id, ep.PhaseDone, 0), op.ErrCancelled)
	require.Zero(t, mwiOpClose(id))
	require.ErrorIs(t, b.releaseGPU(calls.handle(), nil), ep.ErrStaleHandle)
	require.NoError(t, b.gpu.Load().Err())
	c.end(t, emu, 0)
	c.end(t, emu, 1)
	require.Zero(t, mwiBufferClose(b.id))
}

// TestAWaitInACaptureIsRepeated: the rest of an operation that ran outside the capture is
// not recorded. The next wait launches it.
func TestAWaitInACaptureIsRepeated(t *testing.T) {
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	calls := newBegun(t, c)
	for _, begin := range []func() uint64{calls.dispatch, calls.combine} {
		id := begin()
		capture(t, c, emu.BeginCapture, emu.EndCapture, emu.GraphDestroy, func() {
			require.EqualValues(t, -1, mwiOpWait(id, 2, 0))
		})
		require.Zero(t, mwiOpWait(id, 2, 0))
		require.Zero(t, mwiOpWait(id, 2, 0))
		require.Zero(t, mwiOpClose(id))
	}
	c.end(t, emu, 0)
	c.end(t, emu, 1)
	require.Zero(t, mwiBufferClose(b.id))
}

// capture records what f does on the first stream, and drops the recording. The driver's
// types have no names here.
func capture[S ~uint64 | ~uintptr, G any](
	t *testing.T, c *caller, begin func(S, int) error, end func(S) (G, error), destroy func(G) error, f func(),
) {
	const relaxed = 2
	stream := S(c.streams[0])
	require.NoError(t, c.b.onGPU.dev.Do(func() error { return begin(stream, relaxed) }))
	f()
	require.NoError(t, c.b.onGPU.dev.Do(func() error {
		graph, err := end(stream)
		return errors.Join(err, destroy(graph))
	}))
}

// TestASecondPhaseThatACombineHasLaunched: a wait on the dispatch's operation learns that
// the phase was launched, even when another dispatch has taken the handle's slot.
func TestASecondPhaseThatACombineHasLaunched(t *testing.T) {
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	calls := newBegun(t, c)
	whole := func() uint64 {
		received := calls.dispatch()
		summed := calls.combine()
		require.Zero(t, mwiOpWait(summed, 2, 0))
		require.Zero(t, mwiOpClose(summed))
		return received
	}
	first := whole()
	for range 4 { // more than there are slots
		second := whole()
		require.Zero(t, mwiOpWait(first, 2, 0))
		require.Zero(t, mwiOpClose(first))
		first = second
	}
	require.Zero(t, mwiOpCancel(first), "nothing is left to cancel")
	require.Zero(t, mwiOpWait(first, 2, 0))
	require.Zero(t, mwiOpClose(first))
	given := calls.dispatch()
	require.NoError(t, b.releaseGPU(calls.handle(), nil))
	require.Equal(t, statusOf(ep.ErrStaleHandle), mwiOpWait(given, 2, 0), "it was released before")
	require.Zero(t, mwiOpClose(given))
	c.end(t, emu, 0)
	c.end(t, emu, 1)
	require.Zero(t, mwiBufferClose(b.id))
}
