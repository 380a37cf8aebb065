package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libcuda"
)

func codeName(major, minor int) (string, error) {
	return fmt.Sprintf("code for %d.%d", major, minor), nil
}

func TestSurveyOfTheEmulator(t *testing.T) {
	emu := emulate(t)
	s, err := NewSurvey(emu.Name(), codeName)
	require.NoError(t, err)
	require.Equal(t, Survey{
		Driver: emu.Name(), Version: "13.0",
		Devices: []Surveyed{{
			Name: "emulated device", UUID: "5e5e5e5e-5e5e-5e5e-5e5e-5e5e5e5e5e5e", PCI: "0000:00:00.0",
			Capability: "9.0", Code: "code for 9.0", MemoryBytes: 8 << 30, NumSMs: 2, Shares: "descriptor",
			NoFabric: "no fabric handle: the device has none", Peers: []int{}, Atomics: []int{},
		}},
	}, s)
}

// TestSurveyOfADeviceWithoutCode: it is shown with the reason, and the others with
// theirs. No context is made.
func TestSurveyOfADeviceWithoutCode(t *testing.T) {
	emu := emulate(t)
	t.Setenv("EMULATOR_CAPABILITY", "75")
	retained := emu.Calls("cuDevicePrimaryCtxRetain")
	s, err := NewSurvey(emu.Name(), func(major, minor int) (string, error) {
		return "half a name", fmt.Errorf("%d.%d: %w", major, minor, errors.ErrUnsupported)
	})
	require.NoError(t, err)
	require.Equal(t, "7.5", s.Devices[0].Capability)
	require.Empty(t, s.Devices[0].Code)
	require.Equal(t, "7.5: unsupported operation", s.Devices[0].NoCode)
	require.Equal(t, retained, emu.Calls("cuDevicePrimaryCtxRetain"))
}

// TestSurveyOfPeers: memory that is mapped may have no native atomics.
func TestSurveyOfPeers(t *testing.T) {
	emu := emulate(t)
	t.Setenv("EMULATOR_DEVICES", "3")
	t.Setenv("EMULATOR_NO_ATOMICS", "2-0")
	s, err := NewSurvey(emu.Name(), codeName)
	require.NoError(t, err)
	require.Equal(t, []int{1, 2}, s.Devices[0].Peers)
	require.Equal(t, []int{1}, s.Devices[0].Atomics)
	require.Equal(t, []int{0, 2}, s.Devices[1].Atomics)
}

// TestSurveyOfWays: how memory is shared, and what speaks against fabric handles.
func TestSurveyOfWays(t *testing.T) {
	emu := emulate(t)
	none, one := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink("nowhere", filepath.Join(none, "channel0"))) // also root cannot open it
	require.NoError(t, os.WriteFile(filepath.Join(one, "channel0"), nil, 0o600))
	defer func(was string) { channels = was }(channels)
	noChannel := "no fabric handle: no IMEX channel in " + none + " that this process may open"
	for _, c := range []struct {
		fabric, driver, noFD, channels, shares, noFabric string
	}{
		{fabric: "1", channels: one, shares: "descriptor"},
		{fabric: "1", channels: one, noFD: "1", shares: "fabric handle"},
		{fabric: "refused", channels: one, shares: "descriptor"}, // an allocation would tell
		{fabric: "1", channels: none, shares: "descriptor", noFabric: noChannel},
		{fabric: "1", channels: none, noFD: "1", shares: "handle", noFabric: noChannel},
		{fabric: "0", channels: one, shares: "descriptor", noFabric: "no fabric handle: the device has none"},
		{
			fabric: "1", driver: "12020", channels: one, shares: "descriptor",
			noFabric: "no fabric handle: the driver is of CUDA 12.2, and they came with 12.3",
		},
	} {
		channels = c.channels
		setenv(t, "EMULATOR_FABRIC", c.fabric)
		setenv(t, "EMULATOR_DRIVER", c.driver)
		setenv(t, "EMULATOR_NO_FD", c.noFD)
		s, err := NewSurvey(emu.Name(), codeName)
		require.NoError(t, err)
		require.Equal(t, c.shares, s.Devices[0].Shares, c)
		require.Equal(t, c.noFabric, s.Devices[0].NoFabric, c)
	}
}

func TestSurveySaysWhatFailed(t *testing.T) {
	_, err := NewSurvey("there-is-no-such-driver.so", codeName)
	require.ErrorIs(t, err, dl.ErrNoLibrary)
	require.ErrorContains(t, err, "there-is-no-such-driver.so")
	emu := emulate(t)
	for _, call := range []string{"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute"} {
		emu.FailAfter(call, 0, libcuda.ErrNoDevice)
		_, err := NewSurvey(emu.Name(), codeName)
		require.ErrorIs(t, err, libcuda.ErrNoDevice)
		require.ErrorContains(t, err, call)
	}
}
