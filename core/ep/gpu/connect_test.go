package gpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/libcuda"
)

// TestConnectAgain: a Connect that could not tell the device where another rank's
// memory is does so when it is called again.
func TestConnectAgain(t *testing.T) {
	group := newUnconnected(t, 2)
	emu := group[0].emu
	emu.FailAfter("cuMemcpyHtoDAsync_v2", 0, libcuda.ErrOutOfMemory)
	require.ErrorIs(t, group[0].Connect(connectIn), libcuda.ErrOutOfMemory)
	require.Empty(t, group[0].Path(1))
	before := emu.Calls("cuMemcpyHtoDAsync_v2")
	require.NoError(t, group[0].Connect(connectIn))
	require.Equal(t, before+1, emu.Calls("cuMemcpyHtoDAsync_v2"))
	require.NoError(t, group[1].Connect(connectIn))
	roundOf(ops(t, group, 20))
}
