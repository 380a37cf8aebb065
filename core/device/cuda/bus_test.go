package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport/fake"
)

// onTheBus is how often a kernel reads memory of the host when all that it waits for
// is there already: rank 0 of eight, with rows for all. A read is a way over the bus
// and back, about as long as a kernel of few rows takes.
var onTheBus = map[int]int{
	kernelPlan:   1, // the members; nothing waits for it until slots are released and free
	kernelPlace:  0,
	kernelNumber: 0, kernelReceive: 0,
	kernelPublish: 0, kernelAgain: 0, kernelWait: 0,
	kernelReduce:  1, // still a member, after the last read
	kernelRelease: 0,
}

const lookEvery = 64 // MW_LOOK_EVERY

// reads is how often a kernel of this rank has read what the host writes.
func (m *member) reads(emu *cudatest.Driver, kernel int) int {
	n := emu.Reads(kernelNames[kernel], uint64(m.host.host))
	return n + emu.Reads(kernelNames[kernel], uint64(m.counts.host))
}

// TestBusWhenAllIsThere: the other ranks come first, in each phase, and rank 0 finds
// all that it waits for.
func TestBusWhenAllIsThere(t *testing.T) {
	for name, form := range map[string]struct {
		flags  protocol.Flags
		owners int // of rows
	}{"usual": {0, 8}, "in order": {protocol.FlagOrdered, 8}, "few owners": {0, 3}} {
		t.Run(name, func(t *testing.T) {
			emu := emulate(t)
			g, o := eight(t, emu, form.flags, form.owners)
			for i := range 2 { // each slot once, so that there is something to release and wait for
				for r := range g.ranks {
					g.identity(o, r, i)
				}
			}
			g.sync()
			emu.CountReads(t)
			g.last(t, o)
			for kernel, want := range onTheBus {
				got := g.ranks[0].reads(emu, kernel)
				switch {
				case kernel == kernelPlan && form.flags&protocol.FlagOrdered != 0:
					continue // no rank can have all counts before it has opened its own slot
				case kernel == kernelWait:
					want += 8 - form.owners // whether each of the others is out: all at once
				}
				require.Equal(t, want, got, kernelNames[kernel])
			}
			o.checkIdentity(t, 0)
		})
	}
}

// eight ranks have two slots, and rows for some of them.
func eight(t *testing.T, emu *cudatest.Driver, flags protocol.Flags, owners int) (*group, *op) {
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 71))
	emu.Schedule(rng.Uint64(), 16, 80)
	s := layout.Shape{MaxTokens: 8, Hidden: 128, NumExperts: 16, NumRanks: 8}
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	g := newGroup(t, 8, 2, slabs.SizeBytes)
	g.fewest = 8
	g.pick = func(_ *rand.Rand, _ int64, at int) int64 { return int64(at % (2 * owners)) }
	o := g.random(rng, s, 8, flags, 0)
	for r, m := range g.ranks {
		var active []int32
		o.calls[r].Active, active = tensor[int32](m, 8)
		for i := range active {
			active[i] = 1
		}
	}
	return g, o
}

