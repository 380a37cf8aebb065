package cpu_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/protocol"
)

var small = shape{ranks: 2, maxTokens: 4, hidden: 16, experts: 4, topk: 2}

// TestBadDispatch: every mistake is named, consumes nothing, and the same
// operation works afterwards although the peer has been waiting for it.
func TestBadDispatch(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, 2, ep.Config{NumBytes: 12 << 20})
	for name, c := range map[string]struct {
		change func(*ep.DispatchArgs)
		says   string
	}{
		"T > M":              {func(a *ep.DispatchArgs) { a.MaxTokens = a.NumTokens - 1 }, "num_max_tokens_per_rank"},
		"hidden":             {func(a *ep.DispatchArgs) { a.Hidden = 12 }, "hidden is 12, allowed multiples of 8 up to 1073741824"},
		"fp8 hidden":         {func(a *ep.DispatchArgs) { a.RowType = protocol.FP8 }, "multiples of 128"},
		"float32 rows":       {func(a *ep.DispatchArgs) { a.RowType = protocol.FP32 }, "rows of float32, allowed bf16 and fp8"},
		"fp8 outputs":        {func(a *ep.DispatchArgs) { a.OutputType = protocol.FP8 }, "expert outputs of fp8, allowed bf16 and float32"},
		"K":                  {func(a *ep.DispatchArgs) { a.TopK = 65 }, "num_topk is 65, allowed 1 to 64"},
		"E % R":              {func(a *ep.DispatchArgs) { a.NumExperts = 5 }, "num_experts is 5, allowed multiples of num_ranks 2"},
		"expert too large":   {func(a *ep.DispatchArgs) { a.TopkIdx = []int64{0, 1, 2, 3, 0, 4, 1, 2} }, "topk_idx[2, 1] is 4, allowed -1 to 3"},
		"expert negative":    {func(a *ep.DispatchArgs) { a.TopkIdx = []int64{0, 1, -2, 3, 0, 3, 1, 2} }, "topk_idx[1, 0] is -2"},
		"x too short":        {func(a *ep.DispatchArgs) { a.X = a.X[1:] }, "x has 127 bytes"},
		"topk too short":     {func(a *ep.DispatchArgs) { a.TopkIdx = a.TopkIdx[1:] }, "topk_idx has 7 entries"},
		"active too short":   {func(a *ep.DispatchArgs) { a.ActiveRanks = []int32{1} }, "active_ranks has 1 entries, allowed 2"},
		"too big for buffer": {func(a *ep.DispatchArgs) { a.MaxTokens = 1 << 20 }, "bytes per slot, the buffer has 6291456"},
		"results too short":  {func(a *ep.DispatchArgs) { a.RecvCount = nil }, "recv_count"},
	} {
		t.Run(name, func(t *testing.T) {
			ins := []input{randomInput(r, 4, 16, 2, 4, uniform), randomInput(r, 3, 16, 2, 4, uniform)}
			w.each(func(rank int) error {
				if rank == 0 {
					var d dispatched
					a := w.args(0, small, &ins[0], &d)
					c.change(a)
					_, err := w.bufs[0].Dispatch(a, &d.res, ep.PhaseDone, -1)
					require.ErrorIs(t, err, ep.ErrInvalid)
					require.ErrorContains(t, err, c.says)
				}
				return w.roundTrip(rank, small, ins)
			})
		})
	}
}

func TestBadCombine(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, 1, ep.Config{})
	s := shape{ranks: 1, maxTokens: 4, hidden: 16, experts: 4, topk: 2}
	ins := []input{randomInput(r, 4, 16, 2, 4, uniform)}
	d, err := w.dispatch(0, s, &ins[0])
	require.NoError(t, err)
	d.compute(0, s)
	for name, c := range map[string]struct {
		change func(*ep.CombineArgs)
		says   string
	}{
		"other routing":   {func(a *ep.CombineArgs) { a.TopkIdx = []int64{9, 9, 9, 9, 9, 9, 9, 9} }, "topk_idx[0, 0] is 9, the dispatch had"},
		"other T":         {func(a *ep.CombineArgs) { a.NumTokens = 3 }, "topk_idx is [3, 2], the dispatch had [4, 2]"},
		"short weights":   {func(a *ep.CombineArgs) { a.TopkWeights = nil }, "topk_weights"},
		"short out":       {func(a *ep.CombineArgs) { a.Out = a.Out[1:] }, "out has 127 bytes"},
		"short x":         {func(a *ep.CombineArgs) { a.X = a.X[1:] }, "x has"},
		"x elsewhere":     {func(a *ep.CombineArgs) { a.X = make([]byte, len(a.X)) }, "zero_copy"},
		"active, too few": {func(a *ep.CombineArgs) { a.ActiveRanks = []int32{} }, "active_ranks has 0 entries"},
	} {
		t.Run(name, func(t *testing.T) {
			a := &ep.CombineArgs{
				X: d.res.CombineX, ZeroCopy: true, TopkIdx: ins[0].topk, TopkWeights: ins[0].weights,
				Out: make([]byte, 128), NumTokens: 4, TopK: 2, Timeout: time.Second,
			}
			c.change(a)
			_, err := w.bufs[0].Combine(d.res.Op, a, ep.PhaseDone, -1)
			require.ErrorIs(t, err, ep.ErrInvalid)
			require.ErrorContains(t, err, c.says)
		})
	}
	require.NoError(t, w.combineAndCheck(0, s, ins, d))
}

