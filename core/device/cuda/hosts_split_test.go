package cuda

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/internal/testenv"
)

// splitForms are those of operations whose phases come apart.
var splitForms = map[string]protocol.Flags{
	"usual": 0, "fp8": protocol.FlagFP8, "fp32 outputs": protocol.FlagFP32Outputs, "pre-reduced": protocol.FlagPreReduce,
	"in order": protocol.FlagOrdered, "flat": flat, "flat fp8": flat | protocol.FlagFP8,
}

// narrow makes a group on hosts with rings that hold few rows of an operation. Its
// phases come apart.
func narrow(t *testing.T, rng *rand.Rand, hostOf []int, flags protocol.Flags) (*group, *op, *layout.Slab) {
	return narrowWith(t, rng, hostOf, flags, 2)
}

// narrowWith is narrow with so many slots.
func narrowWith(t *testing.T, rng *rand.Rand, hostOf []int, flags protocol.Flags, slots int) (*group, *op, *layout.Slab) {
	return apartOver(t, rng, mailing{hostOf: hostOf, ringBytes: 1 << 12, messageBytes: 900, length: 4}, flags, slots)
}

// apartOver is narrowWith over rings of other sizes.
func apartOver(t *testing.T, rng *rand.Rand, over mailing, flags protocol.Flags, slots int) (*group, *op, *layout.Slab) {
	ranks := len(over.hostOf)
	s := layout.Shape{MaxTokens: int64(12 * ranks), Hidden: 128, NumExperts: int64(2 * ranks), NumRanks: int64(ranks)}
	s.RowType, s.OutputType = flags.DTypes()
	s.Flat, s.Columns = flags&protocol.FlagFlat != 0, flatColumns(2, flags, 12)
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	g := newGroup(t, ranks, slots, slabs.SizeBytes)
	g.fewest = 12*ranks - 1
	g.pick = eachOnce // of every rank's tokens some go to every rank
	g.putOnHosts(uneven(rng.Uint64()), over)
	for _, m := range g.ranks {
		if !s.RowType.IsFP8() { // several threads cast a value together
			m.threads = threads{plan: 8, row: 8, wait: 8}
		}
	}
	o := g.random(rng, s, 2, flags, 0)
	for r := range o.calls {
		o.calls[r].Split = true
	}
	return g, o, &slabs
}

// firstPhase is that of a dispatch, on every rank.
func (g *group) firstPhase(o *op) {
	for r, m := range g.ranks {
		require.NoError(g.t, m.Send(&o.calls[r]))
	}
	g.allEnded("the first phase of a dispatch")
}

// left is of how many operations and ranks something is left to send.
func (g *group) left(m *member) (n int) {
	for _, slot := range peek[state](g, m.private.Address()).Rest {
		for _, rest := range slot {
			if rest.Turn != 0 {
				n++
			}
		}
	}
	return n
}

// ended waits until a rank has nothing to do. If it does not end, the rank is taken
// out, so that the test can end.
func (g *group) ended(m *member, what string) {
	g.t.Helper()
	done := make(chan error, 1)
	go func() {
		done <- g.d.do(func() error { return g.d.lib.StreamSynchronize(m.stream) })
	}()
	select {
	case err := <-done:
		require.NoError(g.t, err)
	case <-time.After(5 * time.Minute): // kernels run on processors that do much else
		for _, other := range g.ranks {
			other.SetMembers(1 << protocol.EpochShift)
		}
		g.sync()
		require.FailNow(g.t, "does not end: "+what)
	}
}

// allEnded is ended of all ranks.
func (g *group) allEnded(what string) {
	g.t.Helper()
	for _, m := range g.ranks {
		g.ended(m, what)
	}
	for _, m := range g.ranks {
		require.Zero(g.t, m.report().Error, "%s: %v", what, m.Failure())
	}
}

// spoil overwrites what a rank has given to a dispatch; the function returned
// brings it back.
func (o *op) spoil(r int) (restore func()) {
	x, ids, w := slices.Clone(o.x[r]), slices.Clone(o.ids[r]), slices.Clone(o.w[r])
	clear(o.x[r])
	clear(o.w[r])
	for i := range o.ids[r] {
		o.ids[r][i] = -1
	}
	var extra []byte
	if o.extra != nil {
		extra = slices.Clone(o.extra[r])
		clear(o.extra[r])
	}
	return func() {
		copy(o.x[r], x)
		copy(o.ids[r], ids)
		copy(o.w[r], w)
		if extra != nil {
			copy(o.extra[r], extra)
		}
	}
}

// TestHostsFirstPhasesEnd: with rings that hold few of an operation's rows, the first
// phases of all ranks end before any of them has launched a second one, and the
// caller may overwrite what they were given. Then all comes, in every form.
func TestHostsFirstPhasesEnd(t *testing.T) {
	emu, seed := driver(t), testenv.Seed(t)
	for name, flags := range splitForms {
		for i, hostOf := range [][]int{{0, 1}, {0, 1, 2}, {0, 0, 1}} {
			if testing.Short() && i < 2 {
				continue
			}
			rng := rngOf(seed, 61, flags, i)
			emu.Schedule(rng.Uint64(), 16, 6+len(hostOf)*len(hostOf))
			t.Run(fmt.Sprint(name, hostOf), func(t *testing.T) {
				g, o, slabs := narrow(t, rng, hostOf, flags)
				g.inTwoPhases(t, o, slabs)
			})
		}
	}
}

