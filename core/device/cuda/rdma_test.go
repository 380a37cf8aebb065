package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/sys"
)

func openDevice(t *testing.T, emu *cudatest.Driver) *Device {
	d, err := Open(emu.Library, 0, emu.Code(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// TestDmabuf: a dma-buf of device memory is that memory.
func TestDmabuf(t *testing.T) {
	d := openDevice(t, emulate(t))
	m, err := d.AllocRDMA(5000)
	require.NoError(t, err)
	require.Zero(t, m.NumBytes()%uint64(sys.PageSize()))
	fd, err := m.Dmabuf()
	require.NoError(t, err)
	own := sys.Own(fd)
	mapped, err := sys.Map(own, 0, 5000)
	require.NoError(t, err)
	require.Equal(t, make([]byte, 5000), mapped.Bytes())
	bytesAt(uintptr(m.Address()), 5000)[4999] = 7
	require.EqualValues(t, 7, mapped.Bytes()[4999])
	require.NoError(t, mapped.Unmap())
	require.NoError(t, own.Close())
	require.NoError(t, m.Close())
}

// TestNoRDMA: what cannot be says why, before anything is allocated if it is
// known then.
func TestNoRDMA(t *testing.T) {
	emu := emulate(t)
	d := openDevice(t, emu)
	m, err := d.Alloc(4096) // no other device was to be let in
	require.NoError(t, err)
	_, err = m.Dmabuf()
	require.ErrorIs(t, err, ErrNoRDMA)
	require.ErrorIs(t, err, libcuda.ErrNotSupported)
	require.NoError(t, m.Close())

	for name, why := range map[string]string{
		"EMULATOR_NO_DMABUF": "has none", "EMULATOR_NO_FLUSH": "when its kernels see",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "1")
			_, err := d.AllocRDMA(4096)
			require.ErrorIs(t, err, ErrNoRDMA)
			require.ErrorContains(t, err, why)
			_, err = d.Flush()
			require.ErrorIs(t, err, ErrNoRDMA)
		})
	}
}

// TestRDMAFails: each call of the driver fails once; the error names it, and
// nothing is left.
func TestRDMAFails(t *testing.T) {
	emu := emulate(t)
	d := openDevice(t, emu)
	for _, call := range []string{
		"cuDeviceGetAttribute", "cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
		"cuMemGetHandleForAddressRange", "cuFlushGPUDirectRDMAWrites",
	} {
		emu.FailAfter(call, 0, libcuda.ErrOutOfMemory)
		m, err := d.AllocRDMA(4096)
		if err == nil {
			fd := 0
			if fd, err = m.Dmabuf(); err == nil {
				require.NoError(t, sys.Own(fd).Close())
				var flush func() error
				flush, err = d.Flush()
				require.NoError(t, err)
				err = flush()
			}
			require.NoError(t, m.Close())
		}
		require.ErrorIs(t, err, libcuda.ErrOutOfMemory)
		require.ErrorContains(t, err, call)
	}
}
