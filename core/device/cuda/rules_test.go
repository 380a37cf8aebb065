package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/libcuda"
)

// forked is a capture on one stream of a rank, another stream, and two events. The
// driver's rules of captures are what tests of graphs lean on.
type forked struct {
	*group
	o          *op
	main, side libcuda.Stream
	out, back  libcuda.Event
}

func fork(t *testing.T) *forked {
	emulate(t)
	g, o, _ := small(t, 1)
	f := &forked{group: g, o: o, main: g.ranks[0].stream}
	lib := g.d.lib
	g.must(func() (err error) { f.side, err = lib.StreamCreate(0); return err })
	g.must(func() (err error) { f.out, err = lib.EventCreate(libcuda.EventDisableTiming); return err })
	g.must(func() (err error) { f.back, err = lib.EventCreate(libcuda.EventDisableTiming); return err })
	t.Cleanup(func() {
		g.must(func() error { return lib.StreamSynchronize(f.side) })
		g.must(func() error { return lib.EventDestroy(f.out) })
		g.must(func() error { return lib.EventDestroy(f.back) })
		g.must(func() error { return lib.StreamDestroy(f.side) })
	})
	return f
}

// capture records what f launches; the error is that of the end.
func (f *forked) capture(does func()) (exec libcuda.GraphExec, err error) {
	lib := f.d.lib
	f.must(func() error { return lib.BeginCapture(f.main, libcuda.CaptureModeRelaxed) })
	does()
	f.must(func() error {
		var captured libcuda.Graph
		if captured, err = lib.EndCapture(f.main); err != nil {
			return nil
		}
		exec, err = lib.GraphInstantiate(captured)
		return lib.GraphDestroy(captured)
	})
	return exec, err
}

// waits has a stream wait for what another one has so far.
func (f *forked) waits(stream libcuda.Stream, e libcuda.Event, other libcuda.Stream) (err error) {
	c := f.ranks[0].calls
	f.must(func() error {
		if err = c.Record(e, other); err == nil {
			err = c.Wait(stream, e)
		}
		return nil
	})
	return err
}

func (f *forked) records(stream libcuda.Stream) bool {
	records, err := f.ranks[0].Captures(uint64(stream))
	require.NoError(f.t, err)
	return records
}

// aside launches the operation on the other stream.
func (f *forked) aside() {
	f.o.calls[0].Stream = uint64(f.side)
	f.identity(f.o, 0, 0)
}

// TestCaptureOfAFork: what goes to another stream, there and back by events, is
// part of the graph, and of nothing else.
func TestCaptureOfAFork(t *testing.T) {
	f := fork(t)
	exec, err := f.capture(func() {
		require.False(t, f.records(f.side))
		require.NoError(t, f.waits(f.side, f.out, f.main))
		require.True(t, f.records(f.side))
		f.aside()
		require.NoError(t, f.waits(f.main, f.back, f.side))
		f.o.calls[0].Stream = uint64(f.main)
		f.identity(f.o, 0, 1)
	})
	require.NoError(t, err)
	require.False(t, f.records(f.side))
	for range 3 {
		clear(f.o.outs[0])
		f.must(func() error { return f.d.lib.GraphLaunch(exec, f.main) })
		f.sync()
		require.Zero(t, f.ranks[0].report().Error)
		f.o.checkIdentity(t, 0)
	}
	require.EqualValues(t, 6, f.ranks[0].report().Ops)
	f.must(func() error { return f.d.lib.GraphExecDestroy(exec) })
}

// TestCaptureOfAForkThatIsNotJoined: the capture ends without a graph, and the
// streams are free.
func TestCaptureOfAForkThatIsNotJoined(t *testing.T) {
	f := fork(t)
	_, err := f.capture(func() {
		require.NoError(t, f.waits(f.side, f.out, f.main))
		f.aside()
	})
	require.ErrorIs(t, err, libcuda.ErrStreamCaptureUnjoined)
	require.False(t, f.records(f.side))
	f.aside()
	f.must(func() error { return f.d.lib.StreamSynchronize(f.side) })
	f.o.checkIdentity(t, 0)
}

// TestCaptureWaitsForNothingOutside: an event that was recorded outside of a capture
// spoils it.
func TestCaptureWaitsForNothingOutside(t *testing.T) {
	f := fork(t)
	_, err := f.capture(func() {
		require.ErrorIs(t, f.waits(f.main, f.out, f.side), libcuda.ErrStreamCaptureIsolation)
	})
	require.ErrorIs(t, err, libcuda.ErrStreamCaptureInvalidate)
}

// TestCapturesDoNotMerge: nor does a stream of one capture wait for another one's.
func TestCapturesDoNotMerge(t *testing.T) {
	f := fork(t)
	lib := f.d.lib
	_, err := f.capture(func() {
		f.must(func() error { return lib.BeginCapture(f.side, libcuda.CaptureModeRelaxed) })
		require.ErrorIs(t, f.waits(f.main, f.out, f.side), libcuda.ErrStreamCaptureMerge)
		f.must(func() error {
			_, err := lib.EndCapture(f.side)
			require.ErrorIs(t, err, libcuda.ErrStreamCaptureInvalidate)
			return nil
		})
	})
	require.ErrorIs(t, err, libcuda.ErrStreamCaptureInvalidate)
}

// TestCaptureIsNotAsked: the driver refuses to say how far captured work has come, and
// to wait for it once the capture is over.
func TestCaptureIsNotAsked(t *testing.T) {
	f := fork(t)
	lib := f.d.lib
	_, err := f.capture(func() {
		f.must(func() error { return f.ranks[0].calls.Record(f.out, f.main) })
		f.must(func() error {
			require.ErrorIs(t, lib.EventQuery(f.out), libcuda.ErrCapturedEvent)
			return nil
		})
	})
	require.ErrorIs(t, err, libcuda.ErrStreamCaptureInvalidate)
	f.must(func() error {
		require.ErrorIs(t, f.ranks[0].calls.Wait(f.side, f.out), libcuda.ErrCapturedEvent)
		return nil
	})
}
