package cpu_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/telemetry"
)

// totals is what statistics should say, counted from the inputs alone.
type totals struct {
	rowsTo, rowsFrom, experts []uint64
	sent, received, tokens    uint64
	selected                  uint64 // a row is pulled once per selection of it
}

func count(rank int, s shape, rounds [][]input) totals {
	l := s.experts / s.ranks
	c := totals{rowsTo: make([]uint64, s.ranks), rowsFrom: make([]uint64, s.ranks), experts: make([]uint64, l)}
	for _, ins := range rounds {
		c.tokens += uint64(ins[rank].tokens)
		for _, id := range ins[rank].topk {
			if id >= 0 {
				c.selected++
			}
		}
		for e := range s.experts {
			n := uint64(len(wantRows(&ins[rank], s.topk, int64(e))))
			c.rowsTo[e/l] += n
			c.sent += n
		}
		for src := range s.ranks {
			for e := range l {
				n := uint64(len(wantRows(&ins[src], s.topk, int64(rank*l+e))))
				c.rowsFrom[src] += n
				c.experts[e] += n
				c.received += n
			}
		}
	}
	return c
}

// TestStats: rows, bytes, tokens and expert load are what the routing says.
func TestStats(t *testing.T) {
	r := seeded(t)
	s := shape{ranks: 3, maxTokens: 9, hidden: 64, experts: 12, topk: 4}
	w := newWorld(t, s.ranks, ep.Config{NumBytes: 64 << 20})
	var rounds [][]input
	for i := range 20 {
		ins := inputs(r, s, routings[i%len(routings)])
		rounds = append(rounds, ins)
		w.each(func(rank int) error { return w.roundTrip(rank, s, ins) })
	}
	for rank, b := range w.bufs {
		got, err := b.Stats()
		require.NoError(t, err)
		want := count(rank, s, rounds)
		require.Equal(t, want.rowsTo, got.RowsTo)
		require.Equal(t, want.rowsFrom, got.RowsFrom)
		require.Equal(t, want.experts, got.Experts)
		require.EqualValues(t, 20, got.Dispatch.Done)
		require.EqualValues(t, 20, got.Combine.Done)
		require.Equal(t, want.sent, got.Dispatch.RowsOut)
		require.Equal(t, want.received, got.Dispatch.RowsIn)
		require.Equal(t, want.sent*(64*2+4), got.Dispatch.Bytes)
		require.Equal(t, want.tokens, got.Dispatch.Tokens)
		require.Equal(t, want.selected, got.Combine.RowsOut)
		require.Equal(t, want.selected*64*2, got.Combine.Bytes)
		require.NotZero(t, got.Memory.SlabBytes)
		requireHistogram(t, got.Dispatch)
		requireHistogram(t, got.Combine)
	}
}

func requireHistogram(t *testing.T, k telemetry.Totals) {
	times, waits := uint64(0), uint64(0)
	for i := range k.Times {
		times, waits = times+k.Times[i], waits+k.Waits[i]
	}
	require.Equal(t, k.Done, times)
	require.Equal(t, k.Done, waits)
	require.LessOrEqual(t, k.Wait, k.Time)
	require.NotZero(t, k.Max)
}

// TestRecords: a rank that comes late is named, with how late it was, on the
// ranks that waited; and every rank sees the records of all.
func TestRecords(t *testing.T) {
	const late = 30 * time.Millisecond
	r := seeded(t)
	s := shape{ranks: 3, maxTokens: 8, hidden: 64, experts: 6, topk: 2}
	w := newWorld(t, s.ranks, ep.Config{NumBytes: 64 << 20})
	for range 4 {
		ins := inputs(r, s, uniform)
		w.each(func(rank int) error {
			if rank == 1 {
				w.waits(0)
				w.waits(2)
				time.Sleep(late)
			}
			return w.roundTrip(rank, s, ins)
		})
	}
	for rank := range w.bufs {
		for reader := range w.bufs {
			all, err := w.bufs[reader].Records(rank, 0)
			require.NoError(t, err)
			require.Len(t, all, 8)
			requireOrdered(t, all)
			for i, rec := range all {
				require.EqualValues(t, i/2, rec.Op)
				if rec.Kind == telemetry.Dispatch && rank != 1 {
					require.EqualValues(t, 1, rec.Last, "rank %d, record %d: %+v", rank, i, rec)
					require.True(t, rec.Missing.Has(1))
					require.Greater(t, rec.Wait, int64(late/2))
					require.GreaterOrEqual(t, rec.Wait, rec.LastAlone)
				}
			}
		}
	}
	stats, err := w.bufs[0].Stats()
	require.NoError(t, err)
	require.EqualValues(t, 4, stats.Dispatch.Last[1])
	require.Greater(t, stats.Dispatch.WaitFor[1], uint64(4*late/2))
	require.Less(t, stats.Dispatch.WaitFor[0], uint64(late))
}

