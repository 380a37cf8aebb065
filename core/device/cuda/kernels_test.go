package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/internal/testenv"
)

// TestExchange sends and combines with several ranks, in random order of all
// threads, and compares rows and sums with what plain loops give.
func TestExchange(t *testing.T) {
	emu := driver(t)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 7))
	for _, ranks := range []int{1, 2, 4} {
		for _, fp8 := range []bool{false, true} {
			t.Run(fmt.Sprintf("ranks=%d/fp8=%v", ranks, fp8), func(t *testing.T) {
				emu.Schedule(rng.Uint64(), 32, 6)
				exchange(t, rng, ranks, fp8)
			})
		}
	}
}

func rowTypeOf(fp8 bool) protocol.DType {
	if fp8 {
		return protocol.FP8
	}
	return protocol.BF16
}

func exchange(t *testing.T, rng *rand.Rand, ranks int, fp8 bool) {
	s := layout.Shape{MaxTokens: 20, Hidden: 256, NumExperts: int64(2 * ranks), NumRanks: int64(ranks), RowType: rowTypeOf(fp8)}
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	g := newGroup(t, ranks, 2, slabs.SizeBytes)
	flags := protocol.Flags(0)
	if fp8 {
		flags = protocol.FlagFP8
	}
	for i := range 6 {
		g.exchange(rng, g.random(rng, s, 3, flags, i%2), &slabs)
	}
}

// exchange runs an operation of all ranks and compares what comes out, with
// plain loops and with what the CPU's kernels make of the same.
func (g *group) exchange(rng *rand.Rand, o *op, slabs *layout.Slab) {
	for r, m := range g.ranks {
		require.NoError(g.t, m.Send(&o.calls[r]))
	}
	for r, m := range g.ranks {
		require.NoError(g.t, m.Receive(&o.calls[r]))
		g.snapshot(m, o.calls[r].Slot)
	}
	g.sync()
	for r, m := range g.ranks {
		require.Zero(g.t, m.report().Error, "%v", m.report().Detail)
		o.checkRows(g.t, m, r)
		o.sameRowsAsCPU(g, r)
	}
	if o.flags&(protocol.FlagPreReduce|protocol.FlagFlat) == 0 && rng.IntN(2) == 0 {
		o.leaveOut(g, rng)
	}
	inPlace := rng.IntN(2) == 0
	for r, m := range g.ranks {
		at, passed := m.Slab(o.calls[r].Slot)+uint64(slabs.YOff), uint64(0)
		if !inPlace {
			at, _ = tensor[byte](m, int(slabs.LocalExperts*slabs.RowsPerExpert*slabs.OutputBytes()))
			passed = at
		}
		o.writeOutputs(m, r, at)
		require.NoError(g.t, m.Publish(o.combine(r, passed)))
	}
	for r, m := range g.ranks {
		require.NoError(g.t, m.Reduce(o.combine(r, 0)))
	}
	g.sync()
	for r, m := range g.ranks {
		require.Zero(g.t, m.report().Error)
		o.checkSums(g.t, r)
		o.sameSumsAsCPU(g, r)
	}
}
