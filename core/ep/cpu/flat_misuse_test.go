package cpu_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
)

var flatPair = flatShape{shape: pair, extra: [protocol.NumExtras]int{4}}

// TestFlatMismatch: ranks that disagree are told the same by name, no rank
// waits for the other, and the buffer stays usable.
func TestFlatMismatch(t *testing.T) {
	for _, deterministic := range []bool{false, true} {
		w := newWorld(t, 2, ep.Config{NumBytes: 24 << 20, Deterministic: deterministic})
		for name, c := range map[string]struct {
			change func(*ep.DispatchArgs)
			says   string
		}{
			"packed": {func(a *ep.DispatchArgs) {
				a.Flat, a.Columns = false, ep.Columns{}
			}, "form is "},
			"K": {func(a *ep.DispatchArgs) {
				a.TopK, a.TopkIdx, a.TopkWeights, a.NumTokens = 1, a.TopkIdx[:4], a.TopkWeights[:4], 4
			}, "num_topk is "},
			"no routing":  {func(a *ep.DispatchArgs) { a.NoRouting, a.TopkWeights = true, nil }, "sending of topk_idx and topk_weights is "},
			"wider extra": {func(a *ep.DispatchArgs) { a.ExtraRowBytes[0], a.Extra[0] = 5, make([]byte, 20) }, "bytes per row of extra[0] is "},
			"more extra":  {func(a *ep.DispatchArgs) { a.ExtraRowBytes[3], a.Extra[3] = 65535, make([]byte, 4*65535) }, "bytes per row of extra[3] is "},
			"outputs":     {func(a *ep.DispatchArgs) { a.OutputType = protocol.FP32 }, "output dtype is "},
			"M":           {func(a *ep.DispatchArgs) { a.MaxTokens++ }, "num_max_tokens_per_rank is "},
		} {
			t.Run(name, func(t *testing.T) {
				ins := make([]flatInput, 2)
				for r := range ins {
					ins[r].input, ins[r].extra[0] = pairInput(r), make([]byte, 16)
				}
				w.each(func(r int) error {
					d := new(dispatched)
					a := w.flatArgs(r, flatPair, &ins[r], d)
					if r == 1 {
						c.change(a)
					}
					_, err := w.bufs[r].Dispatch(a, &d.res, ep.PhaseDone, -1)
					require.ErrorIs(t, err, ep.ErrMismatch)
					require.ErrorContains(t, err, c.says)
					return nil
				})
				w.flatExchangeAll(flatPair, rankset.Of(0, 1))
				w.exchangeAll(pair, rankset.Of(0, 1))
			})
		}
	}
}

// TestBadFlatDispatch: every mistake is named and consumes nothing.
func TestBadFlatDispatch(t *testing.T) {
	w := newWorld(t, 1, ep.Config{NumBytes: 24 << 20})
	s := flatShape{shape: shape{ranks: 1, maxTokens: 4, hidden: 16, experts: 4, topk: 2}, extra: [protocol.NumExtras]int{0, 6}}
	in := flatInput{input: randomInput(r2(0), 4, 16, 2, 4, uniform)}
	in.extra[1] = make([]byte, 24)
	for name, c := range map[string]struct {
		change func(*ep.DispatchArgs)
		says   string
	}{
		"short weights":   {func(a *ep.DispatchArgs) { a.TopkWeights = a.TopkWeights[:7] }, "topk_weights has 7 entries, [4, 2] needs 8"},
		"short extra":     {func(a *ep.DispatchArgs) { a.Extra[1] = a.Extra[1][:23] }, "extra[1] has 23 bytes, 4 tokens of 6 need 24"},
		"wide extra":      {func(a *ep.DispatchArgs) { a.ExtraRowBytes[2] = 1 << 16 }, "extra[2] has 65536 bytes per row, allowed 0 to 65535"},
		"K":               {func(a *ep.DispatchArgs) { a.TopK = 65 }, "num_topk is 65, allowed 1 to 64"},
		"no K":            {func(a *ep.DispatchArgs) { a.TopK = 0 }, "num_topk is 0, allowed 1 to 64"},
		"expert":          {func(a *ep.DispatchArgs) { a.TopkIdx = []int64{0, 1, 2, 4, 0, 1, 0, 1} }, "topk_idx[1, 1] is 4"},
		"weights, packed": {func(a *ep.DispatchArgs) { a.Flat, a.ExtraRowBytes = false, [protocol.NumExtras]int{} }, "topk_weights are given, allowed with flat rows only"},
		"extra, packed":   {func(a *ep.DispatchArgs) { a.Flat, a.TopkWeights = false, nil }, "extra[1] without flat rows"},
		"fp8 hidden":      {func(a *ep.DispatchArgs) { a.RowType = protocol.FP8 }, "multiples of 128"},
	} {
		t.Run(name, func(t *testing.T) {
			d := new(dispatched)
			a := w.flatArgs(0, s, &in, d)
			c.change(a)
			_, err := w.bufs[0].Dispatch(a, &d.res, ep.PhaseDone, -1)
			require.ErrorIs(t, err, ep.ErrInvalid)
			require.ErrorContains(t, err, c.says)
			require.NoError(t, w.flatTrip(0, s, []flatInput{in}, true))
		})
	}
}

