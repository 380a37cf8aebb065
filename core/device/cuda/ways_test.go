package cuda

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/sys"
)

// setenv sets a variable for the rest of the test; "" takes it away.
func setenv(t *testing.T, name, value string) {
	t.Setenv(name, value)
	if value == "" {
		require.NoError(t, os.Unsetenv(name))
	}
}

// TestWays: memory that is shared is made for all ways that there are, other memory
// for what it always was; and what the driver refuses is left out, and told of.
func TestWays(t *testing.T) {
	emu := emulate(t)
	const fd, fabric = 1, 2 // what others can map it by; 0: IPC handles
	for name, c := range map[string]struct {
		fabric, driver, noFD string
		leaveOut             func(*Device)
		shared, plain        int
		refused              bool
	}{
		"no fabric":               {shared: fd, plain: fd},
		"fabric":                  {fabric: "1", shared: fd | fabric, plain: fd},
		"refused":                 {fabric: "refused", shared: fd, plain: fd, refused: true},
		"old driver":              {fabric: "1", driver: "12020", shared: fd, plain: fd},
		"first driver":            {fabric: "1", driver: "12030", shared: fd | fabric, plain: fd},
		"no descriptors":          {fabric: "1", noFD: "1", shared: fabric},
		"no descriptors, refused": {fabric: "refused", noFD: "1", refused: true},
		"neither":                 {noFD: "1"},
		"by IPC":                  {fabric: "1", leaveOut: (*Device).ShareByIPC},
		"by fabric":               {fabric: "1", leaveOut: (*Device).ShareByFabric, shared: fabric},
	} {
		t.Run(name, func(t *testing.T) {
			setenv(t, "EMULATOR_FABRIC", c.fabric)
			setenv(t, "EMULATOR_DRIVER", c.driver)
			setenv(t, "EMULATOR_NO_FD", c.noFD)
			d := openDevice(t, emu)
			if c.leaveOut != nil {
				c.leaveOut(d)
			}
			for want, alloc := range map[*int]func(uint64) (*Memory, error){&c.shared: d.AllocShared, &c.plain: d.Alloc} {
				m, err := alloc(5000)
				require.NoError(t, err)
				require.Equal(t, make([]byte, 5000), cudatest.Slice[byte](m.Address(), 5000))
				_, err = m.Export()
				require.Equal(t, *want&fd != 0, err == nil, "%v", err)
				require.Equal(t, *want&fd != 0, m.ByDescriptor())
				_, named := m.Fabric()
				require.Equal(t, *want&fabric != 0, named)
				_, err = m.IPCHandle()
				require.Equal(t, *want == 0, err == nil, "%v", err)
				if c.refused && want == &c.shared {
					require.ErrorIs(t, m.NoFabric(), ErrNoFabric)
					require.ErrorContains(t, m.NoFabric(), "cuMemCreate: CUDA_ERROR_NOT_PERMITTED (800): operation not permitted")
				} else {
					require.NoError(t, m.NoFabric())
				}
				require.NoError(t, m.Close())
				require.NoError(t, m.Close())
			}
		})
	}
}

// TestFabricIsNotNeeded: whatever call fails that only a fabric handle needs, with
// whatever error, there is memory by descriptor, and why.
func TestFabricIsNotNeeded(t *testing.T) {
	emu := emulate(t)
	t.Setenv("EMULATOR_FABRIC", "1")
	d := openDevice(t, emu)
	for _, call := range []string{"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle"} {
		for _, code := range []libcuda.Result{
			libcuda.ErrNotPermitted, libcuda.ErrNotSupported, libcuda.ErrInvalidValue, libcuda.ErrInvalidDevice, libcuda.ErrOutOfMemory,
		} {
			emu.FailAfter(call, 0, code)
			m, err := d.AllocShared(5000)
			require.NoError(t, err, call)
			_, named := m.Fabric()
			require.False(t, named, call)
			require.True(t, m.ByDescriptor(), call)
			require.ErrorIs(t, m.NoFabric(), code)
			require.ErrorContains(t, m.NoFabric(), call)
			require.NoError(t, m.Close())
		}
	}
	d.ShareByFabric()
	emu.FailAfter("cuMemExportToShareableHandle", 0, libcuda.ErrNotPermitted)
	m, err := d.AllocShared(5000)
	require.NoError(t, err)
	_, named := m.Fabric()
	require.False(t, named)
	_, err = m.IPCHandle()
	require.NoError(t, err)
	require.ErrorIs(t, m.NoFabric(), libcuda.ErrNotPermitted)
	require.NoError(t, m.Close())
	d.without = 0
	for _, call := range []string{"cuDriverGetVersion", "cuDeviceGetAttribute", "cuMemMap"} { // these are
		emu.FailAfter(call, 0, libcuda.ErrOutOfMemory)
		_, err := d.AllocShared(5000)
		require.ErrorIs(t, err, libcuda.ErrOutOfMemory, call)
		require.ErrorContains(t, err, call)
	}
	// What could not be released is left, and told of, too.
	emu.FailAfter("cuMemExportToShareableHandle", 0, libcuda.ErrNotPermitted)
	emu.FailAfter("cuMemRelease", 0, libcuda.ErrNotSupported)
	m, err = d.AllocShared(5000)
	require.NoError(t, err)
	require.ErrorIs(t, m.NoFabric(), libcuda.ErrNotPermitted)
	require.ErrorContains(t, m.NoFabric(), "cuMemRelease")
	require.NoError(t, m.Close())
	require.Contains(t, emu.Said(), "handles of memory left: 1\n")
	emu.Reclaim()
	d.closed = true // it has gone with that
}

