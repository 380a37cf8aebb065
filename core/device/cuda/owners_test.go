package cuda

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// everyWay runs a test with two ranks that reach each other's memory, and with two
// that send messages. Waits have a deadline, so that one too many is an error.
func everyWay(t *testing.T, run func(t *testing.T, g *group, o *op, slabs *layout.Slab)) {
	soon := func(o *op) {
		for r := range o.calls {
			o.calls[r].TimeoutNs = (200 * time.Millisecond).Nanoseconds()
		}
	}
	t.Run("local", func(t *testing.T) {
		g, o, slabs := small(t, 2)
		soon(o)
		run(t, g, o, slabs)
	})
	t.Run("remote", func(t *testing.T) {
		g, o, slabs, _ := smallHosts(t, 2)
		soon(o)
		run(t, g, o, slabs)
	})
}

// dispatched makes the dispatch of both ranks; the first one's combine leaves out all
// rows of the second one, which has some.
func (o *op) dispatched(t *testing.T, g *group) {
	o.ids[0][0], o.ids[0][1] = 0, 2
	o.keptAt[0], o.kept[0] = tensor[int64](g.ranks[0], len(o.ids[0]))
	for i, e := range o.ids[0] {
		if o.kept[0][i] = e; e >= 2 {
			o.kept[0][i] = -1
		}
	}
	for r, m := range g.ranks {
		require.NoError(t, m.Send(&o.calls[r]))
		require.NoError(t, m.Receive(&o.calls[r]))
	}
	g.sync()
}

// combined is rank r's combine of its rows as they came.
func (o *op) combined(t *testing.T, g *group, r int, slabs *layout.Slab) {
	m := g.ranks[r]
	c := o.combine(r, m.Slab(0)+uint64(slabs.RowsOff))
	require.NoError(t, m.Publish(c))
	require.NoError(t, m.Reduce(c))
}

// TestCombineLeavesAnOwnerOut: a combine that leaves all rows of an owner out does not
// wait for it: the owner combines later, and counts as active all the while. It does wait
// for an owner on another host: the outputs come all the same, and need room.
func TestCombineLeavesAnOwnerOut(t *testing.T) {
	everyWay(t, func(t *testing.T, g *group, o *op, slabs *layout.Slab) {
		o.dispatched(t, g)
		o.combined(t, g, 0, slabs)
		if g.offices == nil {
			g.must(func() error { return g.d.lib.StreamSynchronize(g.ranks[0].stream) })
			o.checkIdentity(t, 0)
		} else {
			time.Sleep(20 * time.Millisecond)
			err := g.d.do(func() error { return g.d.lib.StreamQuery(g.ranks[0].stream) })
			require.ErrorIs(t, err, libcuda.ErrNotReady)
		}
		o.combined(t, g, 1, slabs)
		g.sync()
		for r, m := range g.ranks {
			require.Zero(t, m.report().Error, "%v", m.Failure())
			require.Equal(t, []int32{1, 1}, o.active[r])
			o.checkIdentity(t, r)
		}
		o.keptAt[0], o.kept[0] = 0, o.ids[0]
		g.goesOn(o, 2)
	})
}

// TestCombineAgainWithAnOwner: the second combine of a handle asks for a rank that the
// first one has left out, and gets its second outputs.
func TestCombineAgainWithAnOwner(t *testing.T) {
	everyWay(t, func(t *testing.T, g *group, o *op, slabs *layout.Slab) {
		o.dispatched(t, g)
		o.combined(t, g, 0, slabs)
		o.keptAt[0], o.kept[0] = 0, o.ids[0]
		o.combined(t, g, 1, slabs)
		g.sync()
		for r, m := range g.ranks {
			at, _ := tensor[byte](m, int(slabs.LocalExperts*slabs.RowsPerExpert*slabs.OutputBytes()))
			o.writeOutputs(m, r, at)
			c := o.combine(r, at)
			c.Again = true
			require.NoError(t, m.Publish(c))
			require.NoError(t, m.Reduce(c))
		}
		g.sync()
		for r, m := range g.ranks {
			require.Zero(t, m.report().Error, "%v", m.Failure())
			o.checkSums(t, r)
		}
	})
}

// TestCombineWithoutAReleasedOwner: that a rank has released is no error for a combine
// that leaves its rows out.
func TestCombineWithoutAReleasedOwner(t *testing.T) {
	everyWay(t, func(t *testing.T, g *group, o *op, slabs *layout.Slab) {
		o.dispatched(t, g)
		require.NoError(t, g.ranks[1].SendRest(&o.calls[1].Call))
		require.NoError(t, g.ranks[1].Release(&o.calls[1].Call))
		g.must(func() error { return g.d.lib.StreamSynchronize(g.ranks[1].stream) })
		o.combined(t, g, 0, slabs)
		g.sync()
		require.Zero(t, g.ranks[0].report().Error, "%v", g.ranks[0].Failure())
		o.checkIdentity(t, 0)
	})
}

// TestEverySelectionIsLookedAt: an owner that one selection of many names is waited
// for, wherever that stands.
func TestEverySelectionIsLookedAt(t *testing.T) {
	const tokens, topK = 600, 2 // more selections than a block looks at together
	s := layout.Shape{MaxTokens: tokens, Hidden: 64, NumExperts: 4, NumRanks: 2}
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	for _, at := range []int{0, 255, 256, 1023, 1024, tokens*topK - 1} {
		t.Run(strconv.Itoa(at), func(t *testing.T) {
			g := newGroup(t, 2, 1, slabs.SizeBytes)
			g.fewest, g.pick = tokens, noExpert
			o := g.random(rand.New(rand.NewPCG(1, 2)), s, topK, 0, 0)
			o.ids[0][at] = 3
			for r, m := range g.ranks {
				require.NoError(t, m.Send(&o.calls[r]))
				require.NoError(t, m.Receive(&o.calls[r]))
			}
			o.combined(t, g, 0, &slabs)
			time.Sleep(20 * time.Millisecond) // the first rank's is under way
			o.combined(t, g, 1, &slabs)
			g.sync()
			require.Zero(t, g.ranks[0].report().Error)
			o.checkIdentity(t, 0)
		})
	}
}
