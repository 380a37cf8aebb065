package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/telemetry"
)

// counted is what plain loops over the routing say of one rank.
type counted struct {
	operations, tokens, selected uint64
	to, from, experts            []uint64
}

// add counts one operation of all ranks.
func (c *counted) add(all []*op, self int) {
	s := shapeOf(len(all))
	local := int(s.NumExperts) / len(all)
	for source, o := range all {
		for t := range o.args.NumTokens {
			seen := map[int64]bool{}
			for _, e := range o.ids.values[t*topK : (t+1)*topK] {
				if e < 0 {
					continue
				}
				if source == self {
					c.selected++
				}
				if seen[e] { // one expert twice is one row
					continue
				}
				seen[e] = true
				owner := int(e) / local
				if source == self {
					c.to[owner]++
				}
				if owner == self {
					c.from[source]++
					c.experts[int(e)%local]++
				}
			}
		}
	}
	c.operations++
	c.tokens += uint64(all[self].args.NumTokens)
}

func newCounted(ranks int) *counted {
	return &counted{to: make([]uint64, ranks), from: make([]uint64, ranks), experts: make([]uint64, 2)}
}

func sum(values []uint64) (total uint64) {
	for _, v := range values {
		total += v
	}
	return total
}

// check compares the statistics with the loops.
func (c *counted) check(t *testing.T, r *rank) {
	s, err := r.Stats()
	require.NoError(t, err)
	h := uint64(shapeOf(r.ranks).Hidden)
	require.Equal(t, c.to, s.RowsTo)
	require.Equal(t, c.from, s.RowsFrom)
	require.Equal(t, c.experts, s.Experts)
	require.Equal(t, 2*c.operations, s.Records)
	for _, k := range []telemetry.Totals{s.Dispatch, s.Combine} {
		require.Equal(t, c.operations, k.Done)
		require.Zero(t, k.Failed+k.Cancelled)
		require.Equal(t, c.tokens, k.Tokens)
		require.Equal(t, c.operations, sum(k.Times))
		require.Equal(t, c.operations, sum(k.Waits))
		require.LessOrEqual(t, k.Wait, k.Time)
		require.LessOrEqual(t, k.Max, k.Time)
		require.LessOrEqual(t, sum(k.Last), c.operations)
	}
	require.Equal(t, sum(c.to), s.Dispatch.RowsOut)
	require.Equal(t, sum(c.from), s.Dispatch.RowsIn)
	require.Equal(t, sum(c.to)*(2*h+4), s.Dispatch.Bytes)
	require.Equal(t, c.selected, s.Combine.RowsOut)
	require.Equal(t, (c.selected+sum(c.from))*2*h, s.Combine.Bytes, "read, and copied")
	n := r.Counters()
	require.Equal(t, []uint64{c.operations, c.operations}, []uint64{n.NumDispatches, n.NumCombines})
	require.Equal(t, sum(c.from)*2*h, n.NumBytesCopied)
	require.Equal(t, c.selected*2*h, n.NumBytesReduced)
	require.Equal(t, c.to, n.NumRowsSentTo)
}

// TestStats: what the device has counted is what loops over the routing count, in
// plain calls and in graphs, in one epoch and in the next.
func TestStats(t *testing.T) {
	for _, ranks := range []int{1, 3} {
		t.Run(fmt.Sprintf("R=%d", ranks), func(t *testing.T) { statsOf(t, ranks) })
	}
}

func statsOf(t *testing.T, ranks int) {
	group := newGroup(t, ranks)
	want := make([]*counted, ranks)
	for i := range want {
		want[i] = newCounted(ranks)
	}
	run := func(all []*op, times int) {
		for range times {
			for i := range want {
				want[i].add(all, i)
			}
		}
	}
	for i := range uint64(3) {
		all := ops(t, group, 100+i)
		roundOf(all)
		run(all, 1)
	}
	checkAll(t, group, want)
	all := ops(t, group, 110)
	replayed(group, all, 3)
	run(all, 3)
	checkAll(t, group, want)
	update(t, group)
	all = ops(t, group, 111)
	roundOf(all)
	run(all, 1)
	checkAll(t, group, want)
}

func checkAll(t *testing.T, group []*rank, want []*counted) {
	for i, r := range group {
		want[i].check(t, r)
	}
}

