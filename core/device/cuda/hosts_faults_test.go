package cuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport/fake"
)

// TestHostsLoseARank: a remote rank that never sends is taken out by the host while
// the kernels wait for its messages; they end, say so, and use nothing of it.
func TestHostsLoseARank(t *testing.T) {
	g, o, slabs, offices := smallHosts(t, 3)
	for r := range 2 {
		require.NoError(t, g.ranks[r].Send(&o.calls[r]))
		require.NoError(t, g.ranks[r].Receive(&o.calls[r]))
		offices[r].links[2].Break(errors.New("lost"))
	}
	g.lose(2, 0, 1)
	g.sync()
	o.forget(2)
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
		require.Zero(t, g.ranks[r].report().Error)
		o.checkSums(t, r)
	}
	g.goesOn(o, 2)
}

// TestHostsLoseOutputs: a remote rank is taken out between a dispatch and its
// outputs.
func TestHostsLoseOutputs(t *testing.T) {
	g, o, slabs, _ := smallHosts(t, 2)
	for r, m := range g.ranks {
		require.NoError(t, m.Send(&o.calls[r]))
		require.NoError(t, m.Receive(&o.calls[r]))
	}
	g.sync()
	o.writeOutputs(g.ranks[0], 0, g.ranks[0].Slab(0)+uint64(slabs.YOff))
	require.NoError(t, g.ranks[0].Publish(o.combine(0, 0)))
	require.NoError(t, g.ranks[0].Reduce(o.combine(0, 0)))
	g.lose(1, 0)
	g.sync()
	require.Zero(t, g.ranks[0].report().Error)
	require.Equal(t, []int32{1, 0}, o.active[0])
	o.forget(1)
	o.checkSums(t, 0)
}

// TestHostsTimedOut: past its deadline a wait for a message names the rank to the
// host, and goes on until the host decides.
func TestHostsTimedOut(t *testing.T) {
	g, o, _, _ := smallHosts(t, 2)
	o.calls[0].TimeoutNs = int64(time.Millisecond)
	require.NoError(t, g.ranks[0].Send(&o.calls[0]))
	require.NoError(t, g.ranks[0].Receive(&o.calls[0]))
	eventually(t, "rank 1 is late", func() bool { return g.ranks[0].TakeTimedOut() == rankset.Of(1) })
	g.lose(1, 0)
	g.sync()
	require.Equal(t, []int32{1, 0}, o.active[0])
	require.Zero(t, g.ranks[0].report().Error)
}

// TestHostsProxyEnds: kernels that wait for messages are told that the proxy has ended.
func TestHostsProxyEnds(t *testing.T) {
	g, o, _, offices := smallHosts(t, 2)
	require.NoError(t, g.ranks[0].Send(&o.calls[0]))
	require.NoError(t, g.ranks[0].Receive(&o.calls[0]))
	eventually(t, "its rows are sent", func() bool { return offices[0].proxy.Stats().Sent == 1 })
	offices[0].proxy.Stop()
	g.sync()
	require.Equal(t, FailedProxy, g.ranks[0].Failure().Kind)
}

// TestHostsMismatch: both sides say what differs, with both values.
func TestHostsMismatch(t *testing.T) {
	g, o, _, _ := smallHosts(t, 2)
	o.calls[1].Shape.Hidden = 64
	for r, m := range g.ranks {
		require.NoError(t, m.Send(&o.calls[r]))
		require.NoError(t, m.Receive(&o.calls[r]))
	}
	g.sync()
	for r, own := range []uint64{128, 64} {
		f := g.ranks[r].Failure()
		require.Equal(t, FailedMismatch, f.Kind)
		require.Equal(t, [4]uint64{uint64(1 - r), 2, own, 192 - own}, f.Detail)
	}
}

