package cuda

import (
	"testing"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
)

// watched is the emulator that tests of this package run on: it can find races.
var watched = cudatest.Build{Watched: true}

// emulate returns it, for tests that no device does.
func emulate(t testing.TB) *cudatest.Driver {
	t.Helper()
	return watched.Emulate(t)
}

// driver is the emulator, or what MOEWIRE_CUDA_TEST names.
func driver(t testing.TB) *cudatest.Driver {
	t.Helper()
	return watched.Open(t)
}

func onDevice() bool { return cudatest.OnDevice() }
