package cpu_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// meet plays a membership update: the ranks in `ranks` form the next epoch,
// those in `fresh` as new processes.
func (w *world) meet(ranks, fresh rankset.Set) {
	w.t.Helper()
	epoch, base := membership.Epoch(0), uint64(0)
	for r := range ranks.Minus(fresh).All() {
		st, err := w.bufs[r].Prepare()
		require.NoError(w.t, err)
		epoch, base = max(epoch, st.Epoch), max(base, st.Next)
	}
	survivor := w.doms[ranks.Minus(fresh).Min()]
	for r := range w.bufs {
		switch bit := rankset.Of(r); {
		case !fresh.And(bit).Empty():
			w.doms[r] = inproc.Join(survivor, r)
		case ranks.And(bit).Empty():
			inproc.Dismiss(survivor, r)
		default:
			inproc.Return(w.doms[r])
		}
	}
	for r := range ranks.All() {
		if fresh.Has(r) {
			b, err := cpu.New(w.doms[r], kernels.NewReference(), ep.Config{NumBytes: w.numBytes, Joining: true, Deterministic: w.deterministic})
			require.NoError(w.t, err)
			w.bufs[r] = b
			w.t.Cleanup(func() { _ = b.Close() })
		}
		require.NoError(w.t, w.bufs[r].Install(epoch+1, base, nil))
	}
}

// exchange runs dispatch and combine on some ranks and compares both with the
// oracle, which goes by the masks that the calls leave behind.
func (w *world) exchange(rank int, s shape, ins []input, timeout time.Duration) (mask []int32, err error) {
	d := new(dispatched)
	a := w.args(rank, s, &ins[rank], d)
	mask = ones(s.ranks)
	a.ActiveRanks, a.Timeout = mask, timeout
	if _, err := w.bufs[rank].Dispatch(a, &d.res, ep.PhaseDone, -1); err != nil {
		return mask, err
	}
	if err := d.checkMasked(rank, s, ins, mask, false); err != nil {
		return mask, err
	}
	d.computeCounted(rank, s)
	out := bytes.Repeat([]byte{0xaa}, ins[rank].tokens*s.hidden*2)
	_, err = w.bufs[rank].Combine(d.res.Op, &ep.CombineArgs{
		X: d.res.CombineX, TopkIdx: ins[rank].topk, TopkWeights: ins[rank].weights, Out: out,
		NumTokens: ins[rank].tokens, TopK: s.topk, Timeout: combineWithin(timeout), ActiveRanks: mask,
	}, ep.PhaseDone, -1)
	if err != nil {
		return mask, err
	}
	lost := func(e int64) bool { return mask[int(e)/(s.experts/s.ranks)] == 0 }
	if want := s.want(&ins[rank], lost); !bytes.Equal(out, want) {
		return mask, fmt.Errorf("rank %d: combine differs from the oracle without the ranks that %v leaves out", rank, mask)
	}
	return mask, nil
}

// checkMasked is check for an operation in which some sources did not count,
// or in which there may be holes for another reason.
func (d *dispatched) checkMasked(rank int, s shape, ins []input, mask []int32, holes bool) error {
	counted := append([]input(nil), ins...)
	for src, active := range mask {
		if active == 0 {
			counted[src], holes = input{}, true
		}
	}
	whole := *d
	if holes { // rows that a lost rank had reserved stay in the count
		whole.counts = make([]int32, len(d.counts))
		for e := range d.counts {
			for src := range s.ranks {
				whole.counts[e] += int32(d.layout[e*s.ranks+src] & (1<<32 - 1))
			}
			if whole.counts[e] > d.counts[e] {
				return fmt.Errorf("rank %d expert %d: count %d, layout has %d", rank, e, d.counts[e], whole.counts[e])
			}
		}
	}
	return whole.check(rank, s, counted)
}

var trio = shape{ranks: 3, maxTokens: 8, hidden: 16, experts: 6, topk: 3}

// exchangeAll runs exchange on some ranks, and expects exactly these in the masks.
func (w *world) exchangeAll(s shape, ranks rankset.Set) {
	w.t.Helper()
	ins := inputs(seeded(w.t), s, uniform)
	w.some(ranks, func(r int) error {
		mask, err := w.exchange(r, s, ins, 20*time.Second)
		for t, v := range mask {
			if err == nil && (v == 1) != ranks.Has(t) {
				err = fmt.Errorf("rank %d: mask %v, members %v", r, mask, ranks)
			}
		}
		return err
	})
}