// TestHostsLeftOut: a remote rank that the caller leaves out gets no rows, but a
// message: it does not wait for this rank in vain.
func TestHostsLeftOut(t *testing.T) {
	g, o, _, _ := smallHosts(t, 2)
	o.active[0][1] = 0
	for r := range g.ranks {
		g.identity(o, r, 0)
	}
	g.sync()
	require.Zero(t, g.ranks[0].report().Error)
	require.Zero(t, g.ranks[1].report().Error)
	require.Equal(t, []int32{1, 0}, o.active[0])
	require.Equal(t, []int32{1, 1}, o.active[1])
	for l := range 2 { // of the rows of each other neither has any
		require.Zero(t, o.ranges[0][2*l+1])
		require.Zero(t, o.ranges[1][2*l])
	}
	o.checkWithout(t, 0, 1)
	o.checkWithout(t, 1, 0)
	o.active[0][1] = 1
	for i := range 3 {
		for r := range g.ranks {
			g.identity(o, r, (i+1)%2)
		}
	}
	g.sync()
	for r := range g.ranks {
		require.Zero(t, g.ranks[r].report().Error)
		o.checkIdentity(t, r)
	}
}

// checkWithout compares rank r's sums with those of all ranks but the lost one.
func (o *op) checkWithout(t *testing.T, r, lost int) {
	o.forget(lost)
	o.checkIdentity(t, r)
	o.lost = nil
}

// TestHostsLeftOutRowsCome: rows of a remote rank that was left out are taken later,
// with those of the next operation. They were never counted, so what lies where
// their outputs would be is not sent.
func TestHostsLeftOutRowsCome(t *testing.T) {
	g, o, slabs, _ := smallHosts(t, 2)
	o.active[0][1] = 0
	calls := func(slot int) {
		for r, m := range g.ranks {
			c := o.calls[r]
			c.Slot, c.Ticket = slot, uint64(slot)
			require.NoError(t, m.Send(&c))
			require.NoError(t, m.Receive(&c))
		}
		g.sync()
	}
	calls(0)
	o.active[0][1] = 1
	calls(1)
	y := region(g.ranks[0].Slab(0), layout.Region{Off: slabs.YOff, Bytes: slabs.Rows().Bytes})
	for i := range y {
		y[i] = 0x3f // no rank has written there
	}
	for r, m := range g.ranks {
		c := o.combine(r, m.Slab(0)+uint64(slabs.RowsOff))
		require.NoError(t, m.Publish(c))
		require.NoError(t, m.Reduce(c))
	}
	g.sync()
	for _, m := range g.ranks {
		require.Zero(t, m.report().Error)
	}
	o.checkWithout(t, 0, 1)
	o.checkWithout(t, 1, 0)
}

// TestHostsRefuse: a row that no message holds is refused before anything happens.
func TestHostsRefuse(t *testing.T) {
	g, o, slabs, offices := smallHosts(t, 2)
	box := offices[0].box
	box.MessageBytes = 300
	require.NoError(t, g.ranks[0].SetMailbox(box))
	require.ErrorContains(t, g.ranks[0].Send(&o.calls[0]), "at most 300")
	require.NoError(t, g.ranks[0].SetMailbox(offices[0].box))
	for _, ranks := range []rankset.Set{rankset.Of(0), rankset.Of(2)} { // itself, no rank of the group
		require.Error(t, g.ranks[0].SetMailbox(Mailbox{Ranks: ranks}))
	}
	g.exchange(g.rng, o, slabs)
}

// TestHostsMessagesJustFit: a message of exactly as many bytes as CheckRemote asks
// for holds a row.
func TestHostsMessagesJustFit(t *testing.T) {
	for _, flags := range []protocol.Flags{0, protocol.FlagFP8, protocol.FlagFP32Outputs, flat, flat | protocol.FlagNoRouting, flat | protocol.FlagFP8} {
		emu := driver(t)
		rng := rand.New(rand.NewPCG(testenv.Seed(t), uint64(flags)))
		s := layout.Shape{MaxTokens: 6, Hidden: 128, NumExperts: 4, NumRanks: 2}
		s.RowType, s.OutputType = flags.DTypes()
		s.Flat, s.Columns = flags&protocol.FlagFlat != 0, flatColumns(2, flags, 7)
		slabs, err := layout.Of(s)
		require.NoError(t, err)
		t.Run("", func(t *testing.T) {
			emu.Schedule(rng.Uint64(), 16, 12)
			g := newGroup(t, 2, 2, slabs.SizeBytes)
			least := leastMessage(&slabs, 2)
			g.putOnHosts(fake.New(fake.Config{Seed: 1}), mailing{hostOf: hosts(2, 1), ringBytes: 1 << 12, messageBytes: least, length: 2})
			g.exchange(rng, g.random(rng, s, 2, flags, 0), &slabs)
			g.ranks[0].remote.messageBytes--
			require.Error(t, g.ranks[0].CheckRemote(&slabs, 2))
		})
	}
}

