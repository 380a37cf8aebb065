package cpu_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/op"
)

// r2 is a generator of one rank's own.
func r2(rank int) *rand.Rand { return rand.New(rand.NewPCG(7, uint64(rank))) }

// start runs one rank's dispatch in the background with a deadline.
func (w *world) start(rank int, s shape, in *input, timeout time.Duration) chan error {
	out := make(chan error, 1)
	go func() {
		var d dispatched
		a := w.args(rank, s, in, &d)
		a.Timeout = timeout
		_, err := w.bufs[rank].Dispatch(a, &d.res, ep.PhaseDone, -1)
		out <- err
	}()
	return out
}

func within(t *testing.T, c chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("the call did not return")
		return nil
	}
}

// startMasked is start with a mask, which the caller looks at afterwards.
func (w *world) startMasked(rank int, s shape, in *input, mask []int32, timeout time.Duration) chan error {
	out := make(chan error, 1)
	go func() {
		var d dispatched
		a := w.args(rank, s, in, &d)
		a.Timeout, a.ActiveRanks = timeout, mask
		_, err := w.bufs[rank].Dispatch(a, &d.res, ep.PhaseDone, -1)
		out <- err
	}()
	return out
}

func ones(n int) []int32 {
	mask := make([]int32, n)
	for i := range mask {
		mask[i] = 1
	}
	return mask
}

// TestDeadline: a rank that does not come before the deadline is taken out,
// also for ranks that have no deadline. When it comes it is told.
func TestDeadline(t *testing.T) {
	w := newWorld(t, 3, ep.Config{NumBytes: 12 << 20})
	s := shape{ranks: 3, maxTokens: 4, hidden: 16, experts: 3, topk: 2}
	in := randomInput(r2(0), 4, 16, 2, 3, uniform)
	masks := [][]int32{ones(3), ones(3)}
	patient := w.startMasked(1, s, &in, masks[1], -1)
	w.waits(1)
	require.NoError(t, within(t, w.startMasked(0, s, &in, masks[0], 50*time.Millisecond)))
	require.NoError(t, within(t, patient))
	require.Equal(t, [][]int32{{1, 1, 0}, {1, 1, 0}}, masks)
	err := within(t, w.start(2, s, &in, -1))
	require.ErrorIs(t, err, ep.ErrFenced)
	require.ErrorIs(t, within(t, w.start(2, s, &in, -1)), ep.ErrFenced, "and again")
	w.some(rankset.Of(0, 1), func(r int) error { return within(t, w.start(r, s, &in, -1)) })
}

// TestDeath: a dead rank ends waits without any deadline.
func TestDeath(t *testing.T) {
	w := newWorld(t, 3, ep.Config{NumBytes: 12 << 20})
	s := shape{ranks: 3, maxTokens: 4, hidden: 16, experts: 3, topk: 2}
	in := randomInput(r2(0), 4, 16, 2, 3, uniform)
	masks := [][]int32{ones(3), ones(3)}
	a, b := w.startMasked(0, s, &in, masks[0], -1), w.startMasked(1, s, &in, masks[1], -1)
	w.waits(0)
	w.waits(1)
	inproc.MarkDying(w.doms[0], 2)
	require.NoError(t, within(t, a))
	require.NoError(t, within(t, b))
	require.Equal(t, [][]int32{{1, 1, 0}, {1, 1, 0}}, masks)
}

// TestLeaver: a peer that closes after its last combine does not disturb
// ranks that still combine.
func TestLeaver(t *testing.T) {
	r := seeded(t)
	for range 50 {
		w := newWorld(t, 2, ep.Config{NumBytes: 12 << 20})
		ins := inputs(r, small, uniform)
		w.each(func(rank int) error {
			err := w.roundTrip(rank, small, ins)
			if rank == 0 {
				require.NoError(t, w.bufs[0].Close())
			}
			return err
		})
	}
}

// TestCloseEndsWaits: closing a buffer ends a wait in another thread.
func TestCloseEndsWaits(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 12 << 20})
	in := randomInput(r2(0), 4, 16, 2, 4, uniform)
	waiting := w.start(0, small, &in, -1)
	w.waits(0)
	require.NoError(t, w.bufs[0].Close())
	require.ErrorIs(t, within(t, waiting), ep.ErrClosed)
}

