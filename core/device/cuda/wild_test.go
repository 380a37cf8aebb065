package cuda

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
)

// openAt is the address of the word by which rank from tells m that it has opened a slot.
func (m *member) openAt(from int, op uint64) uint64 {
	in := uint64(from)*uint64(unsafe.Sizeof(inbox{})) + uint64(unsafe.Offsetof(inbox{}.Open))
	return m.Shared() + in + 8*(op%protocol.OpenRing)
}

func (m *member) counterAt(l int) uint64 { return m.Slab(0) + uint64(layout.Counter(l)) }

func (m *member) layoutAt(s *layout.Slab, l, source int) uint64 {
	return m.Slab(0) + uint64(s.Layout(int64(l), int64(source)))
}

// overwrite stores a word as a wild pointer does.
func (g *group) overwrite(at, v uint64) { poke(g, at, func(w *uint64) { *w = v }) }

// mustWild is what a rank's device has told of another one.
func mustWild(t *testing.T, m *member, rank int, kind uint64) {
	t.Helper()
	eventually(t, fmt.Sprintf("rank %d finds a word of rank %d", m.cfg.Rank, rank), func() bool {
		_, found := m.Wild(rank)
		return found
	})
	w, _ := m.Wild(rank)
	require.Equal(t, kind, w.kind, "%s", w.Why())
}

// mustSurrender is how a rank ends after its own memory was overwritten.
func mustSurrender(t *testing.T, m *member, kind uint64) {
	t.Helper()
	require.EqualValues(t, protocol.ErrorWild, m.report().Error, "%v", m.Failure())
	require.Equal(t, kind, m.report().Detail[0], "%v", m.Failure())
}

// TestWildCounter: sources find a counter that leaves no room, also one by which the sum
// of what is there and what comes would wrap. They write nothing by it, tell the host, and
// go on without the owner, which ends itself if it is the one that finds it.
func TestWildCounter(t *testing.T) {
	emulate(t)
	capacity := uint64(3 * 6) // of small
	for _, held := range []uint64{
		math.MaxUint64 - 3, math.MaxUint64, 1 << 63, 1 << 32, rankset.MaxRanks<<31 + 1, capacity, capacity + 1,
	} {
		t.Run(fmt.Sprintf("%#x", held), func(t *testing.T) {
			g, o, slabs := small(t, 3)
			require.EqualValues(t, capacity, slabs.RowsPerExpert)
			for r := range g.ranks {
				o.ids[r][0] = 4 // the first expert of rank 2
			}
			g.starts(o, 2)
			eventually(t, "rank 2 waits", func() bool { return g.ranks[2].Waits() == rankset.Of(0, 1) })
			g.overwrite(g.ranks[2].counterAt(0), held)
			g.starts(o, 0, 1)
			wraps := held > math.MaxUint64-8 // then it is a small number for the next rank
			eventually(t, "the word is found", func() bool {
				_, by0 := g.ranks[0].Wild(2)
				_, by1 := g.ranks[1].Wild(2)
				by2 := g.ranks[2].Failure().Kind == FailedWild
				return by0 && by1 && by2 || wraps && (by0 || by1 || by2)
			})
			g.lose(2, 0, 1)
			g.lose(2, 2)
			g.sync()
			g.combineWithout(o, slabs, 2, 0, 1)
		})
	}
}

// starts launches a dispatch of some ranks.
func (g *group) starts(o *op, ranks ...int) {
	for _, r := range ranks {
		require.NoError(g.t, g.ranks[r].Send(&o.calls[r]))
		require.NoError(g.t, g.ranks[r].Receive(&o.calls[r]))
	}
}

// combineWithout combines and goes on without a rank, which has been lost.
func (g *group) combineWithout(o *op, slabs *layout.Slab, lost int, ranks ...int) {
	for _, r := range ranks {
		require.Zero(g.t, g.ranks[r].report().Error, "%v", g.ranks[r].Failure())
		o.writeOutputs(g.ranks[r], r, g.ranks[r].Slab(0)+uint64(slabs.YOff))
		require.NoError(g.t, g.ranks[r].Publish(o.combine(r, 0)))
		require.NoError(g.t, g.ranks[r].Reduce(o.combine(r, 0)))
	}
	g.sync()
	o.forget(lost)
	for _, r := range ranks {
		require.Zero(g.t, g.ranks[r].report().Error, "%v", g.ranks[r].Failure())
		o.checkSums(g.t, r)
	}
	g.goesOn(o, len(ranks))
}

// TestWildCounterOrAnotherShape: a rank that finds no room at an owner with other
// parameters gets an error about the parameters.
func TestWildCounterOrAnotherShape(t *testing.T) {
	emulate(t)
	g, o, _ := small(t, 2)
	o.ids[0][0] = 2
	o.calls[1].Shape.MaxTokens, o.calls[1].NumTokens = 7, 1
	g.ranks[1].cfg.SlabBytes += 1 << 30 // the larger shape is checked elsewhere
	g.starts(o, 1)
	eventually(t, "rank 1 waits", func() bool { return g.ranks[1].Waits() == rankset.Of(0) })
	g.overwrite(g.ranks[1].counterAt(0), 12)
	g.starts(o, 0)
	g.sync()
	for _, m := range g.ranks {
		require.EqualValues(t, protocol.ErrorMismatch, m.report().Error, "%v", m.Failure())
		require.Zero(t, m.report().Wild, "it is blamed for what the shapes explain")
	}
}

