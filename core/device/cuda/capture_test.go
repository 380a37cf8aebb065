package cuda

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/libcuda"
)

// TestOwnWorkBesideACapture: memory is made, ranks are told, operations forgotten
// and memory freed while a stream of the process is being captured in the mode
// that forbids it to all other threads; the capture is what it was.
func TestOwnWorkBesideACapture(t *testing.T) {
	g, o, _ := small(t, 1)
	runtime.LockOSThread() // the thread that has begun a capture ends it
	defer runtime.UnlockOSThread()
	m := g.ranks[0]
	g.must(func() error { return g.d.lib.BeginCapture(m.stream, libcuda.CaptureModeGlobal) })
	g.identity(o, 0, 0)
	e, err := NewEngine(g.d, Config{NumRanks: 2, NumSlots: 2, SlabBytes: 4 << 20, MaxSelections: 8, MaxExperts: 4})
	require.NoError(t, err)
	require.NoError(t, e.SetPeer(1, m.Shared()))
	require.NoError(t, e.Restart(7))
	require.NoError(t, e.Close())
	var exec libcuda.GraphExec
	g.must(func() error {
		captured, err := g.d.lib.EndCapture(m.stream)
		require.NoError(t, err)
		if exec, err = g.d.lib.GraphInstantiate(captured); err != nil {
			return err
		}
		return g.d.lib.GraphDestroy(captured)
	})
	g.must(func() error { return g.d.lib.GraphLaunch(exec, m.stream) })
	g.sync()
	o.checkIdentity(t, 0)
	g.must(func() error { return g.d.lib.GraphExecDestroy(exec) })
}
