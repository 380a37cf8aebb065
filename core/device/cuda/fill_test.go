package cuda

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/internal/testenv"
)

// filled is what memory holds that no rank has written since.
const filled = 0xff

// fill has all ranks fill what a dispatch begins with.
func (g *group) fill() {
	for _, m := range g.ranks {
		m.cfg.DebugFill = true
	}
}

// TestFill: rows that no rank wrote, and outputs that no expert has written yet,
// are no numbers; the others are as they are without.
func TestFill(t *testing.T) {
	for _, f := range []struct {
		flags protocol.Flags
		shape layout.Shape
	}{
		{0, layout.Shape{}},
		{protocol.FlagFP8, layout.Shape{RowType: protocol.FP8}},
		{protocol.FlagFP32Outputs, layout.Shape{OutputType: protocol.FP32}},
		{protocol.FlagFlat | protocol.FlagOrdered, layout.Shape{Flat: true, Columns: flatColumns(3, protocol.FlagFlat, 0)}},
	} {
		t.Run(fmt.Sprintf("flags=%#x", f.flags), func(t *testing.T) {
			s := f.shape
			s.MaxTokens, s.Hidden, s.NumExperts, s.NumRanks = 9, 128, 4, 2
			slabs, err := layout.Of(s)
			require.NoError(t, err)
			rng := rand.New(rand.NewPCG(testenv.Seed(t), 41))
			driver(t).Schedule(rng.Uint64(), 16, 10)
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
	y := slab[s.YOff:][:s.Y().Bytes]
	require.Equal(t, len(y), bytes.Count(y, []byte{filled}))
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
	replayRounds(t, g, o, g.rng, []int{1, 2}, 4, 4) // calls in between take each slot once
	for r, m := range g.ranks {
		for slot := range 2 { // what the latest replay has left
			y := region(m.Slab(slot), slabs.Y())
			require.EqualValues(t, filled, y[len(y)-1], "rank %d slot %d", r, slot)
		}
	}
}

// TestFillWaitsForReaders: a slot's operation has few tokens, the next one so many
// that its rows lie where outputs lay. A rank that still has to add these up finds
// them, though another one has begun the next operation.
func TestFillWaitsForReaders(t *testing.T) {
	testenv.InAll(t)
	for flags, most := range map[protocol.Flags]int64{0: 160, protocol.FlagFlat | protocol.FlagOrdered: 288} {
		t.Run(fmt.Sprintf("flags=%#x", flags), func(t *testing.T) {
			emu := driver(t)
			if !onDevice() {
				emu.Watch(t)
			}
			g, first, second := growing(t, emu, flags, most)
			first.arrives(t, g)
			first.publish(t, g)
			require.NoError(t, g.ranks[0].Reduce(first.combine(0, 0)))
			g.sync()
			require.NoError(t, g.ranks[0].Send(&second.calls[0]))
			eventually(t, "the next operation waits for rank 1", func() bool { return g.ranks[0].Wait(1) != 0 })
			require.NoError(t, g.ranks[1].Reduce(first.combine(1, 0)))
			require.NoError(t, g.ranks[1].Send(&second.calls[1]))
			second.receive(t, g)
			second.publish(t, g)
			second.reduce(t, g)
			for r := range g.ranks {
				first.checkSums(t, r)
				second.checkSums(t, r)
			}
			if !onDevice() {
				require.Empty(t, emu.Races())
			}
		})
	}
}

// growing is a pair of ranks with one slot, and two operations of theirs.
func growing(t *testing.T, drv *cudatest.Driver, flags protocol.Flags, most int64) (g *group, first, second *op) {
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 43))
	drv.Schedule(rng.Uint64(), 16, 10)
	s := layout.Shape{MaxTokens: 8, Hidden: 2048, NumExperts: 4, NumRanks: 2, Flat: flags&protocol.FlagFlat != 0, Columns: flatColumns(2, flags, 8)}
	small, err := layout.Of(s)
	require.NoError(t, err)
	s.MaxTokens = most
	large, err := layout.Of(s)
	require.NoError(t, err)
	require.GreaterOrEqual(t, large.YOff, small.YOff+small.Y().Bytes)
	g = newGroup(t, 2, 1, large.SizeBytes)
	g.fewest, g.most, g.keeps = 6, 8, true
	g.fill()
	first = g.random(rng, small.Shape, 2, flags, 0)
	return g, first, g.random(rng, large.Shape, 2, flags, 0)
}

// arrives runs a dispatch on all ranks, receive the second phase of it.
func (o *op) arrives(t *testing.T, g *group) {
	for r, m := range g.ranks {
		require.NoError(t, m.Send(&o.calls[r]))
	}
	o.receive(t, g)
}

func (o *op) receive(t *testing.T, g *group) {
	slabs, err := layout.Of(o.shape)
	require.NoError(t, err)
	for r, m := range g.ranks {
		require.NoError(t, m.Receive(&o.calls[r]))
		g.snapshot(m, 0)
	}
	g.sync()
	for r, m := range g.ranks {
		require.Zero(t, m.report().Error)
		o.checkRows(t, m, r)
		o.checkFilled(t, m, r, &slabs)
	}
}

// publish has all experts' outputs written in place, reduce is the sums of all.
func (o *op) publish(t *testing.T, g *group) {
	slabs, err := layout.Of(o.shape)
	require.NoError(t, err)
	for r, m := range g.ranks {
		o.writeOutputs(m, r, m.Slab(0)+uint64(slabs.YOff))
		require.NoError(t, m.Publish(o.combine(r, 0)))
	}
	g.sync()
}

func (o *op) reduce(t *testing.T, g *group) {
	for r, m := range g.ranks {
		require.NoError(t, m.Reduce(o.combine(r, 0)))
	}
	g.sync()
}

// TestFillLeavesAFailedBuffer: a buffer that has ended does not wait for others, so it
// leaves the outputs that they may still add up.
func TestFillLeavesAFailedBuffer(t *testing.T) {
	for name, ends := range map[string]struct {
		failure uint64
		make    func(*group, *op)
	}{
		"bad expert": {protocol.ErrorExpert, func(_ *group, o *op) { o.ids[0][0] = o.shape.NumExperts }},
		"fenced":     {protocol.ErrorFenced, func(g *group, _ *op) { g.ranks[0].SetMembers(1<<protocol.EpochShift | 0b10) }},
	} {
		t.Run(name, func(t *testing.T) {
			g, o, _ := small(t, 2)
			g.fill()
			o.arrives(t, g)
			o.publish(t, g)
			ends.make(g, o)
			require.NoError(t, g.ranks[0].Send(&o.calls[0]))
			g.sync()
			require.Equal(t, ends.failure, g.ranks[0].report().Error)
			require.NoError(t, g.ranks[1].Reduce(o.combine(1, 0)))
			g.sync()
			require.Zero(t, g.ranks[1].report().Error)
			o.checkSums(t, 1)
		})
	}
}

// TestFillIsOrderedByDone: rows of the next operation would say that the outputs
// before are read, but an owner fills its slab before they come: `done` alone tells it.
// If either half of it is left without its effect, or the barrier behind its wait,
// something races.
func TestFillIsOrderedByDone(t *testing.T) {
	testenv.InAll(t)
	emu, seed := emulate(t), testenv.Seed(t)
	emu.Watch(t)
	races := func(n uint64) (found string) {
		t.Run(strconv.FormatUint(n, 10), func(t *testing.T) {
			unsynchronised(t, emu, rand.New(rand.NewPCG(seed, 47+n)), 0, (*group).fill)
			found, _, _ = strings.Cut(emu.Races(), "\n")
		})
		return found
	}
	require.Empty(t, races(0))
	needed := []string{"slots.cuh acquire (done) >= want", "waits.cuh release c.slab.done, c.rank)", "dispatch_plan.cu barrier MW_FLAG_FILL"}
	uses := slices.DeleteFunc(emu.Uses(), func(use string) bool {
		return !slices.ContainsFunc(needed, func(what string) bool { return isUse(t, use, what) })
	})
	require.Len(t, uses, len(needed))
	for _, use := range uses {
		emu.LeaveOut(use)
		found := ""
		for n := uint64(1); found == "" && n < 400; n++ {
			found = races(n)
		}
		emu.LeaveOut("")
		require.NotEmpty(t, found, use)
	}
}

// isUse says whether a use of ordering is in a file, of a kind, and at a text.
func isUse(t testing.TB, use, what string) bool {
	part := strings.SplitN(what, " ", 3)
	at, kind, _ := strings.Cut(use, " ")
	file, line, _ := strings.Cut(at, ":")
	if file != part[0] || kind != part[1] {
		return false
	}
	return strings.Contains(sourceAround(t, file, line, 0), part[2])
}

// TestFillWithRemoteRanks: what messages bring is there, in every form, and the rest
// of the slot is filled.
func TestFillWithRemoteRanks(t *testing.T) {
	for _, flags := range []protocol.Flags{0, protocol.FlagOrdered, protocol.FlagFlat | protocol.FlagOrdered} {
		t.Run(fmt.Sprintf("flags=%#x", flags), func(t *testing.T) {
			g, o, slabs, _ := smallHostsIn(t, 2, flags)
			g.fill()
			for range 2 {
				g.exchange(g.rng, o, slabs)
				for r, m := range g.ranks {
					o.checkFilled(t, m, r, slabs)
				}
			}
		})
	}
}