// inTwoPhases runs an operation of all ranks, with the host waiting for each phase.
func (g *group) inTwoPhases(t *testing.T, o *op, slabs *layout.Slab) {
	var restore []func()
	g.firstPhase(o)
	for r := range g.ranks {
		restore = append(restore, o.spoil(r))
	}
	for r, m := range g.ranks {
		require.NoError(t, m.Receive(&o.calls[r]))
		g.snapshot(m, o.calls[r].Slot)
	}
	g.allEnded("a dispatch")
	for r, m := range g.ranks {
		restore[r]()
		require.Zero(t, g.left(m))
	}
	for r, m := range g.ranks {
		o.checkRows(t, m, r)
		o.writeOutputs(m, r, m.Slab(o.calls[r].Slot)+uint64(slabs.YOff))
		require.NoError(t, m.Publish(o.combine(r, 0)))
		g.ended(m, "the first phase of a combine")
		require.NotZero(t, g.left(m)+r, "outputs are left: nobody takes those of rank 0")
	}
	g.allEnded("the first phases of a combine")
	for r, m := range g.ranks {
		require.NoError(t, m.Reduce(o.combine(r, 0)))
	}
	g.allEnded("a combine")
	for r, m := range g.ranks {
		require.Zero(t, g.left(m))
		o.checkSums(t, r)
	}
}

// TestHostsFirstPhaseAlone: a rank ends its first phase though no other one does
// anything.
func TestHostsFirstPhaseAlone(t *testing.T) {
	emu := driver(t)
	rng := rngOf(testenv.Seed(t), 62, 0)
	emu.Schedule(rng.Uint64(), 16, 10)
	g, o, _ := narrow(t, rng, []int{0, 1}, 0)
	require.NoError(t, g.ranks[0].Send(&o.calls[0]))
	g.ended(g.ranks[0], "the first phase of a dispatch")
	require.Equal(t, 1, g.left(g.ranks[0]))
	require.NoError(t, g.ranks[0].Receive(&o.calls[0]))
	require.NoError(t, g.ranks[1].Send(&o.calls[1]))
	require.NoError(t, g.ranks[1].Receive(&o.calls[1]))
	for r, m := range g.ranks {
		g.snapshot(m, 0)
		g.ended(m, "a dispatch")
		require.Zero(t, m.report().Error)
		o.checkRows(t, m, r)
	}
}

// begin is a dispatch of all, and makes its outputs.
func (g *group) begin(t *testing.T, o *op, slabs *layout.Slab) {
	for r, m := range g.ranks {
		require.NoError(t, m.Send(&o.calls[r]))
		require.NoError(t, m.Receive(&o.calls[r]))
		g.snapshot(m, o.calls[r].Slot)
	}
	g.allEnded("a dispatch")
	for r, m := range g.ranks {
		o.checkRows(t, m, r)
		o.writeOutputs(m, r, m.Slab(o.calls[r].Slot)+uint64(slabs.YOff))
	}
}

// inSlot is a rank's part of a dispatch in another slot.
func (o *op) inSlot(r, slot int) *Dispatch {
	d := o.calls[r]
	d.Slot, d.Ticket = slot, uint64(slot)
	return &d
}

// firstOfThree launches first phases: dispatches in slots 1 and 2, a combine in slot 0.
func (g *group) firstOfThree(o, in0 *op, r int) {
	for slot := 1; slot < 3; slot++ {
		require.NoError(g.t, g.ranks[r].Send(o.inSlot(r, slot)))
	}
	c := in0.combine(r, 0)
	c.Split = true
	require.NoError(g.t, g.ranks[r].Publish(c))
}

// secondOf launches what belongs to a slot of firstOfThree.
func (g *group) secondOf(o, in0 *op, r, slot int) {
	if slot > 0 {
		require.NoError(g.t, g.ranks[r].Receive(o.inSlot(r, slot)))
		return
	}
	c := in0.combine(r, 0)
	c.Split = true
	require.NoError(g.t, g.ranks[r].Reduce(c))
}

// TestHostsPhasesRaceWithNobody: what is kept is ordered with what is sent of it.
func TestHostsPhasesRaceWithNobody(t *testing.T) {
	testenv.InAll(t)
	emu := emulate(t)
	emu.Watch(t)
	for name, flags := range watchedForms {
		t.Run(name, func(t *testing.T) {
			rng := rngOf(testenv.Seed(t), 64, flags)
			emu.Schedule(rng.Uint64(), 32, 12)
			g, o, _ := narrow(t, rng, []int{0, 1}, flags)
			for range 2 {
				for r := range g.ranks {
					g.twoAtOnce(o, r)
				}
			}
			g.allEnded("all phases")
			for r := range g.ranks {
				o.checkIdentity(t, r)
			}
			require.Empty(t, emu.Races())
		})
	}
}

