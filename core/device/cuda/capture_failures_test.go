package cuda

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// captureCodes are what the driver says of calls that a capture does not allow.
var captureCodes = []libcuda.Result{
	libcuda.ErrStreamCaptureUnsupport, libcuda.ErrStreamCaptureInvalidate, libcuda.ErrStreamCaptureMerge,
	libcuda.ErrStreamCaptureUnmatched, libcuda.ErrStreamCaptureUnjoined, libcuda.ErrStreamCaptureIsolation,
	libcuda.ErrStreamCaptureImplicit, libcuda.ErrCapturedEvent, libcuda.ErrCaptureWrongThread,
}

// TestCaptureErrorsLeaveTheEngineUsable has each call fail that a capture makes, with
// each code of a capture: the error says so, the capture ends, and the same engine
// exchanges a token and records again.
func TestCaptureErrorsLeaveTheEngineUsable(t *testing.T) {
	emu := emulate(t)
	l := &life{}
	require.NoError(t, l.begin(emu))
	times := countCapture(t, emu, l)
	require.Greater(t, times["cuLaunchKernel"], 1)
	require.Contains(t, times, "cuStreamIsCapturing")
	require.Contains(t, times, "cuStreamEndCapture")
	cases, missed := 0, 0
	for call, n := range times {
		for _, after := range []int{0, n - 1}[:min(n, 2)] {
			for _, code := range captureCodes {
				cases++
				if !failCapture(t, emu, l, call, after, code) {
					missed++
				}
			}
		}
	}
	t.Logf("%d calls, %d cases, of which %d came to nothing", len(times), cases, missed)
	require.LessOrEqual(t, missed, cases/10)
	require.NoError(t, recordAgain(l))
	require.NoError(t, errors.Join(l.end(), l.end()))
	require.Empty(t, emu.Said())
}

// countCapture is how often each call is made by a capture.
func countCapture(t *testing.T, emu *cudatest.Driver, l *life) map[string]int {
	require.NoError(t, recordAgain(l)) // all names are known then
	before := map[string]int{}
	for _, call := range emu.Called() {
		before[call] = emu.Calls(call)
	}
	require.NoError(t, l.record())
	times := map[string]int{}
	for call, n := range before {
		if n = emu.Calls(call) - n; n > 0 {
			times[call] = n
		}
	}
	require.NoError(t, dropGraph(l))
	return times
}

// failCapture is one case, and whether the call was made to fail.
func failCapture(t *testing.T, emu *cudatest.Driver, l *life, call string, after int, code libcuda.Result) bool {
	emu.FailAfter(call, after, code)
	err := l.record()
	if emu.Relent() {
		require.NoError(t, err)
		require.NoError(t, dropGraph(l))
		return false
	}
	var of *libcuda.Error
	require.ErrorAs(t, err, &of, "%s after %d: %d", call, after, code)
	require.Equal(t, call, of.Call, "%d", code)
	require.Equal(t, code, of.Code, call)
	require.NotEmpty(t, of.Text)
	require.NoError(t, l.d.Do(l.endCapture), "%s after %d: %d: the capture does not end", call, after, code)
	require.NoError(t, dropGraph(l))
	records, err := l.e.Captures(uint64(l.stream))
	require.NoError(t, err)
	require.False(t, records, "%s after %d: %d: it still captures", call, after, code)
	clear(cudatest.Slice[uint16](l.tensors.Address()+1024, 128)) // the sum of an earlier case is none of this one
	require.NoError(t, l.exchange(), "%s after %d: %d: no exchange", call, after, code)
	return true
}

// recordAgain captures an exchange and replays it.
func recordAgain(l *life) error {
	clear(cudatest.Slice[uint16](l.tensors.Address()+1024, 128))
	if err := errors.Join(l.record(), l.replay(), dropGraph(l)); err != nil {
		return err
	}
	if out := cudatest.Slice[uint16](l.tensors.Address()+1024, 128); out[0] != bf16(1) || out[127] != bf16(1) {
		return errors.New("the replayed sum is wrong")
	}
	return nil
}

// dropGraph frees what was captured, and what was made of it.
func dropGraph(l *life) error {
	return l.d.Do(func() (err error) {
		if l.exec != 0 {
			err = l.d.lib.GraphExecDestroy(l.exec)
		}
		if l.graph != 0 {
			err = errors.Join(err, l.d.lib.GraphDestroy(l.graph))
		}
		l.exec, l.graph = 0, 0
		return err
	})
}

// TestNoCaptureErrorIsIdle: whatever a capture made a Synchronize say, what was
// launched may still run, so nothing may be freed; any other error is a broken device.
func TestNoCaptureErrorIsIdle(t *testing.T) {
	emu := emulate(t)
	d, err := Open(emu.Library, 0, emu.Code(t))
	require.NoError(t, err)
	for _, code := range captureCodes {
		emu.FailAfter("cuCtxSynchronize", 0, code)
		err := d.Synchronize()
		require.ErrorIs(t, err, code, "it was asked again")
		require.True(t, IsCaptured(err), "%d", code)
		require.False(t, IsIdle(err), "%d", code)
	}
	require.True(t, IsIdle(&libcuda.Error{Call: "cuCtxSynchronize", Code: libcuda.ErrIllegalAddress}))
	require.NoError(t, d.Close())
}