// TestRejoin: a rank dies, the others go on, a fresh process takes its place.
// Survivors keep the addresses of their slabs.
func TestRejoin(t *testing.T) {
	w := newWorld(t, 3, ep.Config{NumBytes: 16 << 20})
	w.exchangeAll(trio, rankset.Upto(3))
	var before dispatched
	in := randomInput(r2(0), 4, 16, 3, 6, uniform)
	for range 5 {
		inproc.Kill(w.doms[0], 2)
		w.exchangeAll(trio, rankset.Of(0, 1))
		w.exchangeAll(trio, rankset.Of(0, 1))
		w.meet(rankset.Upto(3), rankset.Of(2))
		for range 3 {
			w.exchangeAll(trio, rankset.Upto(3))
		}
	}
	w.some(rankset.Upto(3), func(r int) error {
		d, err := w.dispatch(r, trio, &in)
		if r == 0 {
			before = *d
		}
		return err
	})
	w.meet(rankset.Upto(3), rankset.Set{})
	require.ErrorIs(t, w.bufs[0].Release(before.res.Op), ep.ErrStaleHandle)
	var after [2]dispatched
	for i := range after {
		w.some(rankset.Upto(3), func(r int) error {
			d, err := w.dispatch(r, trio, &in)
			if r == 0 {
				after[i] = *d
			}
			return err
		})
	}
	require.Contains(t, []any{after[0].res.Slab, after[1].res.Slab}, any(before.res.Slab))
}

// TestFencedRankReturns: a rank that was late comes back with the buffer that
// it has. Another time it comes back as a new process while the old one still lives.
func TestFencedRankReturns(t *testing.T) {
	w := newWorld(t, 3, ep.Config{NumBytes: 16 << 20})
	w.exchangeAll(trio, rankset.Upto(3))
	for round := range 4 {
		ins := inputs(seeded(t), trio, uniform)
		w.someWithout(rankset.Of(0, 1), 20*time.Millisecond, func(r int, timeout time.Duration) error {
			_, err := w.exchange(r, trio, ins, timeout)
			return err
		})
		old := w.bufs[2]
		_, err := w.exchange(2, trio, ins, time.Second)
		require.ErrorIs(t, err, ep.ErrFenced)
		w.meet(rankset.Upto(3), rankset.FromWord(uint64(round%2)<<2))
		w.exchangeAll(trio, rankset.Upto(3))
		if round%2 == 1 {
			require.ErrorIs(t, old.Release(0), ep.ErrFenced)
			require.NoError(t, old.Close())
		}
		w.exchangeAll(trio, rankset.Upto(3))
	}
}

// TestScale: declared for 8 ranks, 4 come first, then others leave and come.
func TestScale(t *testing.T) {
	s := shape{ranks: 8, maxTokens: 6, hidden: 16, experts: 16, topk: 4}
	w := newPartialWorld(t, 8, rankset.Upto(4), ep.Config{NumBytes: 16 << 20})
	w.exchangeAll(s, rankset.Upto(4))
	w.meet(rankset.Of(0, 1, 3), rankset.Set{})
	w.exchangeAll(s, rankset.Of(0, 1, 3))
	w.meet(rankset.Upto(4), rankset.Of(2))
	w.exchangeAll(s, rankset.Upto(4))
	w.meet(rankset.Upto(6), rankset.Of(4, 5))
	w.exchangeAll(s, rankset.Upto(6))
	w.meet(rankset.Upto(8), rankset.Of(6, 7))
	for range 3 {
		w.exchangeAll(s, rankset.Upto(8))
	}
}

// TestUpdateEndsCalls: an update ends operations in flight; between Prepare
// and Install calls say what is going on.
func TestUpdateEndsCalls(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
	in := pairInput(0)
	waiting := w.start(0, pair, &in, -1)
	w.waits(0)
	_, err := w.bufs[0].Prepare()
	require.NoError(t, err)
	require.ErrorIs(t, within(t, waiting), ep.ErrUpdating)
	_, err = w.dispatch(0, pair, &in)
	require.ErrorIs(t, err, ep.ErrUpdating)
	w.meet(rankset.Of(0, 1), rankset.Set{})
	w.exchangeAll(pair, rankset.Of(0, 1))
}

// TestSpares: any number of late ranks cost a bounded number of slabs, as long
// as each one is quiesced before the next.
func TestSpares(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
	size := w.bufs[0].Counters().SlabBytes
	for range 20 {
		ins := inputs(seeded(t), pair, uniform)
		for range 3 {
			_, err := w.exchange(0, pair, ins, 0)
			require.NoError(t, err)
		}
		_, err := w.exchange(1, pair, ins, 0)
		require.ErrorIs(t, err, ep.ErrFenced)
		w.meet(rankset.Of(0, 1), rankset.Set{})
		w.exchangeAll(pair, rankset.Of(0, 1))
	}
	require.LessOrEqual(t, w.bufs[0].Counters().SlabBytes, 3*size)
}
