package gpu_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/gpu"
	"github.com/moewire/moewire/core/internal/testenv"
)

// TestDispatchAndCombine: rows are where the results say, and sums are those of
// plain loops, for ranks of one process.
func TestDispatchAndCombine(t *testing.T) {
	group := newGroup(t, 2)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 2))
	var all []*op
	for _, r := range group {
		all = append(all, newOp(r, rng))
	}
	for _, o := range all {
		o.dispatch()
	}
	for i, o := range all {
		o.r.sync()
		checkRows(all, i)
	}
	for _, o := range all {
		o.combine()
	}
	for _, o := range all {
		o.r.sync()
		o.check()
		require.NoError(t, o.r.Err())
		require.Equal(t, "self", o.r.Path(o.r.self))
		require.Equal(t, "process", o.r.Path(1-o.r.self))
	}
}

// TestHooks: the phases of several operations, launched in an order in which
// each rank finishes its combines late.
func TestHooks(t *testing.T) {
	group := newGroup(t, 2)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 3))
	for range 3 {
		var first, second []*op
		for _, r := range group {
			first, second = append(first, newOp(r, rng)), append(second, newOp(r, rng))
		}
		for i, r := range group {
			a, b := first[i], second[i]
			require.NoError(t, r.Dispatch(&a.args, &a.res, gpu.PhaseSent))
			require.NoError(t, r.Receive(a.res.Handle))
			a.combin.X = a.res.RecvX
			require.NoError(t, r.Combine(a.res.Handle, &a.combin, gpu.PhaseSent))
			// The result of a is still promised.
			require.NoError(t, r.Dispatch(&b.args, &b.res, gpu.PhaseSent))
			require.NotEqual(t, a.res.Slot, b.res.Slot)
			require.NoError(t, r.Reduce(a.res.Handle))
			require.NoError(t, r.Reduce(a.res.Handle))
			b.combine() // receives first
		}
		for i := range group {
			group[i].sync()
			first[i].check()
			second[i].check()
			group[i].used = first[0].x.at - first[0].r.tensors
		}
	}
}

// TestStaleHandles: a handle that was combined ends with the next call for
// another one, one that was released at once, and the oldest when all are held.
func TestStaleHandles(t *testing.T) {
	r := newGroup(t, 1)[0]
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 4))
	a, b, c := newOp(r, rng), newOp(r, rng), newOp(r, rng)
	a.run()
	a.combine() // again
	b.dispatch()
	require.ErrorIs(t, r.Combine(a.res.Handle, &a.combin, gpu.PhaseDone), ep.ErrStaleHandle)
	require.NoError(t, r.Release(b.res.Handle, r.stream))
	require.ErrorIs(t, r.Release(b.res.Handle, r.stream), ep.ErrStaleHandle)
	require.ErrorIs(t, r.Receive(99), ep.ErrNoHandle)
	a.dispatch()
	b.dispatch()
	c.dispatch()
	require.ErrorIs(t, r.Receive(a.res.Handle), ep.ErrStaleHandle)
	c.combine()
	b.combine()
	r.sync()
	a.check()
	b.check()
	c.check()
	require.NoError(t, r.Err())
}

