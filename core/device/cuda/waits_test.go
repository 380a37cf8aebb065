package cuda

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/transport/fake"
)

// stepCounts is MW_STEP_COUNTS.
const stepCounts = 4

// waited gives a rank's calls memory for the times that they wait.
func (o *op) waited(m *member, r int) (dispatch, combine []int64) {
	o.calls[r].WaitNs, dispatch = tensor[int64](m, len(o.calls))
	o.combineNs, combine = tensor[int64](m, len(o.calls))
	for i := range dispatch {
		dispatch[i], combine[i] = 7, 70
	}
	return dispatch, combine
}

// sameAsTotals: what was added to the times is what all operations waited.
func (m *member) sameAsTotals(t testing.TB, dispatch, combine []int64) {
	for r := range dispatch {
		require.EqualValues(t, m.Counters().WaitFor(false, r)+7, dispatch[r], "dispatches, rank %d", r)
		require.EqualValues(t, m.Counters().WaitFor(true, r)+70, combine[r], "combines, rank %d", r)
	}
}

// TestWaitNs: a rank that is late to dispatch and combine is waited for, and the
// caller's memory has how long, also of a graph that is replayed.
func TestWaitNs(t *testing.T) {
	g, o, _ := small(t, 2)
	m := g.ranks[0]
	dispatched, combined := o.waited(m, 0)
	graph := g.record(o, 0, 1, 0)
	for range 3 {
		g.must(func() error { return g.d.lib.GraphLaunch(graph.exec, m.stream) })
		eventually(t, "rank 0 waits", func() bool { return m.Waits() == rankset.Of(1) })
		g.identity(o, 1, 0)
		g.sync()
	}
	require.Greater(t, dispatched[1], int64(7))
	m.sameAsTotals(t, dispatched, combined)
	g.must(func() error { return g.d.lib.GraphExecDestroy(graph.exec) })
}

// TestWaitsInOrder: in deterministic order a dispatch waits three times, and a rank that
// is late with the last of them is not blamed for the first.
func TestWaitsInOrder(t *testing.T) {
	g, o, _ := smallIn(t, 3, protocol.FlagOrdered)
	m := g.ranks[0]
	dispatched, combined := o.waited(m, 0)
	send := func(r int) { require.NoError(t, g.ranks[r].Send(&o.calls[r])) }
	send(2)
	inbox := &dl.At[arena](uintptr(m.Shared())).From[2]
	eventually(t, "rank 2 has opened", func() bool { return inbox.Open[0] != 0 })
	send(0)
	eventually(t, "rank 0 waits for rank 1", func() bool { return m.Waits() == rankset.Of(1) })
	g.late(o, 1, 2)
	m.sameAsTotals(t, dispatched, combined)
}

// TestHostsWaitsInOrder: nor is a local rank blamed for the counts of a remote one,
// which places are waited for.
func TestHostsWaitsInOrder(t *testing.T) {
	g, o, _ := smallIn(t, 3, protocol.FlagOrdered)
	g.putOnHosts(fake.New(fake.Config{Seed: 1}), mailing{hostOf: []int{0, 0, 1}, ringBytes: 1 << 14, messageBytes: 1 << 13, length: 16})
	m := g.ranks[0]
	dispatched, combined := o.waited(m, 0)
	for r := range 2 {
		require.NoError(t, g.ranks[r].Send(&o.calls[r]))
	}
	ready := func() uint32 { return peek[state](g, m.private.Address()).Slot[0].Finished[stepCounts] }
	eventually(t, "rank 0 has the counts of all but rank 2", func() bool {
		return ready() == 2 && m.Waits() == rankset.Of(2)
	})
	g.late(o, 2, 1)
	m.sameAsTotals(t, dispatched, combined)
}

// late has one rank send last, and checks that rank 0 blames it, not the prompt one.
func (g *group) late(o *op, who, prompt int) {
	const late = 200 * time.Millisecond
	time.Sleep(late) // not to wait for something: it is how late the rank is
	require.NoError(g.t, g.ranks[who].Send(&o.calls[who]))
	for r, m := range g.ranks {
		require.NoError(g.t, m.Receive(&o.calls[r]))
	}
	g.sync()
	counters := g.ranks[0].Counters()
	record, ok := counters.Record(0)
	require.True(g.t, ok)
	require.GreaterOrEqual(g.t, counters.WaitFor(false, who), uint64(late))
	require.GreaterOrEqual(g.t, record.Wait, counters.WaitFor(false, prompt)+uint64(late))
}
