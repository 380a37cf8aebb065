package cuda

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport/fake"
)

// orderedForms are those whose rows get places in order.
var orderedForms = map[string]protocol.Flags{"in order": protocol.FlagOrdered, "flat": protocol.FlagFlat | protocol.FlagOrdered}

// rngOf is for one of several tests: what it draws depends on nothing that was
// run before it, and not on their order, which is a map's.
func rngOf(seed, test uint64, flags protocol.Flags, which ...int) *rand.Rand {
	for _, n := range which {
		test = test<<8 + uint64(n)
	}
	return rand.New(rand.NewPCG(seed, test<<32+uint64(flags)))
}

// tight makes a group on hosts with rings that hold less than one operation, if
// no two ranks share a host. (Ranks that wait for local ones take no messages.)
func tight(t *testing.T, rng *rand.Rand, hostOf []int, flags protocol.Flags) (*group, *op) {
	ranks := len(hostOf)
	s := layout.Shape{MaxTokens: 8, Hidden: 64, NumExperts: int64(2 * ranks), NumRanks: int64(ranks)}
	s.Flat, s.Columns = flags&protocol.FlagFlat != 0, flatColumns(2, flags, 12)
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	g := newGroup(t, ranks, 2, slabs.SizeBytes)
	g.fewest = 6
	m := mailing{hostOf: hostOf, ringBytes: 1 << 12, messageBytes: 700, length: 4}
	if hostOf[0] == hostOf[1] {
		m.ringBytes = 1 << 16
	}
	g.putOnHosts(uneven(rng.Uint64()), m)
	for _, m := range g.ranks {
		m.threads = threads{plan: 8, row: 8, wait: 8}
	}
	return g, g.random(rng, s, 2, flags, 0)
}

// TestHostsOrderRunsAhead: ranks exchange counts, make the order and send rows by
// it, with several operations under way and the host waiting at the end only.
func TestHostsOrderRunsAhead(t *testing.T) {
	emu, seed := driver(t), testenv.Seed(t)
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	for name, flags := range orderedForms {
		for i, hostOf := range [][]int{{0, 1}, {0, 1, 2}, {0, 0, 1}, {0, 0, 1, 1}} {
			for n := range rounds {
				rng := rngOf(seed, 41, flags, i, n)
				emu.Schedule(rng.Uint64(), 16, 6+len(hostOf)*len(hostOf))
				t.Run(fmt.Sprint(name, hostOf), func(t *testing.T) {
					g, o := tight(t, rng, hostOf, flags)
					g.runAhead(t, o, 3)
				})
			}
		}
	}
}

// smallHostsIn is smallHosts in a form.
func smallHostsIn(t *testing.T, ranks int, flags protocol.Flags) (*group, *op, *layout.Slab, []*office) {
	g, o, slabs := smallIn(t, ranks, flags)
	return g, o, slabs, g.putOnHosts(fake.New(fake.Config{Seed: 1}), mailing{
		hostOf: hosts(ranks, 1), ringBytes: 1 << 14, messageBytes: 1 << 13, length: 16,
	})
}

// ends combines what two ranks have received, and compares their sums.
func (g *group) ends(t *testing.T, o *op, slabs *layout.Slab, ranks ...int) {
	for _, r := range ranks {
		m := g.ranks[r]
		o.writeOutputs(m, r, m.Slab(0)+uint64(slabs.YOff))
		require.NoError(t, m.Publish(o.combine(r, 0)))
		require.NoError(t, m.Reduce(o.combine(r, 0)))
	}
	g.sync()
	for _, r := range ranks {
		require.Zero(t, g.ranks[r].report().Error, "%v", g.ranks[r].Failure())
		o.checkSums(t, r)
	}
}

