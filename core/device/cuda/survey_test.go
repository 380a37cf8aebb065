package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libcuda"
)

func TestSurveyOfTheEmulator(t *testing.T) {
	emu := emulate(t)
	s, err := NewSurvey(emu.Name())
	require.NoError(t, err)
	require.Equal(t, Survey{
		Driver: emu.Name(), Version: "13.0",
		Devices: []Surveyed{{
			Name: "emulated device", UUID: "5e5e5e5e-5e5e-5e5e-5e5e-5e5e5e5e5e5e", PCI: "0000:00:00.0",
			Capability: "9.0", MemoryBytes: 8 << 30, NumSMs: 2, Shares: "descriptor", Peers: []int{}, Atomics: []int{},
		}},
	}, s)
}

// TestSurveyOfPeers: memory that is mapped may have no native atomics.
func TestSurveyOfPeers(t *testing.T) {
	emu := emulate(t)
	t.Setenv("EMULATOR_DEVICES", "3")
	t.Setenv("EMULATOR_NO_ATOMICS", "2-0")
	s, err := NewSurvey(emu.Name())
	require.NoError(t, err)
	require.Equal(t, []int{1, 2}, s.Devices[0].Peers)
	require.Equal(t, []int{1}, s.Devices[0].Atomics)
	require.Equal(t, []int{0, 2}, s.Devices[1].Atomics)
}

func TestSurveySaysWhatFailed(t *testing.T) {
	_, err := NewSurvey("there-is-no-such-driver.so")
	require.ErrorIs(t, err, dl.ErrNoLibrary)
	require.ErrorContains(t, err, "there-is-no-such-driver.so")
	emu := emulate(t)
	for _, call := range []string{"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute"} {
		emu.FailAfter(call, 0, libcuda.ErrNoDevice)
		_, err := NewSurvey(emu.Name())
		require.ErrorIs(t, err, libcuda.ErrNoDevice)
		require.ErrorContains(t, err, call)
	}
}
