package cuda

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/libcuda"
)

// failing are the calls that can fail while a rank's memory is made.
var failing = []string{
	"cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2",
	"cuModuleLoadDataEx", "cuModuleGetFunction", "cuMemGetAllocationGranularity", "cuMemCreate",
	"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async", "cuStreamSynchronize",
	"cuMemHostAlloc", "cuMemHostGetDevicePointer_v2", "cuMemcpyHtoDAsync_v2",
}

// TestEveryFailureIsSaidAndLeavesNothing fails each call in turn, at each time
// that it is made. emulate wants nothing to be left.
func TestEveryFailureIsSaidAndLeavesNothing(t *testing.T) {
	emu := emulate(t)
	for _, call := range failing {
		t.Run(call, func(t *testing.T) {
			times := emu.count(call, func() { require.NoError(t, makeAndClose(emu)) })
			require.Positive(t, times, "the call is not made")
			for n := range times {
				emu.failAfter(call, n, libcuda.ErrOutOfMemory)
				err := makeAndClose(emu)
				require.ErrorIs(t, err, libcuda.ErrOutOfMemory)
				require.ErrorContains(t, err, call)
				require.Empty(t, emu.said(), "%s fails at time %d", call, n)
			}
		})
	}
}

// makeAndClose makes a device and a rank's memory, up to the first error. What
// could not be closed is closed again.
func makeAndClose(emu *emulator) error {
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

// count is how often f makes a call.
func (e *emulator) count(call string, f func()) int {
	name := append([]byte(call), 0)
	before := e.calls.Call(uintptr(unsafe.Pointer(&name[0])))
	f()
	return int(e.calls.Call(uintptr(unsafe.Pointer(&name[0]))) - before)
}

// TestNoLoansOfWhatIsClosed: memory that could not be freed is lent to nobody,
// and its owner closes it again.
func TestNoLoansOfWhatIsClosed(t *testing.T) {
	emu := emulate(t)
	d, err := Open(emu.Library, 0, emu.code(t))
	require.NoError(t, err)
	m, err := d.Alloc(1)
	require.NoError(t, err)
	emu.failAfter("cuCtxPushCurrent_v2", 0, libcuda.ErrOutOfMemory)
	require.ErrorIs(t, m.Close(), libcuda.ErrOutOfMemory)
	_, err = m.Lend(d)
	require.ErrorContains(t, err, "the memory is closed")
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	require.NoError(t, d.Close())
}