// TestReleasedWithoutCombine: a rank that releases an operation that others combine
// gives them an error that names the rank, never a hang.
func TestReleasedWithoutCombine(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 12 << 20})
	in := input{tokens: 1, x: make([]byte, 32), topk: []int64{0, 3}, weights: []float32{1, 1}}
	w.each(func(rank int) error {
		d, err := w.dispatch(rank, small, &in)
		if err != nil {
			return err
		}
		if rank == 1 {
			return w.bufs[1].Release(d.res.Op)
		}
		d.compute(rank, small)
		_, err = w.combine(rank, small, &in, d)
		require.ErrorIs(t, err, ep.ErrNotCombined)
		require.ErrorContains(t, err, "rank 1")
		return nil
	})
	ins := []input{in, in}
	w.each(func(rank int) error { return w.roundTrip(rank, small, ins) })
}

// TestCancel: a rank cancels dispatches before its peers have come; what the
// peers need is written by its later calls, and the numbers stay in step.
func TestCancel(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, 2, ep.Config{NumBytes: 12 << 20})
	ins := inputs(r, small, uniform)
	const cancelled = 5
	w.each(func(rank int) error {
		for range cancelled {
			var d dispatched
			if rank == 0 {
				p, err := w.bufs[0].Dispatch(w.args(0, small, &ins[0], &d), &d.res, ep.PhaseDone, time.Microsecond)
				if err == nil {
					continue
				}
				require.ErrorIs(t, err, ep.ErrInProgress)
				p.Cancel()
				require.ErrorIs(t, p.Wait(ep.PhaseDone, -1), op.ErrCancelled)
				require.Equal(t, op.Cancelled, p.State())
				continue
			}
			time.Sleep(10 * time.Millisecond)
			if _, err := w.dispatch(1, small, &ins[1]); err != nil {
				return err
			}
		}
		return w.roundTrip(rank, small, ins)
	})
}

// TestHooks: sending and receiving apart, two operations in flight, one
// goroutine for all ranks: it sends for all, then receives for all.
func TestHooks(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, 4, ep.Config{NumBytes: 16 << 20})
	s := shape{ranks: 4, maxTokens: 6, hidden: 16, experts: 8, topk: 3}
	for range 30 {
		ins := inputs(r, s, uniform)
		ds := make([]dispatched, 4)
		hooks := make([]*cpu.Pending, 4)
		for rank := range w.bufs {
			var err error
			hooks[rank], err = w.bufs[rank].Dispatch(w.args(rank, s, &ins[rank], &ds[rank]), &ds[rank].res, ep.PhaseSent, -1)
			require.NoError(t, err)
		}
		for rank, hook := range hooks {
			if hook != nil {
				require.NoError(t, hook.Wait(ep.PhaseDone, -1))
				require.NoError(t, hook.Wait(ep.PhaseDone, -1), "a hook may run twice")
			}
			require.NoError(t, ds[rank].check(rank, s, ins))
			ds[rank].compute(rank, s)
		}
		outs := make([][]byte, 4)
		for rank := range w.bufs {
			outs[rank] = make([]byte, ins[rank].tokens*s.hidden*2)
			var err error
			hooks[rank], err = w.bufs[rank].Combine(ds[rank].res.Op, &ep.CombineArgs{
				X: ds[rank].res.CombineX, TopkIdx: ins[rank].topk, TopkWeights: ins[rank].weights,
				Out: outs[rank], NumTokens: ins[rank].tokens, TopK: s.topk, Timeout: 5 * time.Second,
			}, ep.PhaseSent, -1)
			require.NoError(t, err)
		}
		for rank, hook := range hooks {
			if hook != nil {
				require.NoError(t, hook.Wait(ep.PhaseDone, -1))
			}
			require.Equal(t, wantCombine(&ins[rank], s.hidden, s.topk, alive), outs[rank])
		}
	}
}

