package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
)

// TestOrderedWithoutALostRank: a rank that is taken out before it has said how
// many rows it has gets no place. It may still say so, and then stores no rows.
func TestOrderedWithoutALostRank(t *testing.T) {
	g, o, slabs := smallIn(t, 3, protocol.FlagOrdered)
	for r := range 2 {
		require.NoError(t, g.ranks[r].Send(&o.calls[r]))
		require.NoError(t, g.ranks[r].Receive(&o.calls[r]))
	}
	eventually(t, "both have opened their slots to it", func() bool { return g.ranks[0].Waits().And(g.ranks[1].Waits()) == rankset.Of(2) })
	g.lose(2, 0, 1)
	for r := range 2 {
		g.must(func() error { return g.d.lib.StreamSynchronize(g.ranks[r].stream) })
		require.Zero(t, g.ranks[r].report().Error)
		require.Equal(t, []int32{1, 1, 0}, o.active[r])
	}
	require.NoError(t, g.ranks[2].Send(&o.calls[2])) // it does not know yet
	eventually(t, "rank 2 waits for counts", func() bool { return g.ranks[2].Waits() == rankset.Of(0, 1) })
	g.ranks[2].SetMembers(1<<protocol.EpochShift | 3)
	g.sync()
	require.EqualValues(t, protocol.ErrorFenced, g.ranks[2].report().Error)
	for r := range 2 {
		at := g.ranks[r].Slab(0) + uint64(slabs.YOff)
		for l := range int(slabs.LocalExperts) {
			require.EqualValues(t, o.counts[r][l], o.ranges[r][3*l]&0xffffffff+o.ranges[r][3*l+1]&0xffffffff)
			require.Zero(t, o.ranges[r][3*l+2])
		}
		o.writeOutputs(g.ranks[r], r, at)
		require.NoError(t, g.ranks[r].Publish(o.combine(r, 0)))
		require.NoError(t, g.ranks[r].Reduce(o.combine(r, 0)))
	}
	o.forget(2)
	g.sync()
	for r := range 2 {
		o.checkSums(t, r)
	}
}

// TestOrderedLeftOut: a rank that an owner leaves out has no place there, though it
// leaves out no rank itself.
func TestOrderedLeftOut(t *testing.T) {
	g, o, slabs := smallIn(t, 2, protocol.FlagOrdered)
	o.active[1][0] = 0
	for r, m := range g.ranks {
		require.NoError(t, m.Send(&o.calls[r]))
		require.NoError(t, m.Receive(&o.calls[r]))
	}
	g.sync()
	for r, m := range g.ranks {
		for l := range int(slabs.LocalExperts) {
			require.Zero(t, o.ranges[r][2*l+1-r])
			require.EqualValues(t, len(o.sentTo(r, 2*r+l)), o.counts[r][l])
		}
		o.writeOutputs(m, r, m.Slab(0)+uint64(slabs.YOff))
		require.NoError(t, m.Publish(o.combine(r, 0)))
		require.NoError(t, m.Reduce(o.combine(r, 0)))
	}
	g.sync()
	for r, m := range g.ranks {
		require.Zero(t, m.report().Error)
		o.lost = map[int]bool{1 - r: true}
		o.checkSums(t, r)
	}
}

// TestOrderedMismatch: both sides say what differs, before any rank has a place.
func TestOrderedMismatch(t *testing.T) {
	g, o, _ := smallIn(t, 2, protocol.FlagOrdered)
	o.calls[1].Flags |= protocol.FlagFP32Outputs
	o.calls[1].Shape.OutputType = protocol.FP32
	for r, m := range g.ranks {
		m.cfg.SlabBytes += 1 << 30
		require.NoError(t, m.Send(&o.calls[r]))
	}
	g.sync()
	forms := [2]uint64{0, protocol.FlagFP32Outputs}
	for r, m := range g.ranks {
		require.EqualValues(t, protocol.ErrorMismatch, m.report().Error)
		require.EqualValues(t, [4]uint64{uint64(1 - r), 4, forms[r], forms[1-r]}, m.report().Detail)
	}
}

// TestOrderedGraphs replays graphs of two ranks that cut them differently.
func TestOrderedGraphs(t *testing.T) {
	g, o, _ := smallIn(t, 2, protocol.FlagOrdered)
	replayRounds(t, g, o, g.rng, []int{3, 2}, 3, 12)
}

// TestOtherWeights: a pre-reduced combine has the weights and all selections of
// its dispatch.
func TestOtherWeights(t *testing.T) {
	for name, test := range map[string]struct {
		change func(o *op)
		kind   FailureKind
	}{
		"a weight":           {func(o *op) { o.w[0][0] = 7 }, FailedWeights},
		"one that is not -1": {func(o *op) { o.ids[0][1] = -1 }, FailedRouting},
	} {
		t.Run(name, func(t *testing.T) {
			g, o, _ := smallIn(t, 1, protocol.FlagPreReduce)
			clear(o.ids[0])
			require.NoError(t, g.ranks[0].Send(&o.calls[0]))
			require.NoError(t, g.ranks[0].Receive(&o.calls[0]))
			g.sync()
			test.change(o)
			require.NoError(t, g.ranks[0].Publish(o.combine(0, 0)))
			require.NoError(t, g.ranks[0].Reduce(o.combine(0, 0)))
			g.sync()
			require.Equal(t, test.kind, g.ranks[0].Failure().Kind)
			require.ErrorContains(t, g.ranks[0].Failure(), "of a combine is ")
		})
	}
}

// TestOtherRouting: a combine with other ids than the dispatch ends the buffer with an
// error that names them; one that leaves some out is allowed.
func TestOtherRouting(t *testing.T) {
	g, o, slabs := small(t, 1)
	clear(o.ids[0])
	require.NoError(t, g.ranks[0].Send(&o.calls[0]))
	require.NoError(t, g.ranks[0].Receive(&o.calls[0]))
	g.sync()
	o.writeOutputs(g.ranks[0], 0, g.ranks[0].Slab(0)+uint64(slabs.YOff))
	for i := range o.ids[0] {
		o.ids[0][i] = 1
	}
	require.NoError(t, g.ranks[0].Publish(o.combine(0, 0)))
	require.NoError(t, g.ranks[0].Reduce(o.combine(0, 0)))
	g.sync()
	require.EqualValues(t, protocol.ErrorRouting, g.ranks[0].report().Error)
	require.ErrorContains(t, g.ranks[0].Failure(), "of a combine is ")
}