// TestBadInput: nothing has happened, and the error names the argument.
func TestBadInput(t *testing.T) {
	r := newGroup(t, 1)[0]
	o := newOp(r, rand.New(rand.NewPCG(testenv.Seed(t), 5)))
	for text, change := range map[string]func(a *gpu.DispatchArgs){
		"hidden 12":                     func(a *gpu.DispatchArgs) { a.Hidden = 12 },
		"x has 7 tokens":                func(a *gpu.DispatchArgs) { a.NumTokens = 7 },
		"topk_idx has 0 columns":        func(a *gpu.DispatchArgs) { a.TopK = 0 },
		"needs":                         func(a *gpu.DispatchArgs) { a.MaxTokens = 1 << 16 },
		"max_experts is 64":             func(a *gpu.DispatchArgs) { a.NumExperts = 65 },
		"x is a null pointer":           func(a *gpu.DispatchArgs) { a.X = 0 },
		"x is at":                       func(a *gpu.DispatchArgs) { a.X += 2 },
		"topk_idx is a null pointer":    func(a *gpu.DispatchArgs) { a.TopkIdx = 0 },
		"active_ranks is at":            func(a *gpu.DispatchArgs) { a.ActiveRanks += 2 },
		"recv_count is at":              func(a *gpu.DispatchArgs) { a.RecvCount = 2 },
		"layout_range is at":            func(a *gpu.DispatchArgs) { a.LayoutRange = 4 },
		"stats is at":                   func(a *gpu.DispatchArgs) { a.Stats = 4 },
		"format 9 of fp8 scales":        func(a *gpu.DispatchArgs) { a.Scales = 9 },
		"num_max_tokens_per_rank 0":     func(a *gpu.DispatchArgs) { a.MaxTokens = 0 },
		"max_selections is 64":          func(a *gpu.DispatchArgs) { a.TopK = 64; a.NumTokens = 6 },
		"multiples of 512 up to 2^30":   func(a *gpu.DispatchArgs) { a.FP8, a.Scales = true, 2 },
		"x has -1 tokens, allowed 0 to": func(a *gpu.DispatchArgs) { a.NumTokens = -1 },
	} {
		args, res := o.args, gpu.Result{}
		change(&args)
		err := r.Dispatch(&args, &res, gpu.PhaseDone)
		require.ErrorIs(t, err, ep.ErrInvalid, text)
		require.ErrorContains(t, err, text)
		require.Zero(t, res)
	}
	o.dispatch()
	for text, change := range map[string]func(a *gpu.CombineArgs){
		"topk_idx is [9, 3]":             func(a *gpu.CombineArgs) { a.NumTokens = 9 },
		"topk_weights is a null pointer": func(a *gpu.CombineArgs) { a.TopkWeights = 0 },
		"out is a null pointer":          func(a *gpu.CombineArgs) { a.Out = 0 },
		"x is at":                        func(a *gpu.CombineArgs) { a.X = 8 },
	} {
		args := o.combin
		change(&args)
		err := r.Combine(o.res.Handle, &args, gpu.PhaseDone)
		require.ErrorIs(t, err, ep.ErrInvalid, text)
		require.ErrorContains(t, err, text)
	}
	o.combine()
	r.sync()
	o.check()
}

// TestReduceOfTakenSlot: a handle whose slot was taken has its sum, launched by
// the dispatch that took it; one without a combine is stale.
func TestReduceOfTakenSlot(t *testing.T) {
	r := newGroup(t, 1)[0]
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 6))
	a, b := newOp(r, rng), newOp(r, rng)
	a.dispatch()
	a.combin.X = a.res.RecvX
	require.NoError(t, r.Combine(a.res.Handle, &a.combin, gpu.PhaseSent))
	b.dispatch()
	idle := b.res.Handle
	for b.res.Slot != a.res.Slot {
		b.dispatch()
	}
	require.NoError(t, r.Reduce(a.res.Handle))
	for range 8 { // more than there are slots
		b.dispatch()
	}
	require.ErrorIs(t, r.Reduce(idle), ep.ErrStaleHandle)
	r.sync()
	a.check()
	require.NoError(t, r.Err())
}

// TestReduceLongAfter: a second phase that is held while other operations take
// the slot again and again finds its own sums there, and is an error where they
// were given up.
func TestReduceLongAfter(t *testing.T) {
	r := newGroup(t, 1)[0]
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 7))
	held, dropped, other := newOp(r, rng), newOp(r, rng), newOp(r, rng)
	for _, o := range []*op{held, dropped} {
		o.dispatch()
		o.combin.X = o.res.RecvX
		require.NoError(t, r.Combine(o.res.Handle, &o.combin, gpu.PhaseSent))
	}
	require.NoError(t, r.Release(dropped.res.Handle, r.stream))
	for range 9 { // of two slots
		other.run()
		require.NoError(t, r.Reduce(held.res.Handle))
		require.ErrorIs(t, r.Reduce(dropped.res.Handle), ep.ErrStaleHandle)
	}
	r.sync()
	held.check()
	other.check()
	require.NoError(t, r.Err())
}

// TestReduceOfTheForgotten: what is not known any more is an error.
func TestReduceOfTheForgotten(t *testing.T) {
	r := newGroup(t, 1)[0]
	o := newOp(r, rand.New(rand.NewPCG(testenv.Seed(t), 8)))
	o.run()
	first := o.res.Handle
	o.run()
	o.run()
	r.SkipHandles(4093)
	require.NoError(t, r.Reduce(first))
	r.SkipHandles(1)
	err := r.Reduce(first)
	require.ErrorIs(t, err, ep.ErrStaleHandle)
	require.ErrorContains(t, err, "1, which 4096 others have followed")
	o.run()
	r.sync()
	o.check()
}