// requireOrdered: the phases of an operation follow one another, and the
// operations, too.
func requireOrdered(t *testing.T, all []telemetry.Record) {
	before := int64(1)
	for _, rec := range all {
		for _, at := range []int64{rec.Start, rec.Sent, rec.Seen, rec.End} {
			require.GreaterOrEqual(t, at, before, "%+v", rec)
			before = at
		}
		if rec.Resume != 0 {
			require.GreaterOrEqual(t, rec.Resume, rec.Sent)
			require.LessOrEqual(t, rec.Resume, rec.Seen)
		}
	}
}

// TestTimeBetweenCallAndHook: what the caller does meanwhile is not waiting.
func TestTimeBetweenCallAndHook(t *testing.T) {
	const work = 400 * time.Millisecond // far more than an operation takes on a busy machine
	r := seeded(t)
	s := shape{ranks: 2, maxTokens: 8, hidden: 64, experts: 6, topk: 2}
	w := newWorld(t, s.ranks, ep.Config{NumBytes: 64 << 20})
	ins := inputs(r, s, uniform)
	var pending [2]*cpu.Pending // nil: everything was there at once
	first := make(chan struct{})
	w.each(func(rank int) (err error) {
		if rank == 1 {
			<-first
		}
		var d dispatched
		pending[rank], err = w.bufs[rank].Dispatch(w.args(rank, s, &ins[rank], &d), &d.res, ep.PhaseSent, -1)
		if rank == 0 {
			close(first)
		}
		if err != nil || pending[rank] == nil {
			return err
		}
		time.Sleep(work)
		return pending[rank].Wait(ep.PhaseDone, -1)
	})
	require.NotNil(t, pending[0])
	for rank, b := range w.bufs {
		if pending[rank] == nil {
			continue
		}
		all, err := b.Records(b.Rank(), 0)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Less(t, all[0].Time(), int64(work/2), "%+v", all[0])
		require.Less(t, all[0].Wait, int64(work/2), "%+v", all[0])
		require.Less(t, all[0].End-all[0].Start, int64(work)/2, "it ends behind the caller's work")
	}
}

// TestOutcomes: an operation that does not end well is recorded with its outcome.
func TestOutcomes(t *testing.T) {
	s := small
	w := newWorld(t, 2, ep.Config{NumBytes: 12 << 20})
	in := input{tokens: 1, x: make([]byte, 32), topk: []int64{0, 1}, weights: []float32{1, 1}}
	var d dispatched
	a := w.args(0, s, &in, &d)
	p, err := w.bufs[0].Dispatch(a, &d.res, ep.PhaseSent, -1)
	require.NoError(t, err)
	p.Cancel()
	a.Timeout = 20 * time.Millisecond
	_, err = w.bufs[0].Dispatch(a, &d.res, ep.PhaseDone, -1)
	require.NoError(t, err, "without rank 1")
	_, err = w.dispatch(1, s, &in)
	require.ErrorIs(t, err, ep.ErrFenced)
	all, err := w.bufs[0].Records(0, 0)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, telemetry.Cancelled, all[0].Outcome)
	require.Equal(t, telemetry.Done, all[1].Outcome)
	require.EqualValues(t, 1, all[1].Last)
	require.NoError(t, w.bufs[0].Close())
	_, err = w.bufs[0].Records(0, 0)
	require.ErrorIs(t, err, ep.ErrClosed)
}

// TestSlowAndLost: a wait that lasts becomes an event while it still lasts,
// and again less and less often. The rank's leave becomes another event.
func TestSlowAndLost(t *testing.T) {
	var counted atomic.Uint64
	w := newWorld(t, 2, ep.Config{NumBytes: 12 << 20, SlowAfter: 20 * time.Millisecond, EventCount: &counted})
	in := input{tokens: 1, x: make([]byte, 32), topk: []int64{0, 1}, weights: []float32{1, 1}}
	var d dispatched
	ended := make(chan error)
	go func() {
		_, err := w.bufs[0].Dispatch(w.args(0, small, &in, &d), &d.res, ep.PhaseDone, -1)
		ended <- err
	}()
	require.Eventually(t, func() bool { return counted.Load() > 0 }, 5*time.Second, time.Millisecond)
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, w.bufs[1].Close())
	require.NoError(t, <-ended)
	events, latest := w.bufs[0].Events(0)
	require.Equal(t, counted.Load(), latest)
	waited := int64(10 * time.Millisecond)
	for i, ev := range events {
		want := telemetry.Slow
		if i == len(events)-1 {
			want = telemetry.Left
		}
		require.Equal(t, want, ev.Kind, "%+v", events)
		require.Equal(t, 1, ev.Rank)
		require.NotZero(t, ev.PID)
		if want == telemetry.Slow {
			require.Equal(t, "dispatch", ev.Waiting)
			require.GreaterOrEqual(t, ev.WaitedNs, 2*waited, "at 20 ms, then each time that it has become twice as long")
			waited = ev.WaitedNs
		}
	}
}