// TestHostsOrderWithoutALostRank: a remote rank that is taken out before it has said
// how many rows it has gets no place, and rows of the others lie without a gap.
func TestHostsOrderWithoutALostRank(t *testing.T) {
	for name, flags := range orderedForms {
		t.Run(name, func(t *testing.T) {
			g, o, slabs, _ := smallHostsIn(t, 3, flags)
			for r := range 2 {
				require.NoError(t, g.ranks[r].Send(&o.calls[r]))
				require.NoError(t, g.ranks[r].Receive(&o.calls[r]))
			}
			eventually(t, "both wait for it", func() bool { return g.ranks[0].Waits().And(g.ranks[1].Waits()) == rankset.Of(2) })
			g.lose(2, 0, 1)
			g.sync()
			for r := range 2 {
				require.Zero(t, g.ranks[r].report().Error, "%v", g.ranks[r].Failure())
				require.Equal(t, []int32{1, 1, 0}, o.active[r])
				for l := range int(slabs.LocalExperts) {
					at := o.ranges[r][3*l:][:3]
					require.EqualValues(t, o.counts[r][l], at[0]&0xffffffff+at[1]&0xffffffff)
					require.Zero(t, at[2])
				}
			}
			o.forget(2)
			g.ends(t, o, slabs, 0, 1)
		})
	}
}

// TestHostsOrderLosesRows: a remote rank that has told its counts, and is taken out
// before its rows are there, leaves a hole.
func TestHostsOrderLosesRows(t *testing.T) {
	for name, flags := range orderedForms {
		t.Run(name, func(t *testing.T) {
			g, o, slabs, _ := smallHostsIn(t, 3, flags)
			for i := range o.ids[1] {
				o.ids[1][i] = 0 // all at rank 0
			}
			for r, m := range g.ranks {
				if r != 1 {
					require.NoError(t, m.Send(&o.calls[r]))
					require.NoError(t, m.Receive(&o.calls[r]))
					continue
				}
				common, err := m.begin(&o.calls[1].Call)
				require.NoError(t, err)
				require.NoError(t, m.plan(&common, &o.calls[1]))
				require.NoError(t, m.end(m.orderRemote(&o.calls[1])))
			}
			// That rank 1 has done its part does not mean that its counts are there: they
			// go through two proxies and a network.
			own := &dl.At[arena](uintptr(g.ranks[0].Shared())).From[0]
			eventually(t, "rank 0 has made the order", func() bool { return atomic.LoadUint64(&own.RowOrder[0]) != 0 })
			g.must(func() error { return g.d.lib.StreamSynchronize(g.ranks[1].stream) })
			g.lose(1, 0, 2)
			g.sync()
			n := 0
			for src := range 3 {
				n += int(o.ranges[0][src] & 0xffffffff)
			}
			require.EqualValues(t, o.tokens[1]+n, o.counts[0][0])
			require.Zero(t, o.ranges[0][1])
			if o.shape.Flat {
				require.Equal(t, o.tokens[1], o.holes(t, uintptr(g.ranks[0].Slab(0)), slabs, int(o.counts[0][0])))
			}
			o.forget(1)
			g.ends(t, o, slabs, 0, 2)
		})
	}
}

// TestHostsOrderLeftOut: a remote rank that an owner leaves out has no place there,
// though it leaves out no rank itself, and its rows are dropped when they come.
func TestHostsOrderLeftOut(t *testing.T) {
	for name, flags := range orderedForms {
		t.Run(name, func(t *testing.T) {
			g, o, slabs, _ := smallHostsIn(t, 2, flags)
			o.active[1][0] = 0
			for r, m := range g.ranks {
				require.NoError(t, m.Send(&o.calls[r]))
				require.NoError(t, m.Receive(&o.calls[r]))
			}
			g.sync()
			local := int(slabs.LocalExperts)
			for r := range g.ranks {
				for l := range local {
					require.Zero(t, o.ranges[r][2*l+1-r])
					require.EqualValues(t, len(o.sentTo(r, local*r+l)), o.counts[r][l])
				}
			}
			for r, m := range g.ranks {
				o.writeOutputs(m, r, m.Slab(0)+uint64(slabs.YOff))
				require.NoError(t, m.Publish(o.combine(r, 0)))
				require.NoError(t, m.Reduce(o.combine(r, 0)))
			}
			g.sync()
			for r, m := range g.ranks {
				require.Zero(t, m.report().Error, "%v", m.Failure())
				o.lost = map[int]bool{1 - r: true}
				o.checkSums(t, r)
			}
			o.lost, o.active[1][0], o.active[0][1] = nil, 1, 1
			for i := range 3 {
				for r := range g.ranks {
					g.identity(o, r, (i+1)%2)
				}
			}
			g.sync()
			for r, m := range g.ranks {
				require.Zero(t, m.report().Error, "%v", m.Failure())
				o.checkIdentity(t, r)
			}
		})
	}
}