// last runs an operation in slot 0, in each phase of which rank 0 comes last.
func (g *group) last(t *testing.T, o *op) {
	first := g.ranks[0]
	others := func(launch func(r int, m *member) error) {
		for r, m := range g.ranks[1:] {
			require.NoError(t, launch(r+1, m))
		}
	}
	ends := func(m *member) { g.must(func() error { return g.d.lib.StreamSynchronize(m.stream) }) }
	othersEnd := func() { others(func(_ int, m *member) error { ends(m); return nil }) }
	slabs, err := layout.Of(o.shape)
	require.NoError(t, err)
	back := func(r int) *Combine { return o.combine(r, g.ranks[r].Slab(0)+uint64(slabs.RowsOff)) }

	others(func(r int, m *member) error { return m.Send(&o.calls[r]) })
	others(func(_ int, m *member) error {
		eventually(t, "rank 0 alone is missing", func() bool { return m.Waits() == rankset.Of(0) })
		return nil
	})
	require.NoError(t, first.Send(&o.calls[0]))
	ends(first)
	othersEnd()
	require.NoError(t, first.Receive(&o.calls[0]))
	ends(first)
	others(func(r int, m *member) error { return m.Receive(&o.calls[r]) })
	others(func(r int, m *member) error { return m.Publish(back(r)) })
	othersEnd()
	require.NoError(t, first.Publish(back(0)))
	require.NoError(t, first.Reduce(back(0)))
	ends(first)
	others(func(r int, m *member) error { return m.Reduce(back(r)) })
	othersEnd()
	again := back(0)
	again.Again = true
	require.NoError(t, first.Publish(again))
	require.NoError(t, first.Release(&o.calls[0].Call))
	g.sync()
	for _, m := range g.ranks {
		require.Zero(t, m.report().Error)
	}
}

// TestBusOfAWait: a wait that turns asks the host now and then alone, also one for
// messages. What the host says then ends it.
func TestBusOfAWait(t *testing.T) {
	for _, remote := range []bool{false, true} {
		t.Run(fmt.Sprintf("remote=%v", remote), func(t *testing.T) {
			emu := emulate(t)
			g, o, _ := small(t, 2)
			kernel := kernelPlan
			if remote {
				g.putOnHosts(fake.New(fake.Config{Seed: 1}), mailing{hostOf: []int{0, 1}, ringBytes: 1 << 14, messageBytes: 1 << 13, length: 16})
				kernel = kernelRemoteTake
			}
			m := g.ranks[0]
			require.NoError(t, m.Send(&o.calls[0]))
			require.NoError(t, m.Receive(&o.calls[0]))
			eventually(t, "it waits", func() bool { return m.Waits() == rankset.Of(1) })
			emu.CountReads(t)
			eventually(t, "it turns", func() bool { return emu.Reads(kernelNames[kernel], 0) > 50*lookEvery })
			looks := m.reads(emu, kernel) // first: it turns on
			loads := emu.Reads(kernelNames[kernel], 0)
			begun := time.Now()
			g.lose(1, 0)
			g.sync()
			t.Logf("%d of %d loads are the host's memory; a loss ended the wait in %v", looks, loads, time.Since(begun))
			require.Positive(t, looks)
			require.Less(t, looks, loads/(lookEvery/2))
			require.Zero(t, m.report().Error)
			require.Equal(t, []int32{1, 0}, o.active[0])
		})
	}
}

// TestGraphOfAnEarlierEpoch: what was recorded asks in each replay which epoch it is.
func TestGraphOfAnEarlierEpoch(t *testing.T) {
	g, o, _ := small(t, 2)
	var graphs []recorded
	for r := range g.ranks {
		graphs = append(graphs, g.record(o, r, 2, 0))
	}
	for epoch := uint64(1); epoch <= 3; epoch++ {
		for r, m := range g.ranks {
			clear(o.outs[r])
			require.NoError(t, m.Restart(100*uint64(epoch)))
			require.NoError(t, m.Join(epoch))
			m.SetMembers(uint64(epoch)<<protocol.EpochShift | 3)
		}
		for r, m := range g.ranks {
			g.must(func() error { return g.d.lib.GraphLaunch(graphs[r].exec, m.stream) })
		}
		g.sync()
		for r, m := range g.ranks {
			require.Zero(t, m.report().Error)
			o.checkIdentity(t, r)
		}
	}
	for r, m := range g.ranks { // the host's word of the epoch before belongs to no member
		m.SetMembers(2<<protocol.EpochShift | 3)
		g.must(func() error { return g.d.lib.GraphLaunch(graphs[r].exec, m.stream) })
	}
	g.sync()
	for r, m := range g.ranks {
		require.EqualValues(t, protocol.ErrorFenced, m.report().Error)
		g.must(func() error { return g.d.lib.GraphExecDestroy(graphs[r].exec) })
	}
}
