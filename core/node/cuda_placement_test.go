package node

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/group/multihost"
)

// withDevice makes one rank of two on a device of the emulator, not connected.
func withDevice(t *testing.T, rank, ordinal int) *Buffer {
	b := newOnCUDA(t, rank, 2, func(c *Config) { c.CUDA.Ordinal = ordinal })
	require.NotEmpty(t, b.open.Shm.Params)
	return b
}

// placementsOf returns the placements by which both ranks dispatch.
func placementsOf(pair [2]*Buffer) (o [2]cuda.Placement) {
	for r, b := range pair {
		o[r] = onDevice(b).cfg.Placement
	}
	return o
}

func installPair(t *testing.T, pair [2]*Buffer) {
	ended := make(chan error, 2)
	for _, b := range pair {
		go func() { ended <- b.Install() }()
	}
	require.NoError(t, errors.Join(<-ended, <-ended))
}

// TestPlacementOfDevicesWithoutAtomics: their ranks still meet, say why they place rows
// by counts, and keep this after an update.
func TestPlacementOfDevicesWithoutAtomics(t *testing.T) {
	cudatest.Emulate(t)
	t.Setenv("EMULATOR_DEVICES", "2")
	t.Setenv("EMULATOR_NO_ATOMICS", "1")
	pair := [2]*Buffer{withDevice(t, 0, 0), withDevice(t, 1, 1)}
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	for again := range 2 {
		require.Equal(t, [2]cuda.Placement{cuda.PlacementByCounts, cuda.PlacementByCounts}, placementsOf(pair))
		paths, err := pair[0].Paths()
		require.NoError(t, err)
		require.Equal(t, "its own memory", paths[0].Why)
		require.Equal(t, "memory mapped by descriptor; rows get their places by counts, as with deterministic: "+
			"the devices of ranks 0 and 1 have no native atomics with each other that their processes know of", paths[1].Why)
		if again == 0 {
			require.NoError(t, errors.Join(pair[0].Update(), pair[1].Update()))
			require.Equal(t, [2]error{}, connectPair(pair, soon))
			installPair(t, pair)
		}
	}
	closePair(t, pair, 0, 1)
}

// TestPlacementOfDevicesWithAtomics: such devices use the fast placement. A rank with a
// device that cannot use it is refused: all ranks that meet it say so at once.
func TestPlacementOfDevicesWithAtomics(t *testing.T) {
	cudatest.Emulate(t)
	t.Setenv("EMULATOR_DEVICES", "3")
	t.Setenv("EMULATOR_NO_ATOMICS", "0-2")
	pair := [2]*Buffer{withDevice(t, 0, 0), withDevice(t, 1, 1)}
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	require.Equal(t, [2]cuda.Placement{cuda.PlacementFirstCome, cuda.PlacementFirstCome}, placementsOf(pair))
	paths, err := pair[1].Paths()
	require.NoError(t, err)
	require.Equal(t, "memory mapped by descriptor", paths[0].Why)
	require.NoError(t, pair[1].Close())
	pair[1] = withDevice(t, 1, 2)
	require.NoError(t, pair[0].Update())
	for _, err := range connectPair(pair, time.Hour) {
		require.ErrorIs(t, err, ep.ErrInvalid)
		require.ErrorContains(t, err, "ranks 0 and 1 have no native atomics")
	}
	require.NoError(t, pair[1].Close())
	pair[1] = withDevice(t, 1, 1)
	require.NoError(t, pair[0].Update())
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	installPair(t, pair)
	require.Equal(t, [2]cuda.Placement{cuda.PlacementFirstCome, cuda.PlacementFirstCome}, placementsOf(pair))
	closePair(t, pair, 0, 1)
}

// TestLinksAreAsked: if a query of the driver fails, the creation fails with its name,
// and the device is released.
func TestLinksAreAsked(t *testing.T) {
	emu := cudatest.Emulate(t)
	cfg := configOnCUDA(t, 0, 1)
	g := newCUDA(&cfg)
	emu.FailAfter("cuDeviceGetCount", 1, outOfMemory) // the first call is that of the opening
	require.ErrorContains(t, g.open(new(multihost.Config)), "cuDeviceGetCount")
	require.Nil(t, g.dev)
}

// TestPathsByFabric: paths say how memory without descriptors is reached. A rank's path
// to itself says why there is no fabric handle, if the driver refuses one that it
// promised.
func TestPathsByFabric(t *testing.T) {
	cudatest.Emulate(t)
	t.Setenv("EMULATOR_DEVICES", "2")
	t.Setenv("EMULATOR_FABRIC", "1")
	t.Setenv("EMULATOR_NO_FD", "1")
	require.Equal(t, [2]string{"its own memory", "memory mapped by fabric handle"}, wordsOfPair(t))
	require.NoError(t, os.Unsetenv("EMULATOR_NO_FD"))
	require.Equal(t, [2]string{"its own memory", "memory mapped by descriptor"}, wordsOfPair(t))
	t.Setenv("EMULATOR_FABRIC", "refused")
	require.Equal(t, [2]string{
		"its own memory; no fabric handle: cuMemCreate: CUDA_ERROR_NOT_PERMITTED (800): operation not permitted",
		"memory mapped by descriptor",
	}, wordsOfPair(t))
}

// wordsOfPair returns the words of rank 0 for itself and for rank 1, which is on another
// device.
func wordsOfPair(t *testing.T) (words [2]string) {
	pair := [2]*Buffer{withDevice(t, 0, 0), withDevice(t, 1, 1)}
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	paths, err := pair[0].Paths()
	require.NoError(t, err)
	for r := range words {
		words[r] = paths[r].Why
	}
	closePair(t, pair, 0, 1)
	return words
}
