package cpu_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
)

// oneWayArgs are of a gather of one rank: rows of 5 tokens, of which 1 and 3 go.
func oneWayArgs() *ep.DispatchArgs {
	const hidden, tokens = 16, 5
	a := &ep.DispatchArgs{
		Flat: true, Use: protocol.ForGather, Hidden: hidden, TopK: 1, MaxTokens: 2, NumExperts: 1, NumTokens: tokens,
		Listed: []int32{1, 3}, TopkIdx: []int64{0, 0}, RecvCount: make([]int32, 1), LayoutRange: make([]int64, 1), Timeout: -1,
		Columns: ep.Columns{NoRouting: true, ExtraRowBytes: [protocol.NumExtras]int{4}},
	}
	for t := range tokens {
		a.X = append(a.X, bytes.Repeat([]byte{byte(t)}, 2*hidden)...)
		a.Extra[0] = append(a.Extra[0], byte(t), 0, 0, byte(t))
	}
	return a
}

// TestListedTokens: the rows and the columns of the listed tokens come, in order; each time those of
// this list, although ids and sizes are the same.
func TestListedTokens(t *testing.T) {
	w := newWorld(t, 1, ep.Config{NumBytes: 24 << 20})
	for _, list := range [][]int32{{1, 3}, {0, 4}, {1, 3}, {2, 3}, {2}, {}} {
		var res ep.Result
		a := oneWayArgs()
		a.Listed, a.TopkIdx = list, a.TopkIdx[:len(list)]
		_, err := w.bufs[0].Dispatch(a, &res, ep.PhaseDone, -1)
		require.NoError(t, err)
		require.Equal(t, int64(len(list)), a.LayoutRange[0])
		for i, token := range list {
			require.Equal(t, a.X[int(token)*32:][:32], res.RecvX[i*32:][:32], "row %d of %v", i, list)
			require.Equal(t, a.Extra[0][token*4:][:4], res.Columns[2][i*4:][:4], "column of row %d of %v", i, list)
		}
		require.NoError(t, w.bufs[0].Release(res.Op))
	}
}

// TestBadOneWay: every mistake is named and consumes nothing.
func TestBadOneWay(t *testing.T) {
	w := newWorld(t, 1, ep.Config{NumBytes: 24 << 20})
	for says, change := range map[string]func(a *ep.DispatchArgs){
		"rows of a gather are not flat":                    func(a *ep.DispatchArgs) { a.NoRouting, a.TopkWeights = false, make([]float32, 5) },
		"tokens are listed in a dispatch":                  func(a *ep.DispatchArgs) { a.Use, a.MaxTokens = protocol.ForCombine, 5 },
		"listed[1] is token 1, allowed 2 to 4":             func(a *ep.DispatchArgs) { a.Listed[1] = 1 },
		"listed[1] is token 5, allowed 2 to 4":             func(a *ep.DispatchArgs) { a.Listed[1] = 5 },
		"listed[0] is token -1, allowed 0 to 4":            func(a *ep.DispatchArgs) { a.Listed[0] = -1 },
		"topk_idx has 1 entries, [2, 1] needs 2":           func(a *ep.DispatchArgs) { a.TopkIdx = a.TopkIdx[:1] },
		"topk_idx[1, 0] is 1, allowed -1 to 0":             func(a *ep.DispatchArgs) { a.TopkIdx[1] = 1 },
		"x has more than 1 tokens for rank 0":              func(a *ep.DispatchArgs) { a.MaxTokens = 1 },
		"x has 2 tokens for several ranks each, allowed 1": func(a *ep.DispatchArgs) { a.MaxTokens, a.TopK, a.TopkIdx = 1, 2, make([]int64, 4) },
		"x has 160 bytes, 6 tokens of hidden 16 need 192":  func(a *ep.DispatchArgs) { a.NumTokens = 6 },
		"extra[0] has 16 bytes, 5 tokens of 4 need 20":     func(a *ep.DispatchArgs) { a.Extra[0] = a.Extra[0][:16] },
	} {
		a := oneWayArgs()
		change(a)
		_, err := w.bufs[0].Dispatch(a, new(ep.Result), ep.PhaseDone, -1)
		require.ErrorIs(t, err, ep.ErrInvalid, says)
		require.ErrorContains(t, err, says)
	}
	var res ep.Result
	_, err := w.bufs[0].Dispatch(oneWayArgs(), &res, ep.PhaseDone, -1)
	require.NoError(t, err)
	require.Zero(t, res.Op, "the number of the first operation")
}