// replayed launches a graph of n operations of each rank.
func replayed(group []*rank, all []*op, n int) {
	var graphs []libcuda.GraphExec
	for _, o := range all {
		graphs = append(graphs, record(o, n))
	}
	for i, r := range group {
		r.must(func() error { return r.emu.GraphLaunch(graphs[i], libcuda.Stream(r.stream)) })
	}
	for i, r := range group {
		r.sync()
		r.must(func() error { return r.emu.GraphExecDestroy(graphs[i]) })
	}
}

// TestRecords: each operation is there once, its times in order, and the ranks
// that it has waited for by name.
func TestRecords(t *testing.T) {
	group := newGroup(t, 2)
	all := ops(t, group, 120)
	all[0].run()
	require.Eventually(t, func() bool { return group[0].DeviceWait(1) != 0 }, connectIn, time.Millisecond)
	all[1].run()
	for _, r := range group {
		r.sync()
	}
	records, err := group[0].Records(0, 0)
	require.NoError(t, err)
	require.Len(t, records, 2)
	for i, r := range records {
		require.Equal(t, telemetry.Dispatch+telemetry.Kind(i), r.Kind)
		require.Zero(t, r.Op)
		require.EqualValues(t, i, r.Combine)
		require.EqualValues(t, all[0].args.NumTokens, r.Tokens)
		times := []int64{r.Start, max(r.Place, r.Start), r.Sent, r.Resume, r.Seen, r.End}
		require.IsIncreasing(t, append([]int64{0}, unlike(times)...))
	}
	first := records[0]
	require.True(t, first.Missing.Has(1))
	require.EqualValues(t, 1, first.Last)
	require.Positive(t, first.LastAlone)
	require.GreaterOrEqual(t, first.Wait, first.LastAlone)
	s, err := group[0].Stats()
	require.NoError(t, err)
	require.GreaterOrEqual(t, s.Dispatch.WaitFor[1], uint64(first.LastAlone))
	require.EqualValues(t, 1, s.Dispatch.Last[1])
	require.Eventually(t, func() bool { // the watcher of rank 0 has put them there
		theirs, err := group[1].Records(0, 0)
		return err == nil && len(theirs) == 2
	}, connectIn, time.Millisecond)
	_, err = group[0].Records(2, 0)
	require.ErrorIs(t, err, ep.ErrInvalid)
}

// unlike leaves out moments that are the one before.
func unlike(times []int64) (out []int64) {
	for i, at := range times {
		if i == 0 || at != times[i-1] {
			out = append(out, at)
		}
	}
	return out
}

// TestManyRecords: when the watcher sleeps for longer than the device's ring
// lasts, the latest are there and totals by rank are whole; it is known how many
// are missing.
func TestManyRecords(t *testing.T) {
	emu := cudatest.Emulate(t)
	slow := newDrowsy(inproc.New(1, layout.ControlBytes)[0])
	r := newRank(t, emu, slow, configOf(t, 1))
	t.Cleanup(func() {
		slow.release()
		r.close()
	})
	require.NoError(t, r.Connect(connectIn))
	o := newOp(r, rand.New(rand.NewPCG(testenv.Seed(t), 130)))
	o.args.NumTokens, o.combin.NumTokens = 1, 1
	graph := record(o, 8)
	slow.hold()
	const turns = protocol.RecordRing/16 + 2
	for range turns {
		r.must(func() error { return r.emu.GraphLaunch(graph, libcuda.Stream(r.stream)) })
		r.sync()
	}
	s, err := r.Stats()
	require.NoError(t, err)
	want := newCounted(1)
	want.add([]*op{o}, 0)
	require.EqualValues(t, turns*16, s.Records)
	require.EqualValues(t, protocol.RecordRing-1, s.Dispatch.Done+s.Combine.Done)
	require.EqualValues(t, turns*8*want.to[0], s.RowsTo[0])
	records, err := r.Records(0, 0)
	require.NoError(t, err)
	require.Len(t, records, protocol.RecordRing-1)
	require.EqualValues(t, turns*8-1, records[len(records)-1].Op)
	r.must(func() error { return r.emu.GraphExecDestroy(graph) })
}

// observedGroup is a group in which waits are slow at once.
func observedGroup(t *testing.T, ranks int, change func(*cuda.Config)) []*rank {
	emu := cudatest.Emulate(t)
	var group []*rank
	for _, dom := range inproc.New(ranks, layout.ControlBytes) {
		cfg := configOf(t, ranks)
		change(&cfg)
		group = append(group, newRank(t, emu, dom, cfg))
	}
	t.Cleanup(func() { closeAll(group) })
	for _, r := range group {
		require.NoError(t, r.Connect(connectIn))
	}
	return group
}