// TestHostsOrderMismatch: both sides say what differs, before any rank has a place.
func TestHostsOrderMismatch(t *testing.T) {
	for name, flags := range orderedForms {
		t.Run(name, func(t *testing.T) {
			g, o, _, _ := smallHostsIn(t, 2, flags)
			o.calls[1].Flags |= protocol.FlagFP32Outputs
			o.calls[1].Shape.OutputType = protocol.FP32
			for r, m := range g.ranks {
				m.cfg.SlabBytes += 1 << 30
				require.NoError(t, m.Send(&o.calls[r]))
			}
			g.sync()
			own := uint64(flags & protocol.FlagFlat)
			forms := [2]uint64{own, own | protocol.FlagFP32Outputs}
			for r, m := range g.ranks {
				require.Equal(t, FailedMismatch, m.Failure().Kind)
				require.EqualValues(t, [4]uint64{uint64(1 - r), 4, forms[r], forms[1-r]}, m.report().Detail)
			}
		})
	}
}

// TestHostsOrderGraphs replays graphs of two ranks that cut them differently.
func TestHostsOrderGraphs(t *testing.T) {
	for name, flags := range orderedForms {
		t.Run(name, func(t *testing.T) {
			g, o, _, _ := smallHostsIn(t, 2, flags)
			replayRounds(t, g, o, g.rng, []int{3, 2}, 3, 12)
		})
	}
}

// TestHostsFlatBesidePacked: a rank that puts its rows in order waits for counts of
// one that sends none, and that one for rows. Both say what differs.
func TestHostsFlatBesidePacked(t *testing.T) {
	g, o, _, _ := smallHostsIn(t, 2, flat)
	disagree(t, g, o)
}

// TestHostsOrderRowsComeFirst: rows of a remote rank come while another one's counts
// are missing, because it has left that one out. They wait for the order.
func TestHostsOrderRowsComeFirst(t *testing.T) {
	for name, flags := range orderedForms {
		t.Run(name, func(t *testing.T) {
			g, o, _, _ := smallHostsIn(t, 3, flags)
			for i := range o.ids[0] {
				o.ids[0][i] = 0 // so that rank 1's rows do not begin where they do without an order
			}
			for i := range o.ids[1] {
				o.ids[1][i] = 0
			}
			o.active[1][2] = 0
			for r := range 2 {
				require.NoError(t, g.ranks[r].Send(&o.calls[r]))
			}
			g.must(func() error { return g.d.lib.StreamSynchronize(g.ranks[1].stream) })
			eventually(t, "rank 0 waits for counts", func() bool { return g.ranks[0].Waits() == rankset.Of(2) })
			require.NoError(t, g.ranks[2].Send(&o.calls[2]))
			for r, m := range g.ranks {
				require.NoError(t, m.Receive(&o.calls[r]))
				g.snapshot(m, 0)
			}
			g.sync()
			for _, m := range g.ranks {
				require.Zero(t, m.report().Error, "%v", m.Failure())
			}
			require.EqualValues(t, o.tokens[0], o.ranges[0][1]>>32, "where rank 1's rows begin")
			o.checkRows(t, g.ranks[0], 0)
		})
	}
}