func TestBadFlatCombine(t *testing.T) {
	w := newWorld(t, 1, ep.Config{NumBytes: 24 << 20, NumSlots: 2})
	s := flatShape{shape: shape{ranks: 1, maxTokens: 4, hidden: 16, experts: 4, topk: 2}}
	in := flatInput{input: randomInput(r2(0), 4, 16, 2, 4, uniform)}
	d, err := w.dispatchFlat(0, s, &in)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		change func(*ep.CombineArgs)
		says   string
	}{
		"packed":      {func(a *ep.CombineArgs) { a.Flat = false }, "a packed combine of a handle whose dispatch was flat"},
		"other T":     {func(a *ep.CombineArgs) { a.NumTokens = 3 }, "out is for 3 tokens, the dispatch had 4"},
		"short x":     {func(a *ep.CombineArgs) { a.X = a.X[:4*32-1] }, "x has 127 bytes, the expert outputs have 128"},
		"short out":   {func(a *ep.CombineArgs) { a.Out = a.Out[1:] }, "out has 127 bytes"},
		"x elsewhere": {func(a *ep.CombineArgs) { a.X = make([]byte, 128) }, "zero_copy"},
	} {
		t.Run(name, func(t *testing.T) {
			a := flatCombineArgs(d, s, &in, d.res.CombineX, true)
			c.change(a)
			_, err := w.bufs[0].Combine(d.res.Op, a, ep.PhaseDone, -1)
			require.ErrorIs(t, err, ep.ErrInvalid)
			require.ErrorContains(t, err, c.says)
		})
	}
	packed, err := w.dispatch(0, s.shape, &in.input)
	require.NoError(t, err)
	_, err = w.bufs[0].Combine(packed.res.Op, flatCombineArgs(packed, s, &in, packed.res.CombineX, true), ep.PhaseDone, -1)
	require.ErrorContains(t, err, "a flat combine of a handle whose dispatch was packed")
}

// TestNoAllocationsFlat: flat operations allocate nothing either.
func TestNoAllocationsFlat(t *testing.T) {
	w := newWorld(t, 1, ep.Config{NumBytes: 12 << 20})
	s := flatShape{shape: shape{ranks: 1, maxTokens: 8, hidden: 16, experts: 4, topk: 2}, extra: [protocol.NumExtras]int{8}}
	in := flatInput{input: randomInput(r2(0), 8, 16, 2, 4, uniform)}
	in.extra[0] = make([]byte, 64)
	var d dispatched
	a := w.flatArgs(0, s, &in, &d)
	c := &ep.CombineArgs{Flat: true, Out: make([]byte, 8*32), NumTokens: 8, Timeout: time.Second}
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

// TestFlatStats: rows and bytes are what the routing says. There is no load of
// experts, because a flat row belongs to none.
func TestFlatStats(t *testing.T) {
	r := seeded(t)
	s := flatShape{shape: shape{ranks: 3, maxTokens: 9, hidden: 64, experts: 12, topk: 4}, extra: [protocol.NumExtras]int{5}}
	w := newWorld(t, s.ranks, ep.Config{NumBytes: 64 << 20})
	to := make([][]uint64, s.ranks) // [rank][destination]
	from := make([][]uint64, s.ranks)
	for i := range to {
		to[i], from[i] = make([]uint64, s.ranks), make([]uint64, s.ranks)
	}
	for i := range 20 {
		ins := flatInputs(r, s, routings[i%len(routings)])
		for dst := range s.ranks {
			for _, row := range wantFlatRows(dst, s, ins, nobody) {
				to[row.source][dst]++
				from[dst][row.source]++
			}
		}
		w.each(func(rank int) error { return w.flatTrip(rank, s, ins, true) })
	}
	for rank, b := range w.bufs {
		got, err := b.Stats()
		require.NoError(t, err)
		sent := uint64(0)
		for _, n := range to[rank] {
			sent += n
		}
		require.Equal(t, to[rank], got.RowsTo)
		require.Equal(t, from[rank], got.RowsFrom)
		require.Empty(t, got.Experts)
		require.Equal(t, sent, got.Dispatch.RowsOut)
		require.Equal(t, sent*(64*2+4+4*12+5), got.Dispatch.Bytes)
		require.Equal(t, sent, got.Combine.RowsOut, "a row is pulled once")
		require.Equal(t, sent*64*2, got.Combine.Bytes)
	}
}