// TestCallerMask: a rank that the caller leaves out gets no rows, is not
// waited for, and its experts contribute nothing; the protocol goes on.
func TestCallerMask(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, 3, ep.Config{NumBytes: 16 << 20})
	s := shape{ranks: 3, maxTokens: 6, hidden: 16, experts: 6, topk: 3}
	masks := [][]int32{{1, 1, 0, 9}, {1, 1, 0}, {0, 0, 1}} // 2 against 0 and 1
	groups := []uint64{0b011, 0b011, 0b100}
	for range 30 {
		ins := inputs(r, s, uniform)
		w.each(func(rank int) error {
			var d dispatched
			a := w.args(rank, s, &ins[rank], &d)
			a.ActiveRanks = masks[rank]
			if _, err := w.bufs[rank].Dispatch(a, &d.res, ep.PhaseDone, -1); err != nil {
				return err
			}
			for i, v := range d.layout {
				if groups[rank]>>(i%3)&1 == 0 {
					require.Zero(t, v, "rank %d counts a source that was left out", rank)
				}
			}
			d.compute(rank, s)
			out, err := w.combine(rank, s, &ins[rank], &d)
			want := wantCombine(&ins[rank], s.hidden, s.topk, func(e int64) bool { return groups[rank]>>(e/2)&1 == 0 })
			require.Equal(t, want, out)
			return err
		})
	}
}

// TestDebugFill: released memory is filled.
func TestDebugFill(t *testing.T) {
	w := newWorld(t, 1, ep.Config{DebugFill: true})
	s := shape{ranks: 1, maxTokens: 4, hidden: 16, experts: 2, topk: 1}
	in := input{tokens: 1, x: make([]byte, 32), topk: []int64{1}, weights: []float32{1}}
	d, err := w.dispatch(0, s, &in)
	require.NoError(t, err)
	row := d.res.RecvX[4*32 : 5*32]
	require.Equal(t, make([]byte, 32), row)
	require.NoError(t, w.combineAndCheck(0, s, []input{in}, d))
	require.NoError(t, w.bufs[0].Release(d.res.Op))
	for _, v := range row {
		require.Equal(t, byte(0xff), v, "released memory is filled")
	}
}

// TestNoAllocations: dispatch and combine allocate nothing in steady state,
// whether the plan is known or made anew.
func TestNoAllocations(t *testing.T) {
	w := newWorld(t, 1, ep.Config{NumBytes: 12 << 20})
	s := shape{ranks: 1, maxTokens: 8, hidden: 16, experts: 4, topk: 2}
	in := randomInput(r2(0), 8, 16, 2, 4, uniform)
	var d dispatched
	a := w.args(0, s, &in, &d)
	c := &ep.CombineArgs{TopkIdx: in.topk, TopkWeights: in.weights, Out: make([]byte, 8*32), NumTokens: 8, TopK: 2, Timeout: time.Second}
	for _, known := range []bool{false, true} {
		n := testing.AllocsPerRun(200, func() {
			if !known {
				cpu.ForgetPlans(w.bufs[0])
			}
			_, err := w.bufs[0].Dispatch(a, &d.res, ep.PhaseDone, -1)
			require.NoError(t, err)
			c.X = d.res.CombineX
			_, err = w.bufs[0].Combine(d.res.Op, c, ep.PhaseDone, -1)
			require.NoError(t, err)
		})
		require.Zero(t, n, "known plan: %v", known)
	}
}

// TestCombineBufferGivesUp: waiting for the readers of a combine ends as other
// waits do. Rank 1 reads late because rank 2 has become unresponsive.
func TestCombineBufferGivesUp(t *testing.T) {
	w := newWorld(t, 3, ep.Config{NumBytes: 16 << 20})
	ins := inputs(r2(0), trio, uniform)
	for i := range ins[0].topk {
		ins[0].topk[i] = int64(i % 4) // nothing for rank 2
	}
	ins[1] = randomInput(r2(1), 8, trio.hidden, trio.topk, trio.experts, allToOne)
	var ds [3]*dispatched
	w.each(func(r int) (err error) { ds[r], err = w.dispatch(r, trio, &ins[r]); return err })
	combine := func(r int, timeout time.Duration) error {
		a := combineArgs(ds[r], &ins[r], make([]byte, ins[r].tokens*trio.hidden*2))
		a.TopK, a.Timeout = trio.topk, timeout
		_, err := w.bufs[r].Combine(ds[r].res.Op, a, ep.PhaseDone, -1)
		return err
	}
	reader, bufferFree := make(chan error, 1), make(chan error, 1)
	go func() { reader <- combine(1, -1) }()
	w.waits(1)
	require.NoError(t, combine(0, 50*time.Millisecond))
	go func() { _, err := w.bufs[0].CombineBuffer(ds[0].res.Op, -1); bufferFree <- err }()
	require.NoError(t, within(t, bufferFree))
	require.NoError(t, within(t, reader))
	require.EqualValues(t, rankset.Of(0, 1), w.bufs[0].Members())
}
