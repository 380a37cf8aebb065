package cpu_test

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/op"
)

// pair is the shape of the tests of two ranks that are not about rows.
var pair = shape{ranks: 2, maxTokens: 4, hidden: 16, experts: 2, topk: 2}

func pairInput(rank int) input { return randomInput(r2(rank), 4, 16, 2, 2, uniform) }

// bothDispatch runs one dispatch on both ranks.
func (w *world) bothDispatch(in [2]input) (ds [2]*dispatched) {
	w.t.Helper()
	w.each(func(r int) (err error) { ds[r], err = w.dispatch(r, pair, &in[r]); return err })
	return ds
}

func combineArgs(d *dispatched, in *input, out []byte) *ep.CombineArgs {
	return &ep.CombineArgs{
		X: d.res.CombineX, TopkIdx: in.topk, TopkWeights: in.weights, Out: out,
		NumTokens: in.tokens, TopK: 2, Timeout: 5 * time.Second,
	}
}

// TestTakenSlot: a dispatch that another thread's dispatch pushes out of its
// slot says so, and does not go on with the other's operation.
func TestTakenSlot(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20, NumSlots: 1})
	in := pairInput(0)
	pushed := w.start(0, pair, &in, -1)
	w.waits(0)
	pushing := w.start(0, pair, &in, -1)
	require.ErrorIs(t, within(t, pushed), ep.ErrStaleHandle)
	for range 2 {
		require.NoError(t, within(t, w.start(1, pair, &in, -1)))
	}
	require.NoError(t, within(t, pushing))
}

// TestCancelOnlyOwn: a dispatch that was pushed out cannot cancel the operation that
// took its place.
func TestCancelOnlyOwn(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20, NumSlots: 1})
	in := pairInput(0)
	var d dispatched
	p, err := w.bufs[0].Dispatch(w.args(0, pair, &in, &d), &d.res, ep.PhaseDone, 0)
	require.ErrorIs(t, err, ep.ErrInProgress)
	other := w.start(0, pair, &in, -1)
	require.Eventually(t, func() bool { return p.State() != op.Pending }, callTimeout, 50*time.Microsecond)
	p.Cancel()
	for range 2 {
		require.NoError(t, within(t, w.start(1, pair, &in, -1)))
	}
	require.NoError(t, within(t, other))
	require.ErrorIs(t, p.Wait(ep.PhaseDone, -1), ep.ErrStaleHandle)
}

// TestThreadsCombineOneHandle: every combine that says it succeeded has
// written its own result.
func TestThreadsCombineOneHandle(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
	in := [2]input{pairInput(0), pairInput(1)}
	want := wantCombine(&in[0], pair.hidden, pair.topk, alive)
	for range 500 {
		ds := w.bothDispatch(in)
		for r := range ds {
			ds[r].compute(r, pair)
		}
		var wg sync.WaitGroup
		for range 2 {
			wg.Add(2)
			go func() {
				defer wg.Done()
				out := bytes.Repeat([]byte{0xaa}, len(want))
				_, err := w.bufs[0].Combine(ds[0].res.Op, combineArgs(ds[0], &in[0], out), ep.PhaseDone, -1)
				require.NoError(t, err)
				require.Equal(t, want, out)
			}()
			go func() {
				defer wg.Done()
				_, err := w.combine(1, pair, &in[1], ds[1])
				require.NoError(t, err)
			}()
		}
		wg.Wait()
	}
}

// TestThreadsKeepPromises: threads that dispatch never cancel a combine before its
// hook has run, whichever slot they get.
func TestThreadsKeepPromises(t *testing.T) {
	for range 50 {
		w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
		in := [2]input{pairInput(0), pairInput(1)}
		var ds [2][2]*dispatched
		var hooks [2]*cpu.Pending
		for i := range ds {
			ds[i] = w.bothDispatch(in)
		}
		for i := range ds {
			var err error
			out := make([]byte, in[0].tokens*32)
			hooks[i], err = w.bufs[0].Combine(ds[i][0].res.Op, combineArgs(ds[i][0], &in[0], out), ep.PhaseSent, -1)
			require.NoError(t, err)
		}
		var wg sync.WaitGroup
		for range 2 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				var d dispatched
				_, _ = w.bufs[0].Dispatch(w.args(0, pair, &in[0], &d), &d.res, ep.PhaseDone, 0)
			}()
		}
		time.Sleep(100 * time.Microsecond)
		for i := range ds {
			_, err := w.combine(1, pair, &in[1], ds[i][1])
			require.NoError(t, err)
		}
		wg.Wait()
		for _, hook := range hooks {
			if hook != nil {
				require.NoError(t, hook.Wait(ep.PhaseDone, -1))
			}
		}
		for _, b := range w.bufs {
			require.NoError(t, b.Close())
		}
	}
}

// TestSlicesBound: a slice bounds every call, also while it waits for what is
// in its way, and nothing has happened when it ends there.
func TestSlicesBound(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
	in := [2]input{pairInput(0), pairInput(1)}
	var d dispatched
	a := w.args(0, pair, &in[0], &d)
	a.Timeout = -1
	hook, err := w.bufs[0].Dispatch(a, &d.res, ep.PhaseSent, -1)
	require.NoError(t, err)
	out := make([]byte, in[0].tokens*32)
	p, err := w.bufs[0].Combine(d.res.Op, combineArgs(&d, &in[0], out), ep.PhaseDone, time.Millisecond)
	require.ErrorIs(t, err, ep.ErrInProgress)
	require.Nil(t, p, "nothing was started: call again")
	_, err = w.bufs[0].CombineBuffer(d.res.Op, time.Millisecond)
	require.ErrorIs(t, err, ep.ErrInProgress)
	w.each(func(r int) error {
		if r == 0 {
			require.NoError(t, hook.Wait(ep.PhaseDone, -1))
			d.compute(0, pair)
			return w.combineAndCheck(0, pair, in[:], &d)
		}
		return w.roundTrip(1, pair, in[:])
	})
}

// TestInputsAfterSent: after PhaseSent the caller may overwrite its weights.
func TestInputsAfterSent(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
	in := [2]input{pairInput(0), pairInput(1)}
	ds := w.bothDispatch(in)
	for r := range ds {
		ds[r].compute(r, pair)
	}
	out := make([]byte, in[0].tokens*32)
	args := combineArgs(ds[0], &in[0], out)
	args.TopkWeights = append([]float32(nil), in[0].weights...)
	hook, err := w.bufs[0].Combine(ds[0].res.Op, args, ep.PhaseSent, -1)
	require.NoError(t, err)
	clear(args.TopkWeights)
	_, err = w.combine(1, pair, &in[1], ds[1])
	require.NoError(t, err)
	if hook != nil {
		require.NoError(t, hook.Wait(ep.PhaseDone, -1))
	}
	require.Equal(t, wantCombine(&in[0], 16, 2, alive), out)
}
