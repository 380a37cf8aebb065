package cuda_test

import (
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
