package cuda

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
)

// recorded is a graph of one rank: some operations, each with slots of its own
// choice.
type recorded struct {
	exec libcuda.GraphExec
	ops  int
}

// record captures n operations of a rank. Its experts return their rows.
func (g *group) record(o *op, r, n, firstSlot int) recorded {
	return g.recordOf(r, n, firstSlot, func(slot int) { g.identity(o, r, slot) })
}

// recordApart is record, but that the sums of each operation have a place of their own.
func (g *group) recordApart(o *op, r, n, firstSlot int) (rec recorded, sums [][]uint16) {
	rec = g.recordOf(r, n, firstSlot, func(slot int) {
		at, values := tensor[uint16](g.ranks[r], len(o.outs[r]))
		g.identityTo(o, r, slot, at)
		sums = append(sums, values)
	})
	return rec, sums
}

// recordOf captures what is launched for n operations of a rank.
func (g *group) recordOf(r, n, firstSlot int, does func(slot int)) recorded {
	runtime.LockOSThread() // the thread that has begun a capture ends it
	defer runtime.UnlockOSThread()
	m := g.ranks[r]
	rec := recorded{ops: n}
	g.must(func() error { return g.d.lib.BeginCapture(m.stream, libcuda.CaptureModeThreadLocal) })
	for i := range n {
		does((firstSlot + i) % m.cfg.NumSlots)
	}
	g.must(func() error {
		captured, err := g.d.lib.EndCapture(m.stream)
		if err != nil {
			return err
		}
		if rec.exec, err = g.d.lib.GraphInstantiate(captured); err != nil {
			return err
		}
		return g.d.lib.GraphDestroy(captured)
	})
	return rec
}

// identity launches a dispatch and a combine of the rows as they came.
func (g *group) identity(o *op, r, slot int) { g.identityTo(o, r, slot, o.outAt[r]) }

func (g *group) identityTo(o *op, r, slot int, out uint64) {
	m, c := g.ranks[r], o.calls[r]
	c.Slot = slot
	s, err := layout.Of(o.shape)
	require.NoError(g.t, err)
	require.NoError(g.t, m.Send(&c))
	require.NoError(g.t, m.Receive(&c))
	combine := o.combine(r, m.Slab(slot)+uint64(s.RowsOff))
	combine.Slot, combine.Out = slot, out
	require.NoError(g.t, m.Publish(combine))
	require.NoError(g.t, m.Reduce(combine))
}

// identities launches that of all ranks.
func (g *group) identities(o *op, slot int) {
	for r := range g.ranks {
		g.identity(o, r, slot)
	}
}

// launch replays one graph per rank, so often that it makes the same number of
// operations. It takes turns: a stream takes only so many launches before the next
// one waits for the device, which would wait for the other ranks.
func (g *group) launch(graphs []recorded, operations int) {
	for i := range operations {
		for r, rec := range graphs {
			if i%rec.ops == 0 {
				g.must(func() error { return g.d.lib.GraphLaunch(rec.exec, g.ranks[r].stream) })
			}
		}
	}
}

// identityAgain launches another combine of the same.
func (g *group) identityAgain(o *op, r, slot int) {
	s, err := layout.Of(o.shape)
	require.NoError(g.t, err)
	combine := o.combine(r, g.ranks[r].Slab(slot)+uint64(s.RowsOff))
	combine.Slot, combine.Again = slot, true
	require.NoError(g.t, g.ranks[r].Publish(combine))
	require.NoError(g.t, g.ranks[r].Reduce(combine))
}

// checkIdentity compares rank r's result with sums of its own rows.
func (o *op) checkIdentity(t testing.TB, r int) { o.checkIdentityIn(t, r, o.outs[r]) }

func (o *op) checkIdentityIn(t testing.TB, r int, found []uint16) {
	h := int(o.shape.Hidden)
	for token := range o.tokens[r] {
		for j := range h {
			sum := o.sum(r, token, func(int64) float32 { return float(o.x[r][token*h+j]) })
			require.Equal(t, rounded(sum), found[token*h+j], "rank %d token %d value %d", r, token, j)
		}
	}
}

// TestGraphsOfAnyLength replays graphs of odd and even lengths, on ranks that
// cut the same sequence of operations differently and mix in plain calls.
func TestGraphsOfAnyLength(t *testing.T) {
	emu := driver(t)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 11))
	for _, lengths := range [][]int{{1, 1}, {2, 2}, {3, 3}, {7, 7}, {3, 1}, {2, 6}, {7, 1}} {
		if testing.Short() && lengths[0] != 3 {
			continue
		}
		t.Run(fmt.Sprint(lengths), func(t *testing.T) {
			emu.Schedule(rng.Uint64(), 16, 8)
			replay(t, rng, lengths)
		})
	}
}

func replay(t *testing.T, rng *rand.Rand, lengths []int) {
	s := layout.Shape{MaxTokens: 5, Hidden: 128, NumExperts: 4, NumRanks: 2}
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	g := newGroup(t, len(lengths), 2, slabs.SizeBytes)
	replayRounds(t, g, g.random(rng, s, 2, 0, 0), rng, lengths, 2, 42)
}

// replayRounds records a graph of some operations per rank and replays them,
// in rounds of so many operations: a multiple of every length. Each round has other
// rows and experts, and every second one a call that is not recorded behind the graphs.
// Of each round the latest replay's results are checked, and the call's.
func replayRounds(t *testing.T, g *group, o *op, rng *rand.Rand, lengths []int, rounds, total int) {
	var graphs []recorded
	sums := make([][][]uint16, len(lengths))
	for r, n := range lengths {
		rec, places := g.recordApart(o, r, n, rng.IntN(2))
		graphs, sums[r] = append(graphs, rec), places
	}
	defer func() {
		for _, rec := range graphs {
			g.must(func() error { return g.d.lib.GraphExecDestroy(rec.exec) })
		}
	}()
	done := 0 // operations
	for round := range rounds {
		g.redraw(o, rng)
		g.launch(graphs, total)
		if done += total; round%2 == 0 {
			g.identities(o, round/2%2)
			done++
		}
		g.sync()
		for r, m := range g.ranks {
			require.Zero(t, m.report().Error, "%v", m.report().Detail)
			require.EqualValues(t, done, m.report().Ops)
			for _, one := range sums[r] {
				o.checkIdentityIn(t, r, one)
			}
			if round%2 == 0 {
				o.checkIdentity(t, r)
			}
		}
	}
}

// redraw gives an operation other rows and experts. Nothing of it runs.
func (g *group) redraw(o *op, rng *rand.Rand) {
	for r, x := range o.x {
		for i := range x {
			x[i] = bf16(float32(rng.NormFloat64()))
		}
		for i := range o.ids[r] {
			o.ids[r][i] = g.pick(rng, o.shape.NumExperts, i)
		}
	}
}
