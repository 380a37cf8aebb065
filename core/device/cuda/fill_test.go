package cuda

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/internal/testenv"
)

// fill has all ranks fill what a dispatch begins with.
func (g *group) fill() {
	for _, m := range g.ranks {
		m.cfg.DebugFill = true
	}
}

// TestFill: rows that nobody wrote, and outputs that no expert has written yet,
// are no numbers; the others are as they are without.
func TestFill(t *testing.T) {
	for _, f := range []struct {
		flags uint32
		shape layout.Shape
	}{
		{0, layout.Shape{}},
		{flagFP8, layout.Shape{FP8: true}},
		{flagWide, layout.Shape{WideOutputs: true}},
		{flagFlat | flagOrdered, layout.Shape{Flat: true, Columns: flatColumns(3, flagFlat, 0)}},
	} {
		t.Run(fmt.Sprintf("flags=%#x", f.flags), func(t *testing.T) {
			s := f.shape
			s.MaxTokens, s.Hidden, s.NumExperts, s.NumRanks = 9, 128, 4, 2
			slabs, err := layout.Of(s)
			require.NoError(t, err)
			rng := rand.New(rand.NewPCG(testenv.Seed(t), 41))
			driver(t).Order(rng.Uint64(), 16, 10)
			g := newGroup(t, 2, 2, slabs.SizeBytes)
			g.fill()
			for range 3 { // in one slot, over what was there
				o := g.random(rng, s, 3, f.flags, 0)
				g.exchange(rng, o, &slabs)
				for r, m := range g.ranks {
					o.checkFilled(t, m, r, &slabs)
				}
			}
		})
	}
}

// checkFilled looks at the slab as the kernel behind Receive has found it.
func (o *op) checkFilled(t testing.TB, m *member, r int, s *layout.Slab) {
	slab := region(m.seen.Address(), layout.Region{Bytes: s.SizeBytes})
	for _, b := range slab[s.YOff:][:s.Y().Bytes] {
		require.EqualValues(t, filled, b)
	}
	for l := range s.LocalExperts {
		used := int64(o.counts[r][l])
		free := slab[s.RowsOff+(l*s.RowsPerExpert+used)*s.RowBytes:][:(s.RowsPerExpert-used)*s.RowBytes]
		require.Equal(t, len(free), bytes.Count(free, []byte{filled}))
		info := slab[s.SrcInfoOff+(l*s.RowsPerExpert+used)*4:][:(s.RowsPerExpert-used)*4]
		require.Equal(t, len(info), bytes.Count(info, []byte{filled}))
	}
}

// TestFillOfGraphs: it is recorded with the operation.
func TestFillOfGraphs(t *testing.T) {
	g, o, slabs := small(t, 2)
	g.fill()
	replayRounds(t, g, o, g.rng, []int{1, 2}, 2, 4)
	for r, m := range g.ranks {
		for slot := range 2 { // what the latest replay has left
			y := region(m.Slab(slot), slabs.Y())
			require.EqualValues(t, filled, y[len(y)-1], "rank %d slot %d", r, slot)
		}
	}
}