// TestHostsLeasesTooShort: a lease that holds no row ends the buffer with words of
// its own.
func TestHostsLeasesTooShort(t *testing.T) {
	g, o, slabs := small(t, 2)
	g.putOnHosts(fake.New(fake.Config{Seed: 1}), mailing{hostOf: hosts(2, 1), ringBytes: 1 << 12, messageBytes: 300, length: 2})
	g.ranks[0].remote.messageBytes = leastMessage(slabs, 2)
	o.ids[0][0] = slabs.LocalExperts // one of rank 1
	require.NoError(t, g.ranks[0].Send(&o.calls[0]))
	g.sync()
	f := g.ranks[0].Failure()
	require.Equal(t, Failure{Kind: FailedMessage, Detail: [4]uint64{1, 300}}, f)
	require.EqualError(t, f, "a message of 300 bytes to rank 1 has no room for a row, or for the counts")
}

// TestHostsLeasesTooShortForCounts: nor are counts written past the end of a lease.
func TestHostsLeasesTooShortForCounts(t *testing.T) {
	driver(t)
	s := layout.Shape{MaxTokens: 2, Hidden: 8, NumExperts: 2 * 64, NumRanks: 2}
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	g := newGroup(t, 2, 2, slabs.SizeBytes)
	lease := int64(remoteHeadBytes + 4*64 - 4)
	g.putOnHosts(fake.New(fake.Config{Seed: 1}), mailing{hostOf: hosts(2, 1), ringBytes: 1 << 12, messageBytes: lease, length: 2})
	g.ranks[0].remote.messageBytes = leastMessage(&slabs, 2)
	o := g.random(rand.New(rand.NewPCG(testenv.Seed(t), 43)), s, 2, protocol.FlagOrdered, 0)
	require.NoError(t, g.ranks[0].Send(&o.calls[0]))
	g.sync()
	require.Equal(t, Failure{Kind: FailedMessage, Detail: [4]uint64{1, uint64(lease)}}, g.ranks[0].Failure())
}

// TestHostsGraphsOfLocalRanks: a graph that was recorded when no rank was remote has no
// launches that send messages, and says so when some are.
func TestHostsGraphsOfLocalRanks(t *testing.T) {
	for _, flags := range moreForms {
		t.Run(fmt.Sprintf("flags=%#x", flags), func(t *testing.T) {
			g, o, _ := smallIn(t, 3, flags)
			graph := g.record(o, 0, 1, 0)
			g.putOnHosts(fake.New(fake.Config{Seed: 1}), mailing{hostOf: []int{0, 0, 1}, ringBytes: 1 << 14, messageBytes: 1 << 13, length: 16})
			g.must(func() error { return g.d.lib.GraphLaunch(graph.exec, g.ranks[0].stream) })
			g.sync()
			f := g.ranks[0].Failure()
			require.Equal(t, Failure{Kind: FailedNoRemote, Detail: [4]uint64{1 << 2}}, f)
			require.EqualError(t, f, "the graph was recorded when no rank was on another host, now 1 of them are: record it again")
			g.must(func() error { return g.d.lib.GraphExecDestroy(graph.exec) })
		})
	}
}