func TestStaleHandles(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, 1, ep.Config{})
	s := shape{ranks: 1, maxTokens: 4, hidden: 16, experts: 4, topk: 2}
	ins := []input{randomInput(r, 4, 16, 2, 4, uniform)}
	first, err := w.dispatch(0, s, &ins[0])
	require.NoError(t, err)
	first.compute(0, s)
	require.NoError(t, w.combineAndCheck(0, s, ins, first))
	require.NoError(t, w.combineAndCheck(0, s, ins, first), "a second combine of the same handle")
	_, err = w.dispatch(0, s, &ins[0]) // releases what was combined
	require.NoError(t, err)
	_, err = w.combine(0, s, &ins[0], first)
	require.ErrorIs(t, err, ep.ErrStaleHandle)
	require.ErrorIs(t, w.bufs[0].Release(first.res.Op), ep.ErrStaleHandle)
	require.ErrorIs(t, w.bufs[0].Release(99), ep.ErrNoHandle)
}

// TestKeepHeld: a dispatch that would take the slot of a live handle that was
// never combined is refused, and nothing happens.
func TestKeepHeld(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, 1, ep.Config{NumSlots: 2})
	s := shape{ranks: 1, maxTokens: 4, hidden: 16, experts: 4, topk: 2}
	ins := []input{randomInput(r, 4, 16, 2, 4, uniform)}
	keep := func() (*dispatched, error) {
		d := new(dispatched)
		a := w.args(0, s, &ins[0], d)
		a.KeepHeld = true
		_, err := w.bufs[0].Dispatch(a, &d.res, ep.PhaseDone, -1)
		return d, err
	}
	first, err := keep()
	require.NoError(t, err)
	second, err := keep()
	require.NoError(t, err)
	for range 2 {
		_, err = keep()
		require.ErrorIs(t, err, ep.ErrHeld)
		require.ErrorContains(t, err, "2 operations are in flight and held, num_slots=2")
	}
	for _, d := range []*dispatched{first, second} { // as they were
		require.NoError(t, d.check(0, s, ins))
		d.compute(0, s)
		require.NoError(t, w.combineAndCheck(0, s, ins, d))
	}
	third, err := keep() // in the slot of one that was combined
	require.NoError(t, err)
	require.NoError(t, w.bufs[0].Release(third.res.Op))
	fourth, err := keep()
	require.NoError(t, err)
	_, err = keep() // in the slot of one that was released
	require.NoError(t, err)
	_, err = w.dispatch(0, s, &ins[0]) // without the flag the fourth is overwritten
	require.NoError(t, err)
	_, err = w.combine(0, s, &ins[0], fourth)
	require.ErrorIs(t, err, ep.ErrStaleHandle)
}

// skipIfRacing: ranks that disagree about a shape may store rows at the same
// place of one slot before either can know. The detector is right to say so,
// and the test is about what both are told afterwards.
func skipIfRacing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector objects to what a disagreement is")
	}
}

