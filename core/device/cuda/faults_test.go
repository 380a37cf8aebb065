package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/testenv"
)

// small is a group and an operation of it that all tests of faults use.
func small(t *testing.T, ranks int) (*group, *op, *layout.Slab) { return smallIn(t, ranks, 0) }

// smallIn is small in a form.
func smallIn(t *testing.T, ranks int, flags protocol.Flags) (*group, *op, *layout.Slab) {
	emu := driver(t)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 13))
	emu.Schedule(rng.Uint64(), 16, 8+ranks*ranks)
	s := layout.Shape{MaxTokens: 6, Hidden: 128, NumExperts: int64(2 * ranks), NumRanks: int64(ranks)}
	s.Flat, s.Columns = flags&protocol.FlagFlat != 0, flatColumns(2, flags, 0)
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	g := newGroup(t, ranks, 2, slabs.SizeBytes)
	g.fewest, g.rng = 1, rng
	o := g.random(rng, s, 2, flags, 0)
	for r, m := range g.ranks {
		var active []int32
		o.calls[r].Active, active = tensor[int32](m, ranks)
		for i := range active {
			active[i] = 1
		}
		o.active = append(o.active, active)
	}
	return g, o, &slabs
}

// lose takes a rank out, as the host does when its process has ended.
func (g *group) lose(rank int, among ...int) {
	for _, r := range among {
		members := g.ranks[r].hostControl().Members
		g.ranks[r].SetQuiesced(rankset.Of(rank))
		g.ranks[r].SetMembers(members &^ (1 << rank))
	}
}

// eventually waits for what the device is about to say.
func eventually(t *testing.T, what string, ready func() bool) {
	require.Eventually(t, ready, time.Minute, time.Millisecond, what)
}

// TestLostWhileOthersWait: a rank that never sends is taken out by the host
// while the kernels wait for it; they end, say so, and use nothing of it.
func TestLostWhileOthersWait(t *testing.T) {
	g, o, slabs := small(t, 3)
	for r := range 2 {
		require.NoError(t, g.ranks[r].Send(&o.calls[r]))
		require.NoError(t, g.ranks[r].Receive(&o.calls[r]))
	}
	g.lose(2, 0, 1)
	g.sync()
	for r := range 2 {
		require.Zero(t, g.ranks[r].report().Error)
		require.Equal(t, []int32{1, 1, 0}, o.active[r])
		for l := range int(slabs.LocalExperts) {
			require.Zero(t, o.ranges[r][3*l+2])
		}
		o.writeOutputs(g.ranks[r], r, g.ranks[r].Slab(0)+uint64(slabs.YOff))
		require.NoError(t, g.ranks[r].Publish(o.combine(r, 0)))
		require.NoError(t, g.ranks[r].Reduce(o.combine(r, 0)))
	}
	g.sync()
	for r := range 2 {
		o.forget(2)
		o.checkSums(t, r)
	}
	g.goesOn(o, 2)
}

// TestTimedOutIsReported: past its deadline a wait names the rank to the host and
// goes on until the host decides.
func TestTimedOutIsReported(t *testing.T) {
	g, o, _ := small(t, 2)
	o.calls[0].TimeoutNs = int64(time.Millisecond)
	require.NoError(t, g.ranks[0].Send(&o.calls[0]))
	require.NoError(t, g.ranks[0].Receive(&o.calls[0]))
	eventually(t, "rank 1 is late", func() bool { return g.ranks[0].TakeTimedOut() == rankset.Of(1) })
	g.lose(1, 0)
	g.sync()
	require.Equal(t, []int32{1, 0}, o.active[0])
	require.Zero(t, g.ranks[0].report().Error)
}

// TestNoHost: if the host does not decide, the wait ends all the same, and the buffer
// with it.
func TestNoHost(t *testing.T) {
	g, o, _ := small(t, 2)
	o.calls[0].TimeoutNs = int64(time.Millisecond)
	require.NoError(t, g.ranks[0].Send(&o.calls[0]))
	require.NoError(t, g.ranks[0].Receive(&o.calls[0]))
	g.sync()
	require.EqualValues(t, protocol.ErrorNoHost, g.ranks[0].report().Error)
	require.EqualValues(t, 1, g.ranks[0].report().Detail[0])
}

// TestFencedWritesNothing: a rank that finds itself out stores no rows.
func TestFencedWritesNothing(t *testing.T) {
	g, o, _ := small(t, 2)
	g.lose(0, 0) // rank 0 hears that it is out itself
	require.NoError(t, g.ranks[0].Send(&o.calls[0]))
	require.NoError(t, g.ranks[0].Receive(&o.calls[0]))
	g.sync()
	require.EqualValues(t, protocol.ErrorFenced, g.ranks[0].report().Error)
	require.Zero(t, o.counts[0][0])
}