// TestEvents: of a slow rank and of a lost one there is one event, with what waited.
func TestEvents(t *testing.T) {
	var noted atomic.Uint64
	group := observedGroup(t, 3, func(c *cuda.Config) { c.SlowAfter, c.EventCount = time.Nanosecond, &noted })
	all := ops(t, group, 140)
	for _, o := range all[:2] {
		o.dispatch()
	}
	slow := func() (ev telemetry.Event, found bool) {
		events, _ := group[0].Events(0)
		for _, ev := range events {
			if ev.Rank == 2 && ev.Kind == telemetry.Slow {
				return ev, true
			}
		}
		return ev, false
	}
	require.Eventually(t, func() bool { _, found := slow(); return found }, connectIn, time.Millisecond)
	ev, _ := slow()
	require.Equal(t, "dispatch", ev.Waiting)
	require.Equal(t, "its data has not come", ev.Why)
	require.Zero(t, ev.Op)
	require.Positive(t, ev.WaitedNs)
	inproc.Kill(group[0].dom, 2)
	for _, o := range all[:2] {
		o.combine()
	}
	for _, o := range all[:2] {
		o.r.sync()
	}
	why := map[string]int{}
	require.Eventually(t, func() bool {
		clear(why)
		for _, r := range group[:2] {
			events, _ := r.Events(0)
			for _, ev := range events {
				if ev.Kind == telemetry.Lost {
					require.Equal(t, 2, ev.Rank)
					why[ev.Why]++
				}
			}
		}
		return why["its process has ended"]+why["it left the group, or another rank took it out"] == 2
	}, connectIn, time.Millisecond)
	require.Positive(t, why["its process has ended"], "one at least has noticed it")
	s, err := group[0].Stats()
	require.NoError(t, err)
	require.Positive(t, s.Events)
	require.GreaterOrEqual(t, noted.Load(), s.Events)
}

// TestExpelledIsLost: the reason says that a deadline has passed.
func TestExpelledIsLost(t *testing.T) {
	group := newGroup(t, 2)
	all := ops(t, group, 150)
	all[0].args.Timeout = time.Millisecond
	all[0].run()
	group[0].sync()
	all[0].check(1)
	require.Eventually(t, func() bool {
		events, latest := group[0].Events(0)
		return latest == 1 && events[0].Kind == telemetry.Lost && events[0].Why == "it did not come before the deadline"
	}, connectIn, time.Millisecond)
}

// TestLeftIsNoLoss: a rank that prepares an update has left.
func TestLeftIsNoLoss(t *testing.T) {
	group := newGroup(t, 2)
	roundOf(ops(t, group, 160))
	_, err := group[1].Prepare()
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		events, _ := group[0].Events(0)
		events = slices.DeleteFunc(events, func(e telemetry.Event) bool { return e.Kind == telemetry.Slow }) // a loaded machine's
		return len(events) == 1 && events[0].Rank == 1 && events[0].Kind == telemetry.Left
	}, connectIn, time.Millisecond)
}

// TestFailedIsCounted: an operation that ends the buffer with an error has failed.
func TestFailedIsCounted(t *testing.T) {
	r := newGroup(t, 1)[0]
	o := ops(t, []*rank{r}, 170)[0]
	o.run()
	r.sync()
	o.ids.values[0] = 99
	o.dispatch()
	r.sync()
	require.ErrorIs(t, r.Err(), ep.ErrInvalid)
	s, err := r.Stats()
	require.NoError(t, err)
	require.EqualValues(t, []uint64{1, 1}, []uint64{s.Dispatch.Done, s.Dispatch.Failed})
}

// TestNothingIsRecorded where that is not wanted, and after the end.
func TestNothingIsRecorded(t *testing.T) {
	r := observedGroup(t, 1, func(c *cuda.Config) { c.NoRecord = true })[0]
	roundOf(ops(t, []*rank{r}, 180))
	s, err := r.Stats()
	require.NoError(t, err)
	require.False(t, s.Recording)
	require.Zero(t, s.Records+s.Dispatch.Done+sum(s.RowsTo))
	require.NoError(t, r.Buffer.Close())
	_, err = r.Stats()
	require.ErrorIs(t, err, ep.ErrClosed)
	_, err = r.Records(0, 0)
	require.ErrorIs(t, err, ep.ErrClosed)
	require.Zero(t, r.Counters().NumDispatches)
}