// TestHostsPhasesInGraphs: graphs with first phases that have no room, replayed.
func TestHostsPhasesInGraphs(t *testing.T) {
	emu := driver(t)
	for name, flags := range watchedForms {
		t.Run(name, func(t *testing.T) {
			rng := rngOf(testenv.Seed(t), 65, flags)
			emu.Schedule(rng.Uint64(), 16, 10)
			g, o, _ := narrow(t, rng, []int{0, 1}, flags)
			var graphs []recorded
			for r := range g.ranks {
				graphs = append(graphs, g.record(o, r, 3, 0))
			}
			for range 3 {
				g.replay(o, graphs)
			}
			for _, graph := range graphs {
				g.must(func() error { return g.d.lib.GraphExecDestroy(graph.exec) })
			}
		})
	}
}

// TestHostsGraphsWithShorterMessages: a graph with first phases that have no room is
// replayed over links of a later rendezvous, which have shorter messages.
func TestHostsGraphsWithShorterMessages(t *testing.T) {
	emu := driver(t)
	rng := rngOf(testenv.Seed(t), 67, 0)
	emu.Schedule(rng.Uint64(), 16, 10)
	g, o, _ := narrow(t, rng, []int{0, 1}, 0)
	var graphs []recorded
	for r, m := range g.ranks {
		longer := g.offices[r].box
		longer.MessageBytes *= 2
		require.NoError(t, m.SetMailbox(longer))
		graphs = append(graphs, g.record(o, r, 3, 0))
		require.NoError(t, m.SetMailbox(g.offices[r].box))
	}
	for range 3 {
		g.replay(o, graphs)
	}
	for _, graph := range graphs {
		g.must(func() error { return g.d.lib.GraphExecDestroy(graph.exec) })
	}
}

// replay launches a graph per rank and checks what comes of it.
func (g *group) replay(o *op, graphs []recorded) {
	for r, m := range g.ranks {
		g.must(func() error { return g.d.lib.GraphLaunch(graphs[r].exec, m.stream) })
	}
	g.allEnded("a replay")
	for r := range g.ranks {
		o.checkIdentity(g.t, r)
		clear(o.outs[r])
	}
}

// TestHostsReleasedBetweenPhases: what is left of an operation that is given up is
// sent, so that others get it, and what they have left is taken with the next
// operation.
func TestHostsReleasedBetweenPhases(t *testing.T) {
	emu := driver(t)
	for name, flags := range watchedForms {
		t.Run(name, func(t *testing.T) {
			rng := rngOf(testenv.Seed(t), 66, flags)
			emu.Schedule(rng.Uint64(), 16, 10)
			g, o, slabs := narrow(t, rng, []int{0, 1}, flags)
			g.keeps = true
			next := g.random(rng, o.shape, 2, flags, 1)
			g.firstPhase(o)
			require.NoError(t, g.ranks[0].SendRest(&o.calls[0].Call))
			require.NoError(t, g.ranks[1].Receive(&o.calls[1]))
			g.snapshot(g.ranks[1], 0)
			for r, m := range g.ranks {
				require.NoError(t, m.Release(&o.calls[r].Call))
				require.NoError(t, m.Send(&next.calls[r]))
				require.NoError(t, m.Receive(&next.calls[r]))
			}
			g.allEnded("the next operation")
			o.checkRows(t, g.ranks[1], 1)
			for _, m := range g.ranks {
				require.Zero(t, g.left(m))
			}
			g.inTwoPhases(t, o, slabs)
		})
	}
}

// TestHostsSecondPhaseNeverCame: the slot is taken again. What is left of the
// operation before goes first, so that this first phase waits.
func TestHostsSecondPhaseNeverCame(t *testing.T) {
	emu := driver(t)
	rng := rngOf(testenv.Seed(t), 67, 0)
	emu.Schedule(rng.Uint64(), 16, 10)
	g, o, _ := narrow(t, rng, []int{0, 1}, 0)
	g.firstPhase(o)
	for r, m := range g.ranks {
		o.calls[r].Ticket++
		require.NoError(t, m.Send(&o.calls[r]))
		require.NoError(t, m.Receive(&o.calls[r]))
		g.snapshot(m, 0)
	}
	g.allEnded("the next operation")
	for r, m := range g.ranks {
		require.Zero(t, g.left(m))
		o.checkRows(t, m, r)
	}
}

// TestHostsLoseAPeerBetweenPhases: what is left for a rank that is taken out holds no
// other rank up.
func TestHostsLoseAPeerBetweenPhases(t *testing.T) {
	emu := driver(t)
	rng := rngOf(testenv.Seed(t), 68, 0)
	emu.Schedule(rng.Uint64(), 16, 15)
	g, o, slabs := narrow(t, rng, []int{0, 1, 2}, 0)
	g.firstPhase(o)
	g.lose(2, 0, 1)
	for r, m := range g.ranks[:2] {
		require.NoError(t, m.Receive(&o.calls[r]))
	}
	g.allEnded("a dispatch without a lost rank")
	o.forget(2)
	g.ends(t, o, slabs, 0, 1)
}