// TestHostsRunAhead: operations in two slots of which several are under way, with
// rings that hold less than one operation, and the host waits at the end
// only.
func TestHostsRunAhead(t *testing.T) {
	emu := driver(t)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 5))
	for range 4 {
		emu.Schedule(rng.Uint64(), 32, 12)
		t.Run("", func(t *testing.T) {
			g, o := g2(t, rng)
			g.runAhead(t, o, 4)
		})
	}
}

func g2(t *testing.T, rng *rand.Rand) (*group, *op) {
	s := layout.Shape{MaxTokens: 12, Hidden: 64, NumExperts: 4, NumRanks: 2}
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	g := newGroup(t, 2, 2, slabs.SizeBytes)
	g.fewest = 10
	g.putOnHosts(uneven(rng.Uint64()), mailing{hostOf: hosts(2, 1), ringBytes: 1 << 12, messageBytes: 700, length: 4})
	return g, g.random(rng, s, 2, 0, 0)
}

// runAhead begins operations on all ranks before any of them is waited for, and
// checks the last one.
func (g *group) runAhead(t *testing.T, o *op, rounds int) {
	t.Helper()
	for range rounds {
		for r := range g.ranks {
			g.twoAtOnce(o, r)
		}
	}
	g.sync()
	for r, m := range g.ranks {
		require.Zero(t, m.report().Error, "%v", m.Failure())
		o.checkIdentity(t, r)
	}
}

// twoAtOnce launches two dispatches before their rows are waited for, and two
// combines before theirs.
func (g *group) twoAtOnce(o *op, r int) {
	m, c := g.ranks[r], o.calls[r]
	s, err := layout.Of(o.shape)
	require.NoError(g.t, err)
	each := func(f func(slot int) error) {
		for slot := range 2 {
			require.NoError(g.t, f(slot))
		}
	}
	combine := func(slot int) *Combine {
		out := o.combine(r, m.Slab(slot)+uint64(s.RowsOff))
		out.Slot, out.Ticket = slot, uint64(slot)
		return out
	}
	call := func(slot int) *Dispatch { c.Slot, c.Ticket = slot, uint64(slot); return &c }
	each(func(slot int) error { return m.Send(call(slot)) })
	each(func(slot int) error { return m.Receive(call(slot)) })
	each(func(slot int) error { return m.Publish(combine(slot)) })
	each(func(slot int) error { return m.Reduce(combine(slot)) })
}

// TestHostsReleasedAhead: a rank that has given an operation back without a sum of
// its own takes the outputs of all combines of it that a remote rank makes, and so
// what that one sends behind them.
func TestHostsReleasedAhead(t *testing.T) {
	g, o, _, _ := smallHosts(t, 2)
	for i := range o.ids[0] {
		o.ids[0][i] = 2 // has outputs of rank 1 to come
	}
	for i := range o.ids[1] {
		o.ids[1][i] = 3 // none at rank 0, so rank 1 does not wait for its outputs
	}
	for range 2 {
		for r, m := range g.ranks {
			require.NoError(t, m.Send(&o.calls[r]))
			require.NoError(t, m.Receive(&o.calls[r]))
		}
		require.NoError(t, g.ranks[0].Release(&o.calls[0].Call))
		g.combineTwice(o, 1)
		for r := range g.ranks {
			g.identity(o, r, 1)
		}
	}
	eventually(t, "all have come to the end", func() bool {
		idle := true
		g.must(func() error {
			for _, m := range g.ranks {
				idle = idle && g.d.lib.StreamQuery(m.stream) == nil
			}
			return nil
		})
		return idle
	})
	g.sync()
	for r, m := range g.ranks {
		require.Zero(t, m.report().Error, "%v", m.Failure())
		o.checkIdentity(t, r)
	}
}

// combineTwice launches two combines of what a rank has in slot 0.
func (g *group) combineTwice(o *op, r int) {
	s, err := layout.Of(o.shape)
	require.NoError(g.t, err)
	m := g.ranks[r]
	for i := range 2 {
		c := o.combine(r, m.Slab(0)+uint64(s.RowsOff))
		c.Again = i > 0
		require.NoError(g.t, m.Publish(c))
		require.NoError(g.t, m.Reduce(c))
	}
}