// TestRecordsFoldedAtOnce: operations of one stream end before the next begin,
// also those that the host is told of at the same time.
func TestRecordsFoldedAtOnce(t *testing.T) {
	emu := cudatest.Emulate(t)
	slow := newDrowsy(inproc.New(1, layout.ControlBytes)[0])
	r := newRank(t, emu, slow, configOf(t, 1))
	t.Cleanup(func() {
		slow.release()
		r.close()
	})
	require.NoError(t, r.Connect(connectIn))
	slow.hold()
	for i := range uint64(4) {
		roundOf(ops(t, []*rank{r}, 190+i))
	}
	records, err := r.Records(0, 0)
	require.NoError(t, err)
	require.Len(t, records, 8)
	for i, next := range records[1:] {
		require.LessOrEqual(t, records[i].End, next.Start, "record %d", i)
	}
}

// awaitCurrent returns when a rank's page shows an operation of that kind and
// number; kind 0: none.
func (r *rank) awaitCurrent(kind telemetry.Kind, op uint64) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		_, err := r.Stats()
		require.NoError(r.t, err)
		k, n, since := telemetry.At(r.dom.Control(r.self), layout.Record()).Current()
		return k == kind && n == op && (k == 0 || since > 0)
	}, connectIn, time.Millisecond)
}

func send(o *op) { require.NoError(o.r.t, o.r.Dispatch(&o.args, &o.res, ep.PhaseSent)) }

// TestCurrent: the first operation is shown, too, and none once all have ended.
func TestCurrent(t *testing.T) {
	group := newGroup(t, 2)
	all := ops(t, group, 200)
	send(all[0])
	group[0].awaitCurrent(telemetry.Dispatch, 0)
	send(all[1])
	for _, o := range all {
		require.NoError(t, o.r.Receive(o.res.Handle))
	}
	for _, r := range group {
		r.sync()
		r.awaitCurrent(0, 0)
	}
}

// TestGivenUpIsNotCurrent: an operation without a second phase has ended.
func TestGivenUpIsNotCurrent(t *testing.T) {
	r := newGroup(t, 1)[0]
	o := ops(t, []*rank{r}, 210)[0]
	send(o)
	r.awaitCurrent(telemetry.Dispatch, 0)
	cancelled, err := r.CancelReceive(o.res.Handle, r.stream)
	require.NoError(t, err)
	require.True(t, cancelled)
	r.sync()
	r.awaitCurrent(0, 0)
}

// TestSlowIsNotRecorded: without recording there are no events of slow ranks.
func TestSlowIsNotRecorded(t *testing.T) {
	emu := cudatest.Emulate(t)
	doms := inproc.New(2, layout.ControlBytes)
	seen := newDrowsy(doms[0])
	cfg := configOf(t, 2)
	cfg.NoRecord, cfg.SlowAfter = true, time.Nanosecond
	group := []*rank{newRank(t, emu, seen, cfg), newRank(t, emu, doms[1], cfg)}
	t.Cleanup(func() { closeAll(group) })
	for _, r := range group {
		require.NoError(t, r.Connect(connectIn))
	}
	all := ops(t, group, 220)
	all[0].run()
	require.Eventually(t, func() bool { return group[0].DeviceWait(1) != 0 }, connectIn, time.Millisecond)
	seen.await(8)
	all[1].run()
	for _, r := range group {
		r.sync()
	}
	_, latest := group[0].Events(0)
	require.Zero(t, latest)
}

// TestFallbackIsAnEvent: that a rank is reached over another carrier is one, until the
// buffer is closed.
func TestFallbackIsAnEvent(t *testing.T) {
	group := newGroup(t, 2)
	group[0].RecordFallback(1, "the device is gone")
	events, latest := group[0].Events(0)
	require.EqualValues(t, 1, latest)
	require.Equal(t, telemetry.FellBack, events[0].Kind)
	require.Equal(t, 1, events[0].Rank)
	require.Equal(t, "the device is gone", events[0].Why)
	require.NoError(t, group[0].Close())
	group[0].RecordFallback(1, "again")
	_, latest = group[0].Events(0)
	require.EqualValues(t, 1, latest)
}
