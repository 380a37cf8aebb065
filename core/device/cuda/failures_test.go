package cuda

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// failing are the calls that can fail while a rank's memory is made.
var failing = []string{
	"cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2",
	"cuModuleLoadDataEx", "cuModuleGetFunction", "cuMemGetAllocationGranularity", "cuMemCreate",
	"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async", "cuStreamSynchronize",
	"cuMemHostAlloc", "cuMemHostGetDevicePointer_v2", "cuMemcpyHtoDAsync_v2",
	"cuStreamCreateWithPriority", "cuThreadExchangeStreamCaptureMode",
}

// TestEveryFailureIsSaidAndLeavesNothing fails each call in turn, at each time
// that it is made. emulate wants nothing to be left.
func TestEveryFailureIsSaidAndLeavesNothing(t *testing.T) {
	emu := emulate(t)
	for _, call := range failing {
		t.Run(call, func(t *testing.T) {
			before := emu.Calls(call)
			require.NoError(t, makeAndClose(emu))
			times := emu.Calls(call) - before
			require.Positive(t, times, "the call is not made")
			for n := range times {
				emu.FailAfter(call, n, libcuda.ErrOutOfMemory)
				err := makeAndClose(emu)
				require.ErrorIs(t, err, libcuda.ErrOutOfMemory)
				require.ErrorContains(t, err, call)
				require.Empty(t, emu.Said(), "%s fails at time %d", call, n)
			}
		})
	}
}

// makeAndClose makes a device and a rank's memory, up to the first error. What
// could not be closed is closed again.
func makeAndClose(emu *cudatest.Driver) error {
	d, err := Open(emu.Library, 0, []byte("kernels\x00"))
	if err != nil {
		return err
	}
	e, err := NewEngine(d, Config{NumRanks: 2, NumSlots: 2, SlabBytes: 4 << 20, MaxSelections: 8, MaxExperts: 4})
	if err == nil {
		if err = e.Close(); err != nil {
			err = errors.Join(err, e.Close())
		}
	}
	failed := d.Close()
	return errors.Join(err, failed, d.Close())
}

// TestNoLoansOfWhatIsClosed: memory that could not be freed is lent to nobody,
// and its owner closes it again.
func TestNoLoansOfWhatIsClosed(t *testing.T) {
	emu := emulate(t)
	d, err := Open(emu.Library, 0, emu.Code(t))
	require.NoError(t, err)
	m, err := d.Alloc(1)
	require.NoError(t, err)
	emu.FailAfter("cuCtxPushCurrent_v2", 0, libcuda.ErrOutOfMemory)
	require.ErrorIs(t, m.Close(), libcuda.ErrOutOfMemory)
	_, err = m.Lend(d)
	require.ErrorContains(t, err, "the memory is closed")
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	require.NoError(t, d.Close())
}