// byFabric is memory of two megabytes, its fabric handle, and its first as many
// bytes as another one's.
func byFabric(t *testing.T, d *Device, numBytes uint64) (m *Memory, h libcuda.FabricHandle, other *Memory) {
	m, err := d.AllocShared(2 << 20)
	require.NoError(t, err)
	h, named := m.Fabric()
	require.True(t, named)
	other, err = d.ImportFabric(&h, numBytes)
	require.NoError(t, err)
	return m, h, other
}

// TestImportFabric: it is the same memory, and stays when its owner closes it; the
// handle alone keeps nothing.
func TestImportFabric(t *testing.T) {
	t.Setenv("EMULATOR_FABRIC", "1")
	d := openDevice(t, emulate(t))
	m, h, other := byFabric(t, d, 5000)
	require.NotEqual(t, m.Address(), other.Address())
	cudatest.Slice[byte](m.Address(), 5000)[4999] = 7
	require.EqualValues(t, 7, cudatest.Slice[byte](other.Address(), 5000)[4999])
	require.NoError(t, m.Close())
	cudatest.Slice[byte](other.Address(), 5000)[4998] = 8
	again, err := d.Alloc(2 << 20) // perhaps in its place
	require.NoError(t, err)
	_, err = d.ImportFabric(&h, 5000)
	require.ErrorIs(t, err, libcuda.ErrInvalidValue, "its owner has let it go")
	require.ErrorContains(t, err, "cuMemImportFromShareableHandle: CUDA_ERROR_INVALID_VALUE")
	require.NotErrorIs(t, err, ErrTooSmall)
	require.Equal(t, []byte{8, 7}, cudatest.Slice[byte](other.Address(), 5000)[4998:])
	require.NoError(t, again.Close())
	require.NoError(t, other.Close())
	require.NoError(t, other.Close())
}

// TestImportFabricFails: what is refused is named, and nothing is left.
func TestImportFabricFails(t *testing.T) {
	emu := emulate(t)
	t.Setenv("EMULATOR_FABRIC", "1")
	d := openDevice(t, emu)
	m, h, other := byFabric(t, d, 1)
	require.NoError(t, other.Close())
	_, err := d.ImportFabric(&h, 1<<30)
	require.ErrorIs(t, err, ErrTooSmall)
	for _, call := range []string{
		"cuMemGetAllocationGranularity", "cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
	} {
		emu.FailAfter(call, 0, libcuda.ErrOutOfMemory)
		_, err := d.ImportFabric(&h, 1)
		require.ErrorIs(t, err, libcuda.ErrOutOfMemory)
		require.ErrorContains(t, err, call)
	}
	_, err = d.ImportFabric(&libcuda.FabricHandle{}, 1)
	require.ErrorIs(t, err, libcuda.ErrInvalidValue)
	for name, c := range map[string]struct {
		value string
		code  libcuda.Result
	}{
		"EMULATOR_IMEX":   {"1", libcuda.ErrNotPermitted}, // another user's channel
		"EMULATOR_FABRIC": {"0", libcuda.ErrNotSupported},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, c.value)
			_, err := d.ImportFabric(&h, 1)
			require.ErrorIs(t, err, c.code)
			require.ErrorContains(t, err, "cuMemImportFromShareableHandle")
		})
	}
	require.NoError(t, m.Close())
}

// TestMemoryIsExportedByWhatItWasMadeFor: the driver refuses the rest.
func TestMemoryIsExportedByWhatItWasMadeFor(t *testing.T) {
	t.Setenv("EMULATOR_FABRIC", "1")
	d := openDevice(t, emulate(t))
	m, err := d.Alloc(1)
	require.NoError(t, err)
	require.ErrorIs(t, d.Do(func() error { _, err := d.lib.ExportFabric(m.allocated); return err }), libcuda.ErrInvalidValue)
	fd, err := m.Export()
	require.NoError(t, err)
	require.NoError(t, sys.Own(fd).Close())
	require.NoError(t, m.Close())
}