// TestWildOwnWords: a rank finds out that its own words were overwritten, and nothing of
// them comes to the caller.
func TestWildOwnWords(t *testing.T) {
	emulate(t)
	capacity := uint64(3 * 6)
	for _, c := range []struct {
		kind uint64
		held uint64
	}{
		{protocol.WildCounter, capacity + 1},
		{protocol.WildCounter, math.MaxUint64},
		{protocol.WildLayout, math.MaxUint64},
		{protocol.WildLayout, 1<<63 | 1},
		{protocol.WildLayout, capacity<<32 | 1},
		{protocol.WildLayout, 1<<32 | capacity},
		{protocol.WildLayout, 0xffffffff},
	} {
		t.Run(fmt.Sprintf("%d/%#x", c.kind, c.held), func(t *testing.T) {
			g, o, slabs := small(t, 3)
			for r, m := range g.ranks {
				require.NoError(t, m.Send(&o.calls[r]))
			}
			g.sync()
			at := g.ranks[0].counterAt(1)
			if c.kind == protocol.WildLayout {
				at = g.ranks[0].layoutAt(slabs, 1, 2)
			}
			g.overwrite(at, c.held)
			for r, m := range g.ranks {
				require.NoError(t, m.Receive(&o.calls[r]))
			}
			g.sync()
			mustSurrender(t, g.ranks[0], c.kind)
			require.Equal(t, [3]uint64{1, c.held, capacity}, [3]uint64(g.ranks[0].report().Detail[1:]))
			require.Zero(t, o.ranges[0][3+2]&^0xff_000000ff, "a range that was not compared")
			require.LessOrEqual(t, uint64(o.counts[0][1]), capacity)
			for _, m := range g.ranks[1:] {
				require.Zero(t, m.report().Error)
			}
		})
	}
}

// TestWildIDs: an id of a flat row that no source sends reaches no caller.
func TestWildIDs(t *testing.T) {
	emulate(t)
	for _, id := range []int64{2, 5, math.MaxInt64, math.MinInt64, -2} {
		t.Run(fmt.Sprint(id), func(t *testing.T) {
			g, o, slabs := smallIn(t, 3, flat)
			for i := range o.ids[1] {
				o.ids[1][i] = 0 // all at rank 0
			}
			for r, m := range g.ranks {
				require.NoError(t, m.Send(&o.calls[r]))
			}
			g.sync()
			at := g.ranks[0].Slab(0) + uint64(slabs.ColumnOff[layout.ColumnTopkIdx]) + 8
			g.overwrite(at, uint64(id))
			for r, m := range g.ranks {
				require.NoError(t, m.Receive(&o.calls[r]))
			}
			g.sync()
			mustSurrender(t, g.ranks[0], protocol.WildID)
			require.Equal(t, [3]uint64{1, uint64(id), 1}, [3]uint64(g.ranks[0].report().Detail[1:]))
			require.Equal(t, int64(-1), peek[int64](g, at))
			for _, m := range g.ranks[1:] {
				require.Zero(t, m.report().Error, "%v", m.Failure())
			}
		})
	}
}

// TestWildOpen: a rank that is told of a slab that there is not writes nowhere, also to
// an owner that its caller leaves out.
func TestWildOpen(t *testing.T) {
	emulate(t)
	for _, slab := range []uint64{2, 200, 0x100, 0xffff} {
		for _, leftOut := range []bool{false, true} {
			t.Run(fmt.Sprintf("%#x/left out=%v", slab, leftOut), func(t *testing.T) {
				g, o, _ := small(t, 2)
				m := g.ranks[0]
				g.overwrite(m.openAt(1, 0), 1<<16|slab)
				if leftOut {
					o.active[0][1] = 0
				}
				before := slices.Clone(g.sharedOf(1))
				g.starts(o, 0)
				if leftOut {
					g.lose(1, 0)
				}
				g.sync()
				if leftOut {
					require.Zero(t, m.report().Error, "%v", m.Failure())
				} else {
					mustSurrender(t, m, protocol.WildOpen)
				}
				after := g.sharedOf(1)
				in := int(unsafe.Sizeof(inbox{})) // what rank 0 pushes: its own open
				require.Equal(t, before[in:], after[in:])
			})
		}
	}
}

// sharedOf is the memory of a rank that others write into.
func (g *group) sharedOf(rank int) []byte {
	m := g.ranks[rank]
	return bytesAt(uintptr(m.Shared()), m.cfg.SharedBytes())
}

// TestWildPlaces: in order, an owner's layout gives rows that it has no room for.
func TestWildPlaces(t *testing.T) {
	emulate(t)
	for _, first := range []uint64{24, 1 << 31, math.MaxUint32} { // there is room for 24
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			g, o, slabs := smallIn(t, 4, protocol.FlagOrdered)
			o.ids[0][0] = 2                        // an expert of rank 1
			copy(o.active[1], []int32{1, 1, 0, 0}) // rank 1 waits for the counts of 0 alone,
			o.active[0][3] = 0                     // rank 0 for those of 2, too,
			g.starts(o, 0, 1, 2)                   // and rank 2 for rank 3
			order := g.ranks[0].Shared() + uint64(unsafe.Sizeof(inbox{})+unsafe.Offsetof(inbox{}.RowOrder))
			eventually(t, "rank 1 has given places", func() bool { return peek[uint64](g, order) != 0 })
			g.overwrite(g.ranks[1].layoutAt(slabs, 0, 0), first<<32|1)
			g.starts(o, 3)
			mustWild(t, g.ranks[0], 1, protocol.WildLayout)
			for r := range g.ranks {
				g.lose(1, r)
			}
			g.sync()
			require.Zero(t, g.ranks[0].report().Error, "%v", g.ranks[0].Failure())
		})
	}
}
