package main

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/gpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/wire"
)

var localKeys = wire.GenerateKeyring()

// onDevice is a rank of two on a device of the emulator's, not connected.
func onDevice(t *testing.T, rank, ordinal int) *buffer {
	n, err := gpu.SizeHint(layout.Shape{MaxTokens: 4, Hidden: 128, NumExperts: 2, NumRanks: 2}, 2)
	require.NoError(t, err)
	b := &buffer{onGPU: &onGPU{
		cfg: gpu.Config{NumBytes: n}, ordinal: ordinal, driver: cudatest.Build{}.Library(t), given: []byte("kernels\x00"),
	}}
	b.open = listenerConfig(rank, 2, nil)
	b.open.Keys = localKeys
	require.NoError(t, b.openGPU())
	require.NotEmpty(t, b.open.Shm.Params)
	require.NoError(t, b.listen())
	b.id = buffers.add(b)
	return b
}

// placementsOf are those that both dispatch by.
func placementsOf(pair [2]*buffer) (o [2]gpu.Placement) {
	for r, b := range pair {
		o[r] = b.onGPU.cfg.Placement
	}
	return o
}

func installPair(t *testing.T, pair [2]*buffer) {
	ended := make(chan error, 2)
	for _, b := range pair {
		go func() { ended <- b.install() }()
	}
	require.NoError(t, errors.Join(<-ended, <-ended))
}

// TestPlacementOfDevicesWithoutAtomics: their ranks meet all the same, say why their rows
// are by counts, and go on so after an update.
func TestPlacementOfDevicesWithoutAtomics(t *testing.T) {
	cudatest.Emulate(t)
	t.Setenv("EMULATOR_DEVICES", "2")
	t.Setenv("EMULATOR_NO_ATOMICS", "1")
	pair := [2]*buffer{onDevice(t, 0, 0), onDevice(t, 1, 1)}
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	for again := range 2 {
		require.Equal(t, [2]gpu.Placement{gpu.PlacementByCounts, gpu.PlacementByCounts}, placementsOf(pair))
		paths, err := pair[0].paths()
		require.NoError(t, err)
		require.Equal(t, "its own memory", paths[0].Why)
		require.Equal(t, "memory mapped by descriptor; rows get their places by counts, as with deterministic: "+
			"the devices of ranks 0 and 1 have no native atomics with each other that their processes know of", paths[1].Why)
		if again == 0 {
			require.NoError(t, errors.Join(pair[0].update(), pair[1].update()))
			require.Equal(t, [2]error{}, connectPair(pair, soon))
			installPair(t, pair)
		}
	}
	closePair(t, pair, 0, 1)
}

// TestPlacementOfDevicesWithAtomics: it is the quick one, and a rank whose device cannot
// have it is not let in: all that meet it say so at once.
func TestPlacementOfDevicesWithAtomics(t *testing.T) {
	cudatest.Emulate(t)
	t.Setenv("EMULATOR_DEVICES", "3")
	t.Setenv("EMULATOR_NO_ATOMICS", "0-2")
	pair := [2]*buffer{onDevice(t, 0, 0), onDevice(t, 1, 1)}
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	require.Equal(t, [2]gpu.Placement{gpu.PlacementFirstCome, gpu.PlacementFirstCome}, placementsOf(pair))
	paths, err := pair[1].paths()
	require.NoError(t, err)
	require.Equal(t, "memory mapped by descriptor", paths[0].Why)
	require.Zero(t, mwiBufferClose(pair[1].id))
	pair[1] = onDevice(t, 1, 2)
	require.NoError(t, pair[0].update())
	for _, err := range connectPair(pair, time.Hour) {
		require.ErrorIs(t, err, ep.ErrInvalid)
		require.ErrorContains(t, err, "ranks 0 and 1 have no native atomics")
	}
	require.Zero(t, mwiBufferClose(pair[1].id))
	pair[1] = onDevice(t, 1, 1)
	require.NoError(t, pair[0].update())
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	installPair(t, pair)
	require.Equal(t, [2]gpu.Placement{gpu.PlacementFirstCome, gpu.PlacementFirstCome}, placementsOf(pair))
	closePair(t, pair, 0, 1)
}

// TestLinksAreAsked: what the driver does not say ends the creation, by name, and
// releases the device.
func TestLinksAreAsked(t *testing.T) {
	emu := cudatest.Emulate(t)
	b := &buffer{onGPU: &onGPU{cfg: gpu.Config{NumBytes: 1 << 20}, driver: cudatest.Build{}.Library(t), given: []byte("kernels\x00")}}
	b.open = listenerConfig(0, 1, nil)
	emu.FailAfter("cuDeviceGetCount", 1, outOfMemory) // the first one is the opening's
	require.ErrorContains(t, b.openGPU(), "cuDeviceGetCount")
	require.Nil(t, b.onGPU.dev)
}

// TestPathsByFabric: how memory is reached that has no descriptors, and on the own
// path why it has no fabric handle, where the driver refuses what it said it could.
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

// wordsOfPair are those of rank 0 for itself and for rank 1, on another device.
func wordsOfPair(t *testing.T) (words [2]string) {
	pair := [2]*buffer{onDevice(t, 0, 0), onDevice(t, 1, 1)}
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	paths, err := pair[0].paths()
	require.NoError(t, err)
	for r := range words {
		words[r] = paths[r].Why
	}
	closePair(t, pair, 0, 1)
	return words
}
