package cpu_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
)

// cancelOne starts a dispatch of rank 0 and gives it up at once.
func (w *world) cancelOne(in *input) error {
	var d dispatched
	p, err := w.bufs[0].Dispatch(w.args(0, pair, in, &d), &d.res, ep.PhaseDone, 0)
	if p != nil {
		p.Cancel()
	}
	return err
}

// TestDeferredIsBounded: only so many dispatches can be cancelled ahead of the
// peers, and calls that are refused still write what is deferred.
func TestDeferredIsBounded(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
	in := [2]input{pairInput(0), pairInput(1)}
	err := w.cancelOne(&in[0])
	for err == nil || err == ep.ErrInProgress {
		err = w.cancelOne(&in[0])
	}
	require.ErrorIs(t, err, ep.ErrInvalid)
	require.ErrorContains(t, err, "cancelled dispatches")
	waiting := make(chan error, 1)
	go func() {
		for range 50 {
			if err := within(t, w.start(1, pair, &in[1], -1)); err != nil {
				waiting <- err
				return
			}
		}
		waiting <- nil
	}()
	for {
		select {
		case err := <-waiting:
			require.NoError(t, err)
			return
		default:
			_ = w.cancelOne(&in[0])
			time.Sleep(100 * time.Microsecond)
		}
	}
}

// TestOneCallPays: the call that opens this rank's slab also writes what was
// deferred for it, so a peer that combines a cancelled operation is told.
func TestOneCallPays(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
	in := [2]input{pairInput(0), pairInput(1)}
	for range 2 {
		w.bothDispatch(in)
	}
	require.ErrorIs(t, w.cancelOne(&in[0]), ep.ErrInProgress) // its own slab is not open yet
	require.NoError(t, w.bufs[1].Release(0))
	combined := make(chan error, 1)
	go func() {
		d, err := w.dispatch(1, pair, &in[1])
		if err == nil {
			_, err = w.combine(1, pair, &in[1], d)
		}
		combined <- err
	}()
	require.Eventually(t, func() bool { // deferred words of a remote rank may have come by themselves
		return cpu.WaitsFor(w.bufs[1]) != 0 || len(combined) > 0
	}, callTimeout, 50*time.Microsecond)
	require.NoError(t, w.bufs[0].Release(1)) // any later call
	require.ErrorIs(t, within(t, combined), ep.ErrNotCombined)
}

// TestHolderOfTheSlab: a rank that never releases an operation is taken out
// when its slot is needed, masked or not, dead or late. The slab that it
// may still write into is not used again unless the rank is dead.
func TestHolderOfTheSlab(t *testing.T) {
	for name, c := range map[string]struct {
		dead bool
		mask []int32
	}{
		"late":           {false, nil},
		"late, left out": {false, []int32{1, 1, 0}},
		"dead, left out": {true, []int32{1, 1, 0}},
		"dead, no masks": {true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := shape{ranks: 3, maxTokens: 4, hidden: 16, experts: 3, topk: 2}
			w := newWorld(t, 3, ep.Config{NumBytes: 16 << 20, NumSlots: 1})
			in := randomInput(r2(0), 4, 16, 2, 3, uniform)
			before := make([]*dispatched, 3)
			w.each(func(r int) (err error) { before[r], err = w.dispatch(r, s, &in); return err })
			require.NoError(t, w.bufs[0].Release(0))
			require.NoError(t, w.bufs[1].Release(0))
			if c.dead {
				inproc.Kill(w.doms[0], 2)
			}
			ds := make([]dispatched, 2)
			again := func(r int, timeout time.Duration) error {
				a := w.args(r, s, &in, &ds[r])
				a.Timeout, a.ActiveRanks = timeout, slices.Clone(c.mask)
				_, err := w.bufs[r].Dispatch(a, &ds[r].res, ep.PhaseDone, -1)
				return err
			}
			if c.dead {
				w.some(rankset.Of(0, 1), func(r int) error { return again(r, -1) })
			} else {
				w.someWithout(rankset.Of(0, 1), 50*time.Millisecond, again)
			}
			require.Equal(t, rankset.Of(0, 1), w.bufs[0].Members())
			same := ds[0].res.Slab == before[0].res.Slab
			harmless := c.dead || overHosts != nil // on another host it cannot write by itself
			require.Equal(t, harmless, same, "the slab is replaced unless the holder is known to be dead")
		})
	}
}

// TestOthersErrorsStayTheirs: a dispatch that finishes a combine in its way
// does not fail because that combine fails.
func TestOthersErrorsStayTheirs(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20, NumSlots: 1})
	in := [2]input{pairInput(0), pairInput(1)}
	ds := w.bothDispatch(in)
	hook, err := w.bufs[0].Combine(0, combineArgs(ds[0], &in[0], make([]byte, in[0].tokens*32)), ep.PhaseSent, -1)
	require.NoError(t, err)
	require.NoError(t, w.bufs[1].Release(0))
	next := w.start(0, pair, &in[0], -1)
	require.NoError(t, within(t, w.start(1, pair, &in[1], -1)))
	require.NoError(t, within(t, next))
	require.ErrorIs(t, hook.Wait(ep.PhaseDone, -1), ep.ErrNotCombined)
}

// TestFillAfterOverlap: released memory is filled also when the next dispatch
// of the slot has begun before the last rank has released the operation.
func TestFillAfterOverlap(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20, NumSlots: 1, DebugFill: true})
	in := [2]input{pairInput(0), pairInput(1)}
	ds := w.bothDispatch(in)
	next := w.start(0, pair, &in[0], time.Second)
	w.waits(0)
	n := int(ds[0].counts[0]) * 32
	ds[0].compute(0, pair)
	require.NotEqual(t, bytes.Repeat([]byte{0xff}, n), ds[0].res.CombineX[:n])
	require.NoError(t, w.bufs[1].Release(0))
	require.NoError(t, within(t, next), "rank 1 does not come again")
	require.Equal(t, bytes.Repeat([]byte{0xff}, n), ds[0].res.CombineX[:n])
}
