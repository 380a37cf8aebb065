package cuda

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/testenv"
)

// hasRoom reports whether the proxy has leased room for a rank's next message to
// another one.
func (g *group) hasRoom(m *member, rank int) bool {
	known := peek[remoteRank](g, m.remote.common.Ranks+uint64(rank)*uint64(unsafe.Sizeof(remoteRank{})))
	leased := atomic.LoadUint64(dl.At[uint64](uintptr(m.remote.common.Mail) + uintptr(rank)*64))
	return leased<<16>>16 == known.Sent+1
}

// TestHostsRoomComesBehindALoss: a rank that was taken out makes room for outputs that
// were left for it when their slot has another operation. That is no error of the ranks
// that go on.
func TestHostsRoomComesBehindALoss(t *testing.T) {
	emu := driver(t)
	rng := rngOf(testenv.Seed(t), 69, 0)
	emu.Schedule(rng.Uint64(), 16, 15)
	g, o, slabs := narrow(t, rng, []int{0, 1, 2}, 0)
	for r, m := range g.ranks {
		require.NoError(t, m.Send(&o.calls[r]))
		require.NoError(t, m.Receive(&o.calls[r]))
	}
	g.allEnded("a dispatch")
	for r, m := range g.ranks {
		o.writeOutputs(m, r, m.Slab(0)+uint64(slabs.YOff))
		require.NoError(t, m.Publish(o.combine(r, 0)))
		g.ended(m, "the first phase of a combine") // no rank takes what comes of rank 0
	}
	lost := peek[state](g, g.ranks[0].private.Address()).Rest[0][2].Turn
	require.NotZero(t, lost, "outputs are left for rank 2")
	g.lose(2, 0, 1)
	for r, m := range g.ranks[:2] {
		require.NoError(t, m.Reduce(o.combine(r, 0)))
	}
	for _, m := range g.ranks[:2] {
		g.ended(m, "a combine without a lost rank")
	}
	require.NoError(t, g.ranks[2].Reduce(o.combine(2, 0))) // it does not know yet
	eventually(t, "rank 2 makes room", func() bool { return g.hasRoom(g.ranks[0], 2) })
	for r, m := range g.ranks[:2] {
		o.calls[r].Ticket++
		require.NoError(t, m.Send(&o.calls[r]))
		require.NoError(t, m.Receive(&o.calls[r]))
	}
	for r, m := range g.ranks[:2] {
		g.ended(m, "the next dispatch")
		require.Zero(t, m.report().Error, "rank %d: %v", r, m.Failure())
	}
	o.forget(2)
	g.ranks[2].SetMembers(1 << protocol.EpochShift) // it ends, too
	g.ends(t, o, slabs, 0, 1)
}
