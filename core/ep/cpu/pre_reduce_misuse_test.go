package cpu_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/inproc"
)

// TestBadPreReduceDispatch: a dispatch that cannot be pre-reduced is refused, and nothing
// has happened.
func TestBadPreReduceDispatch(t *testing.T) {
	w := newWorld(t, 1, ep.Config{NumBytes: 24 << 20})
	s := small
	s.ranks, s.preReduce = 1, true
	in := randomInput(r2(0), 4, s.hidden, s.topk, s.experts, uniform)
	for name, c := range map[string]struct {
		change func(*ep.DispatchArgs)
		says   string
	}{
		"no weights":    {func(a *ep.DispatchArgs) { a.TopkWeights = nil }, "topk_weights has 0 entries, pre_reduce with topk_idx [4, 2] needs 8"},
		"short weights": {func(a *ep.DispatchArgs) { a.TopkWeights = a.TopkWeights[:7] }, "topk_weights has 7 entries, pre_reduce with topk_idx [4, 2] needs 8"},
		"flat":          {func(a *ep.DispatchArgs) { a.Flat = true }, "pre_reduce is set with flat rows, allowed with rows per expert only"},
		"not asked":     {func(a *ep.DispatchArgs) { a.PreReduce = false }, "topk_weights are given, allowed with flat rows only, or with pre_reduce"},
	} {
		t.Run(name, func(t *testing.T) {
			var d dispatched
			a := w.args(0, s, &in, &d)
			c.change(a)
			_, err := w.bufs[0].Dispatch(a, &d.res, ep.PhaseDone, -1)
			require.ErrorIs(t, err, ep.ErrInvalid)
			require.ErrorContains(t, err, c.says)
			require.NoError(t, w.preReduceTrip(0, s, &in, true))
		})
	}
}

// TestBadPreReduceCombine: a combine with other selections or weights than those that
// remote ranks have is refused, and a right one goes on afterwards.
func TestBadPreReduceCombine(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 24 << 20})
	s := small
	s.preReduce = true
	w.each(func(rank int) error {
		in := randomInput(r2(rank), 4, s.hidden, s.topk, s.experts, uniform)
		in.topk[3], in.weights[0] = -1, 0
		d, err := w.dispatch(rank, s, &in)
		if err != nil {
			return err
		}
		d.answer(rank, s, d.res.CombineX)
		out := make([]byte, in.tokens*s.hidden*2)
		for _, c := range []struct {
			change func(*ep.CombineArgs)
			says   string
		}{
			{func(a *ep.CombineArgs) { a.TopkIdx[5] = -1 }, "topk_idx[2, 1] is -1, the dispatch had"},
			{func(a *ep.CombineArgs) { a.TopkIdx[3] = 1 }, "topk_idx[1, 1] is 1, the dispatch had -1"},
			{func(a *ep.CombineArgs) { a.TopkWeights[6] += 1 }, "topk_weights[3, 0] is"},
			{func(a *ep.CombineArgs) { a.TopkWeights[0] = float32(math.Copysign(0, -1)) }, "topk_weights[0, 0] is -0, the dispatch had 0"},
			{func(a *ep.CombineArgs) { a.TopkWeights = a.TopkWeights[:7] }, "8 and 7 entries, need 8"},
		} {
			a := combineArgs(d, &in, out)
			a.TopkIdx, a.TopkWeights = slices.Clone(in.topk), slices.Clone(in.weights)
			c.change(a)
			_, err := w.bufs[rank].Combine(d.res.Op, a, ep.PhaseDone, -1)
			require.ErrorIs(t, err, ep.ErrInvalid)
			require.ErrorContains(t, err, c.says)
		}
		a := combineArgs(d, &in, out)
		a.TopkWeights = slices.Clone(in.weights)
		a.TopkWeights[3] = 77 // of no selection: no code looks at it
		if _, err := w.bufs[rank].Combine(d.res.Op, a, ep.PhaseDone, -1); err != nil {
			return err
		}
		return differ(s, rank, out, s.wantPreReduce(&in, alive, func(token int, e int64, h int) float32 { return s.noise(rank, token, e, h) }))
	})
}

