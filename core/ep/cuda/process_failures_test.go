package cuda_test

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/group/cudaipc"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
)

// TestProcessFailures: no failure on the way to another process's memory leaves
// anything.
func TestProcessFailures(t *testing.T) {
	cudatest.Emulate(t)
	for _, path := range []string{"fd", "fabric", "ipc"} {
		g := startProcesses(t, rankSpec{Ranks: 2, Play: "failures", Path: path, Fabric: fabricFor(path), Seed: testenv.Seed(t)})
		g.finish(0, 1)
	}
}

// playFailures: every call by which another process's memory is mapped fails,
// and leaves nothing.
func playFailures(c *child) {
	calls := []string{
		"cuMemGetAllocationGranularity", "cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
	}
	if c.Path == "ipc" {
		calls = []string{"cuIpcOpenMemHandle_v2"}
	}
	before := c.emu.Said()
	for _, call := range calls {
		c.emu.FailAfter(call, 0, libcuda.ErrOutOfMemory)
		_, err := c.mapOther(1 << 20)
		require.ErrorIs(c.t, err, libcuda.ErrOutOfMemory)
		require.ErrorContains(c.t, err, fmt.Sprintf("memory of rank %d: %s", 1-c.self, call))
		require.Equal(c.t, before, c.emu.Said())
	}
	v, err := c.mapOther(1 << 20)
	require.NoError(c.t, err)
	require.NoError(c.t, errors.Join(v.Close(), v.Close()))
	require.Equal(c.t, before, c.emu.Said())
	_, err = c.mapOther(1 << 40)
	require.ErrorIs(c.t, err, transport.ErrMismatch)
	require.ErrorContains(c.t, err, "configuration needs")
	c.boast(1 << 30)
	c.exchange("boasted", nil)
	_, err = c.mapOther(1 << 30)
	require.ErrorIs(c.t, err, transport.ErrMismatch)
	require.ErrorContains(c.t, err, "its memory descriptor says 1073741824 bytes")
	require.Equal(c.t, before, c.emu.Said())
}

// boast has this rank's memory descriptor promise more memory than there is.
func (c *child) boast(numBytes uint64) {
	const at, length = 8, 240 // in the slab; see package cudaipc
	slab, err := c.dom.Slab(c.self, 0)
	require.NoError(c.t, err)
	desc := slab.Bytes(at, length)
	binary.LittleEndian.PutUint64(desc[16:], numBytes)
	sum := sha256.Sum256(desc[:length-8])
	copy(desc[length-8:], sum[:8])
}

func (c *child) mapOther(bytes uint64) (*cudaipc.View, error) {
	return cudaipc.Map(c.dom, c.d, 1-c.self, bytes, cudaipc.Wait{Until: time.Now().Add(testTimeout)})
}
