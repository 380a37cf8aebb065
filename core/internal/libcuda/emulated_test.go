package libcuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// TestEveryFunctionOfTheEmulatorCanFail: it does so before it looks at its arguments.
func TestEveryFunctionOfTheEmulatorCanFail(t *testing.T) {
	emu := cudatest.Emulate(t)
	for _, symbol := range libcuda.Symbols() {
		emu.FailAfter(symbol, 0, libcuda.ErrNotPermitted)
		require.EqualValues(t, libcuda.ErrNotPermitted, emu.Raw(t, symbol).Call(0, 0, 0, 0, 0, 0), symbol)
		require.False(t, emu.Relent(), symbol)
	}
}

// TestErrorsWithoutWords: an error that the driver has no words for has its number.
func TestErrorsWithoutWords(t *testing.T) {
	emu := cudatest.Emulate(t)
	for _, symbol := range []string{"cuGetErrorName", "cuGetErrorString"} {
		emu.FailAfter(symbol, 0, libcuda.ErrOutOfMemory)
		emu.FailAfter("cuInit", 0, libcuda.ErrNotPermitted)
		err := emu.Init()
		require.ErrorIs(t, err, libcuda.ErrNotPermitted)
		require.ErrorContains(t, err, "cuInit: CUDA")
		require.ErrorContains(t, err, "800")
	}
}