// TestMismatch: both sides say what differs, with both values.
func TestMismatch(t *testing.T) {
	g, o, _ := small(t, 2)
	o.calls[1].Shape.MaxTokens = 7
	o.calls[1].NumTokens = min(o.calls[1].NumTokens, 1)
	for r, m := range g.ranks {
		m.cfg.SlabBytes += 1 << 30 // the larger shape is checked elsewhere
		require.NoError(t, m.Send(&o.calls[r]))
		require.NoError(t, m.Receive(&o.calls[r]))
	}
	g.sync()
	for r, m := range g.ranks {
		require.EqualValues(t, protocol.ErrorMismatch, m.report().Error)
		d := m.report().Detail
		require.EqualValues(t, [4]uint64{uint64(1 - r), 1, uint64(6 + r), uint64(7 - r)}, d)
	}
}

// TestBadExpert: an id out of range ends in an error that names it.
func TestBadExpert(t *testing.T) {
	g, o, _ := small(t, 1)
	o.ids[0][len(o.ids[0])-1] = 99
	require.NoError(t, g.ranks[0].Send(&o.calls[0]))
	require.NoError(t, g.ranks[0].Receive(&o.calls[0]))
	g.sync()
	require.EqualValues(t, protocol.ErrorExpert, g.ranks[0].report().Error)
	require.EqualValues(t, 99, g.ranks[0].report().Detail[1])
	require.EqualError(t, g.ranks[0].Failure(), fmt.Sprintf("topk_idx[%d, 1] is 99", o.tokens[0]-1))
}

// TestReleasedIsNotCombined: a combine of what another rank has released gets an
// error that names the rank, and does not hang.
func TestReleasedIsNotCombined(t *testing.T) {
	g, o, _ := small(t, 2)
	for i := range o.ids[0] {
		o.ids[0][i] = int64(i%2) + 2 // all at rank 1
	}
	for r, m := range g.ranks {
		require.NoError(t, m.Send(&o.calls[r]))
		require.NoError(t, m.Receive(&o.calls[r]))
	}
	require.NoError(t, g.ranks[1].Release(&o.calls[1].Call))
	require.NoError(t, g.ranks[0].Publish(o.combine(0, 0)))
	require.NoError(t, g.ranks[0].Reduce(o.combine(0, 0)))
	g.sync()
	require.EqualValues(t, protocol.ErrorReleased, g.ranks[0].report().Error)
	require.EqualValues(t, 1, g.ranks[0].report().Detail[0])
}

// TestCombineTwice: a handle may be combined again, with other outputs.
func TestCombineTwice(t *testing.T) {
	g, o, slabs := small(t, 2)
	for r, m := range g.ranks {
		require.NoError(t, m.Send(&o.calls[r]))
		require.NoError(t, m.Receive(&o.calls[r]))
	}
	g.sync()
	for round := range 3 {
		for r, m := range g.ranks {
			at := m.Slab(0) + uint64(slabs.RowsOff)
			if round > 0 {
				at, _ = tensor[byte](m, int(slabs.LocalExperts*slabs.RowsPerExpert*slabs.OutputBytes()))
				o.writeOutputs(m, r, at)
			}
			c := o.combine(r, at)
			c.Again = round > 0
			require.NoError(t, m.Publish(c))
			require.NoError(t, m.Reduce(c))
		}
		g.sync()
		for r, m := range g.ranks {
			require.Zero(t, m.report().Error)
			if round == 0 {
				o.checkIdentity(t, r)
			} else {
				o.checkSums(t, r)
			}
		}
	}
}

// TestEmptyRanks: ranks without tokens take part.
func TestEmptyRanks(t *testing.T) {
	g, o, _ := small(t, 2)
	o.calls[0].NumTokens, o.tokens[0] = 0, 0
	o.calls[0].X, o.calls[0].TopkIdx = 0, 0
	for i := range 5 {
		for r := range g.ranks {
			g.identity(o, r, i%2)
		}
	}
	g.sync()
	require.Zero(t, g.ranks[0].report().Error)
	o.checkIdentity(t, 1)
}

// goesOn makes more exchanges with the first ranks of a group, which has lost the others.
func (g *group) goesOn(o *op, ranks int) {
	for i := range 4 {
		for r := range ranks {
			g.identity(o, r, i%2)
		}
	}
	g.sync()
	for r := range ranks {
		require.Zero(g.t, g.ranks[r].report().Error)
		o.checkIdentity(g.t, r)
	}
}
