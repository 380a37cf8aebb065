package node

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/op"
)

// TestAnOldOperationIsNotTheOneThatServesAgain: a caller that holds an operation that was
// closed cannot change the operation that reuses its memory.
func TestAnOldOperationIsNotTheOneThatServesAgain(t *testing.T) {
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	for range 20 { // a pool may forget one
		_, old := c.dispatch(t, 0, ep.PhaseSent)
		require.NoError(t, old.Wait(ep.PhaseDone, 0))
		old.Close()
		_, again := c.dispatch(t, 0, ep.PhaseSent)
		require.NotEqual(t, old, again)
		if again.of != old.of {
			require.NoError(t, again.Wait(ep.PhaseDone, 0))
			again.Close()
			continue
		}
		require.ErrorIs(t, old.Wait(ep.PhaseDone, 0), ErrOperationClosed)
		old.Cancel()
		old.Close()
		require.Equal(t, op.Pending, again.State())
		require.NoError(t, again.Wait(ep.PhaseDone, 0), "it was neither cancelled nor closed")
		require.Equal(t, op.Done, again.State())
		again.Close()
		break
	}
	h, received := c.dispatch(t, 0, ep.PhaseSent)
	reduced := c.combine(t, h, 0, ep.PhaseSent)
	reduced.Cancel() // this also releases the handle
	require.ErrorIs(t, reduced.Wait(ep.PhaseDone, 0), op.ErrCancelled)
	require.Equal(t, op.Cancelled, reduced.State())
	require.ErrorIs(t, b.Release(h, Stream{}), ep.ErrStaleHandle)
	require.NoError(t, onDevice(b).buffer.Load().Err())
	reduced.Close()
	received.Close()
	c.end(t, emu, 0)
	c.end(t, emu, 1)
	require.NoError(t, b.Close())
}

// TestAWaitInACaptureIsRepeated: the rest of an operation that ran outside the capture is
// not recorded. The next wait launches it.
func TestAWaitInACaptureIsRepeated(t *testing.T) {
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	h, received := c.dispatch(t, 0, ep.PhaseSent)
	for _, next := range []func() Operation{
		func() Operation { return received },
		func() Operation { return c.combine(t, h, 0, ep.PhaseSent) },
	} {
		o := next()
		capture(t, c, emu.BeginCapture, emu.EndCapture, emu.GraphDestroy, func() {
			require.ErrorIs(t, o.Wait(ep.PhaseDone, 0), ep.ErrInvalid)
		})
		require.NoError(t, o.Wait(ep.PhaseDone, 0))
		require.NoError(t, o.Wait(ep.PhaseDone, 0))
		o.Close()
	}
	c.end(t, emu, 0)
	c.end(t, emu, 1)
	require.NoError(t, b.Close())
}

// capture records what f does on the first stream, and drops the recording. The driver's
// types have no names here.
func capture[S ~uint64 | ~uintptr, G any](
	t *testing.T, c *caller, begin func(S, int) error, end func(S) (G, error), destroy func(G) error, f func(),
) {
	const relaxed = 2
	stream := S(c.streams[0])
	require.NoError(t, onDevice(c.b).dev.Do(func() error { return begin(stream, relaxed) }))
	f()
	require.NoError(t, onDevice(c.b).dev.Do(func() error {
		graph, err := end(stream)
		return errors.Join(err, destroy(graph))
	}))
}

// TestASecondPhaseThatACombineHasLaunched: a wait on the dispatch's operation learns that
// the phase was launched, even when another dispatch has taken the handle's slot.
func TestASecondPhaseThatACombineHasLaunched(t *testing.T) {
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	whole := func() Operation {
		h, received := c.dispatch(t, 0, ep.PhaseSent)
		reduced := c.combine(t, h, 0, ep.PhaseSent)
		require.NoError(t, reduced.Wait(ep.PhaseDone, 0))
		reduced.Close()
		return received
	}
	first := whole()
	for range 4 { // more than there are slots
		second := whole()
		require.NoError(t, first.Wait(ep.PhaseDone, 0))
		first.Close()
		first = second
	}
	first.Cancel() // nothing is left to cancel
	require.NoError(t, first.Wait(ep.PhaseDone, 0))
	first.Close()
	h, given := c.dispatch(t, 0, ep.PhaseSent)
	require.NoError(t, b.Release(h, Stream{}))
	require.ErrorIs(t, given.Wait(ep.PhaseDone, 0), ep.ErrStaleHandle, "it was released before")
	given.Close()
	c.end(t, emu, 0)
	c.end(t, emu, 1)
	require.NoError(t, b.Close())
}

// TestNoAddresses: a call on a device that names no memory there is refused.
func TestNoAddresses(t *testing.T) {
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	h, _ := c.dispatch(t, 0, ep.PhaseDone)
	var res Result
	_, err := b.Dispatch(&ep.DispatchArgs{NumTokens: 1, Hidden: 8, TopK: 1, MaxTokens: 1, NumExperts: 1}, &res, ep.PhaseDone, -1)
	require.ErrorIs(t, err, ep.ErrInvalid)
	for _, inPlace := range []bool{false, true} {
		_, err = b.Combine(h, &ep.CombineArgs{TopK: 1, ZeroCopy: inPlace}, ep.PhaseDone, -1)
		require.ErrorIs(t, err, ep.ErrInvalid)
	}
	c.end(t, emu, 0)
	c.end(t, emu, 1)
	require.NoError(t, b.Close())
}