// TestPreReduceLateCombine: the weights are those of the dispatch, also when the
// caller's have changed since.
func TestPreReduceLateCombine(t *testing.T) {
	useHosts(t, twoHosts)
	w := newWorld(t, 2, ep.Config{NumBytes: 24 << 20})
	s := small
	s.preReduce = true
	w.each(func(rank int) error {
		in := randomInput(r2(rank), 4, s.hidden, s.topk, s.experts, uniform)
		kept := slices.Clone(in.weights)
		var d dispatched
		p, err := w.bufs[rank].Dispatch(w.args(rank, s, &in, &d), &d.res, ep.PhaseSent, -1)
		if err != nil {
			return err
		}
		for i := range in.weights {
			in.weights[i] = -1
		}
		if p != nil {
			if err := p.Wait(ep.PhaseDone, -1); err != nil {
				return err
			}
			if err := p.Result(&d.res); err != nil {
				return err
			}
		}
		in.weights = kept
		d.answer(rank, s, d.res.CombineX)
		out := make([]byte, in.tokens*s.hidden*2)
		if _, err := w.bufs[rank].Combine(d.res.Op, combineArgs(&d, &in, out), ep.PhaseDone, -1); err != nil {
			return err
		}
		return differ(s, rank, out, s.wantPreReduce(&in, alive, func(token int, e int64, h int) float32 { return s.noise(rank, token, e, h) }))
	})
}

// TestPreReduceRowTooLong: the entries of K selections count, too.
func TestPreReduceRowTooLong(t *testing.T) {
	useHosts(t, func(n int) inproc.Hosts {
		h := twoHosts(n)
		h.MaxMessageBytes = 640
		return h
	})
	w := newWorld(t, 2, ep.Config{NumBytes: 24 << 20})
	s := shape{ranks: 2, maxTokens: 4, hidden: 16, experts: 4, topk: 64, preReduce: true}
	for rank := range w.bufs {
		in := randomInput(r2(rank), 4, s.hidden, s.topk, s.experts, uniform)
		_, err := w.dispatch(rank, s, &in)
		require.ErrorIs(t, err, ep.ErrInvalid)
		require.ErrorContains(t, err, "pre_reduce of 64 selections")
		require.ErrorContains(t, err, "640 bytes of a message")
	}
	s.preReduce = false
	w.each(func(rank int) error {
		in := randomInput(r2(rank), 4, s.hidden, s.topk, s.experts, uniform)
		return w.preReduceTrip(rank, s, &in, true)
	})
}

// TestPreReduceLoss: if a rank dies after its rows have come and before its outputs, its
// whole sum is missing.
func TestPreReduceLoss(t *testing.T) {
	useHosts(t, twoHosts)
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
	s := small
	s.preReduce = true
	ins := []input{remoteInput(0), remoteInput(1)}
	var ds [2]*dispatched
	w.each(func(rank int) (err error) {
		ds[rank], err = w.dispatch(rank, s, &ins[rank])
		return err
	})
	inproc.Kill(w.doms[0], 1)
	ds[0].answer(0, s, ds[0].res.CombineX)
	mask, out := ones(2), make([]byte, ins[0].tokens*s.hidden*2)
	c := combineArgs(ds[0], &ins[0], out)
	c.ActiveRanks, c.Timeout = mask, 20*time.Second
	_, err := w.bufs[0].Combine(ds[0].res.Op, c, ep.PhaseDone, -1)
	require.NoError(t, err)
	require.Equal(t, []int32{1, 0}, mask)
	dead := func(e int64) bool { return e >= 2 }
	require.NoError(t, differ(s, 0, out, s.wantPreReduce(&ins[0], dead, func(token int, e int64, h int) float32 { return s.noise(0, token, e, h) })))
}