// TestSlowReader: a wait for the readers of a combine becomes an event, too. Rank 1
// takes its time to read the outputs of rank 0.
func TestSlowReader(t *testing.T) {
	var counted atomic.Uint64
	w := newWorld(t, 2, ep.Config{NumBytes: 12 << 20, SlowAfter: 20 * time.Millisecond, EventCount: &counted})
	in := input{tokens: 1, x: make([]byte, 32), topk: []int64{0, 1}, weights: []float32{1, 1}} // both at rank 0
	var ds [2]*dispatched
	w.each(func(rank int) (err error) { ds[rank], err = w.dispatch(rank, small, &in); return err })
	_, err := w.combine(0, small, &in, ds[0])
	require.NoError(t, err)
	before := counted.Load() // a slow machine makes events of its own
	bufferFree := make(chan error, 1)
	go func() { _, err := w.bufs[0].CombineBuffer(ds[0].res.Op, -1); bufferFree <- err }()
	require.Eventually(t, func() bool { return counted.Load() > before }, 5*time.Second, time.Millisecond)
	_, err = w.combine(1, small, &in, ds[1])
	require.NoError(t, err)
	require.NoError(t, within(t, bufferFree))
	events, _ := w.bufs[0].Events(before)
	require.NotEmpty(t, events)
	for _, ev := range events {
		require.Equal(t, []any{telemetry.Slow, 1, "combine buffer"}, []any{ev.Kind, ev.Rank, ev.Waiting})
		require.GreaterOrEqual(t, ev.WaitedNs, int64(20*time.Millisecond))
	}
}

// TestNeverSlow: with a negative threshold no wait becomes an event.
func TestNeverSlow(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 12 << 20, SlowAfter: -1})
	in := input{tokens: 1, x: make([]byte, 32), topk: []int64{0, 1}, weights: []float32{1, 1}}
	w.each(func(rank int) error {
		time.Sleep(time.Duration(rank) * 20 * time.Millisecond)
		_, err := w.dispatch(rank, small, &in)
		return err
	})
	events, _ := w.bufs[0].Events(0)
	require.Empty(t, events)
}

func TestNoRecord(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, 2, ep.Config{NumBytes: 64 << 20, NoRecord: true})
	s := shape{ranks: 2, maxTokens: 8, hidden: 64, experts: 6, topk: 2}
	ins := inputs(r, s, uniform)
	w.each(func(rank int) error { return w.roundTrip(rank, s, ins) })
	got, err := w.bufs[0].Stats()
	require.NoError(t, err)
	require.False(t, got.Recording)
	require.Zero(t, got.Dispatch.Done+got.Records)
}

// BenchmarkRecording compares pairs of dispatch and combine with and without
// recording, in turn, in one run; T = 128, H = 7168, E = 64, K = 8.
func BenchmarkRecording(b *testing.B) {
	for _, tokens := range []int{1, 128} {
		b.Run(fmt.Sprintf("T%d", tokens), func(b *testing.B) { compareRecording(b, tokens) })
	}
}

func compareRecording(b *testing.B, tokens int) {
	s := shape{ranks: 1, maxTokens: 128, hidden: 7168, experts: 64, topk: 8}
	in := randomInput(r2(0), tokens, s.hidden, s.topk, s.experts, uniform)
	buf, pair := benchmarkPair(b, s, &in)
	for range 4 {
		pair() // every slot's memory becomes resident
	}
	var took [2][]time.Duration
	b.ResetTimer()
	for n := range b.N {
		for i := range took {
			i = (i + n) % len(took)
			buf.SetRecording(i == 1)
			start := time.Now()
			pair()
			pair() // two slots, so that both ways use the same memory
			took[i] = append(took[i], time.Since(start))
		}
	}
	off, on := median(took[0])/2, median(took[1])/2
	b.ReportMetric(off, "ns-off/pair")
	b.ReportMetric(on, "ns-on/pair")
	b.ReportMetric(100*(on-off)/off, "%cost")
}

func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2])
}

// benchmarkPair is one dispatch and combine of a rank that is alone.
func benchmarkPair(b *testing.B, s shape, in *input) (*cpu.Buffer, func()) {
	kern, err := kernels.New(0)
	require.NoError(b, err)
	buf, err := cpu.New(inproc.New(1, layout.ControlBytes)[0], kern, ep.Config{})
	require.NoError(b, err)
	b.Cleanup(func() { _ = buf.Close() })
	var d dispatched
	w := &world{t: b, bufs: []*cpu.Buffer{buf}}
	args := w.args(0, s, in, &d)
	c := &ep.CombineArgs{TopkIdx: in.topk, TopkWeights: in.weights, Out: make([]byte, len(in.x)), NumTokens: in.tokens, TopK: s.topk, Timeout: time.Second}
	return buf, func() {
		if _, err := buf.Dispatch(args, &d.res, ep.PhaseDone, -1); err != nil {
			b.Fatal(err)
		}
		c.X = d.res.CombineX
		if _, err := buf.Combine(d.res.Op, c, ep.PhaseDone, -1); err != nil {
			b.Fatal(err)
		}
	}
}