// TestDisagreement: if the calls of two ranks for one operation differ, both get an
// error with both values, and the buffer goes on working.
func TestDisagreement(t *testing.T) {
	skipIfRacing(t)
	r := seeded(t)
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
	for name, c := range map[string]struct {
		other shape
		says  string
	}{
		"M":     {shape{ranks: 2, maxTokens: 5, hidden: 16, experts: 4, topk: 2}, "num_max_tokens_per_rank is"},
		"H":     {shape{ranks: 2, maxTokens: 4, hidden: 24, experts: 4, topk: 2}, "hidden is"},
		"E":     {shape{ranks: 2, maxTokens: 4, hidden: 16, experts: 6, topk: 2}, "num_experts is"},
		"dtype": {shape{ranks: 2, maxTokens: 4, hidden: 128, experts: 4, topk: 2, fp8: true}, "is"},
		"scales": {shape{ranks: 2, maxTokens: 4, hidden: 512, experts: 4, topk: 2, fp8: true, scales: protocol.FP8Pow2},
			"the format of fp8 scales is"},
		"scale words": {shape{ranks: 2, maxTokens: 4, hidden: 512, experts: 4, topk: 2, fp8: true, scales: protocol.FP8UE8M0},
			"the format of fp8 scales is"},
		"outputs": {shape{ranks: 2, maxTokens: 4, hidden: 16, experts: 4, topk: 2, fp32: true},
			"output dtype is"},
		"much bigger": {shape{ranks: 2, maxTokens: 4000, hidden: 512, experts: 2, topk: 2}, "is"},
	} {
		t.Run(name, func(t *testing.T) {
			shapes := []shape{small, c.other}
			if c.other.scales != 0 {
				shapes[0] = c.other
				shapes[0].scales = 0
			}
			w.each(func(rank int) error {
				in := randomInput(r2(rank), 4, shapes[rank].hidden, 2, shapes[rank].experts, uniform)
				_, err := w.dispatch(rank, shapes[rank], &in)
				if name == "much bigger" && rank == 1 {
					require.ErrorIs(t, err, ep.ErrInvalid) // never fits: nothing was sent
					_, err = w.dispatch(rank, shape{ranks: 2, maxTokens: 4, hidden: 24, experts: 4, topk: 2}, &in)
				}
				require.ErrorIs(t, err, ep.ErrMismatch)
				require.ErrorContains(t, err, c.says)
				require.ErrorContains(t, err, "on rank 0")
				require.ErrorContains(t, err, "on rank 1")
				return nil
			})
			ins := inputs(r, small, uniform)
			w.each(func(rank int) error { return w.roundTrip(rank, small, ins) })
		})
	}
}

// TestUnevenSlots: rank 1 sized its slots by a larger first dispatch than
// rank 0; rank 0's slots have no room for what rank 1 would send.
func TestUnevenSlots(t *testing.T) {
	skipIfRacing(t)
	r := seeded(t)
	w := newWorld(t, 2, ep.Config{})
	shapes := []shape{small, {ranks: 2, maxTokens: 40000, hidden: 64, experts: 4, topk: 2}}
	w.each(func(rank int) error {
		in := randomInput(r2(rank), 4, shapes[rank].hidden, 2, 4, uniform)
		_, err := w.dispatch(rank, shapes[rank], &in)
		require.ErrorIs(t, err, ep.ErrMismatch)
		return nil
	})
	ins := inputs(r, small, uniform)
	w.each(func(rank int) error { return w.roundTrip(rank, small, ins) })
}

func TestClosed(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, 1, ep.Config{})
	require.NoError(t, w.bufs[0].Close())
	require.NoError(t, w.bufs[0].Close(), "closing twice does nothing")
	in := randomInput(r, 1, 16, 2, 4, uniform)
	_, err := w.dispatch(0, shape{ranks: 1, maxTokens: 4, hidden: 16, experts: 4, topk: 2}, &in)
	require.ErrorIs(t, err, ep.ErrClosed)
}

func TestBadConfig(t *testing.T) {
	for _, cfg := range []ep.Config{{NumSlots: 65}, {NumSlots: -1}, {NumBytes: -1}, {NumBytes: 5}} {
		_, err := cpu.Params(cfg, ep.Standing{})
		require.ErrorIs(t, err, ep.ErrInvalid, "%+v", cfg)
	}
	two, err := cpu.Params(ep.Config{NumSlots: 2}, ep.Standing{})
	require.NoError(t, err)
	three, err := cpu.Params(ep.Config{NumSlots: 3}, ep.Standing{})
	require.NoError(t, err)
	next, err := cpu.CheckParams(0, [][]byte{two, two, nil})
	require.NoError(t, err)
	require.Equal(t, ep.Standing{Epoch: 1}, next)
	later, err := cpu.Params(ep.Config{NumSlots: 2}, ep.Standing{Epoch: 6, Next: 99})
	require.NoError(t, err)
	next, err = cpu.CheckParams(0, [][]byte{two, later})
	require.NoError(t, err)
	require.Equal(t, ep.Standing{Epoch: 7, Next: 99}, next)
	_, err = cpu.CheckParams(0, [][]byte{two, three})
	require.ErrorIs(t, err, ep.ErrMismatch)
	require.ErrorContains(t, err, "num_slots is 3 on rank 1 and 2 on rank 0")
	_, err = cpu.CheckParams(0, [][]byte{two, two[1:]})
	require.ErrorIs(t, err, ep.ErrMismatch)
}
