package cuda_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/protocol"
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
			require.NoError(t, r.Dispatch(&a.args, &a.res, ep.PhaseSent))
			require.NoError(t, r.Receive(a.res.Handle))
			a.combin.Device.X = a.res.RecvX
			ticket, err := r.Combine(a.res.Handle, &a.combin, ep.PhaseSent)
			require.NoError(t, err)
			// The result of a is still promised.
			require.NoError(t, r.Dispatch(&b.args, &b.res, ep.PhaseSent))
			require.NotEqual(t, a.res.Slot, b.res.Slot)
			require.NoError(t, r.Reduce(ticket))
			require.NoError(t, r.Reduce(ticket))
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

// TestKeepHeld: what TestStaleHandles shows of the oldest handle is refused on
// request. A handle that was combined makes room, also if another one is older, and so
// does one that is left to its graph.
func TestKeepHeld(t *testing.T) {
	r := newGroup(t, 1)[0]
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 5))
	a, b, c := newOp(r, rng), newOp(r, rng), newOp(r, rng)
	for _, o := range []*op{a, b, c} {
		o.args.KeepHeld = true
	}
	a.dispatch()
	b.dispatch()
	err := r.Dispatch(&c.args, &c.res, ep.PhaseDone)
	require.ErrorIs(t, err, ep.ErrHeld)
	require.ErrorContains(t, err, "2 operations are in flight and held, num_slots=2")
	b.combine()
	c.dispatch() // not in the slot of the oldest, which is held
	require.Equal(t, b.res.Slot, c.res.Slot)
	a.combine()
	c.combine()
	r.sync()
	a.check()
	c.check()
	a.dispatch()
	b.dispatch()
	require.ErrorIs(t, r.Dispatch(&c.args, &c.res, ep.PhaseDone), ep.ErrHeld)
	require.NoError(t, r.LeaveToGraph(b.res.Handle))
	c.dispatch()
	require.Equal(t, b.res.Slot, c.res.Slot)
	require.ErrorIs(t, r.LeaveToGraph(b.res.Handle), ep.ErrStaleHandle)
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
	_, err := r.Combine(a.res.Handle, &a.combin, ep.PhaseDone)
	require.ErrorIs(t, err, ep.ErrStaleHandle)
	require.NoError(t, r.Release(b.res.Handle, r.stream))
	require.ErrorIs(t, r.Release(b.res.Handle, r.stream), ep.ErrStaleHandle)
	require.ErrorIs(t, r.Receive(99), ep.ErrNoHandle)
	a.dispatch()
	b.dispatch()
	c.dispatch()
	_, err = r.Combine(a.res.Handle, &a.combin, ep.PhaseDone)
	require.ErrorIs(t, err, ep.ErrStaleHandle)
	require.NoError(t, r.Receive(a.res.Handle), "its second phase was launched in time")
	c.combine()
	b.combine()
	r.sync()
	a.check()
	b.check()
	c.check()
	require.NoError(t, r.Err())
}

// TestCombinedSlotComesFirst: a dispatch takes the slot of a handle that was combined,
// and leaves one alone that was not.
func TestCombinedSlotComesFirst(t *testing.T) {
	r := newGroup(t, 1)[0]
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 11))
	held, a, b := newOp(r, rng), newOp(r, rng), newOp(r, rng)
	held.dispatch()
	a.run()
	b.dispatch()
	require.Equal(t, a.res.Slot, b.res.Slot)
	held.combine()
	b.combine()
	r.sync()
	for _, o := range []*op{held, a, b} {
		o.check()
	}
	require.NoError(t, r.Err())
}

// TestBadInput: nothing has happened, and the error names the argument.
func TestBadInput(t *testing.T) {
	r := newGroup(t, 1)[0]
	o := newOp(r, rand.New(rand.NewPCG(testenv.Seed(t), 5)))
	for text, change := range map[string]func(a *ep.DispatchArgs){
		"hidden is 12":                   func(a *ep.DispatchArgs) { a.Hidden = 12 },
		"x has 7 tokens":                 func(a *ep.DispatchArgs) { a.NumTokens = 7 },
		"num_topk is 0, allowed 1 to 64": func(a *ep.DispatchArgs) { a.TopK = 0 },
		"outputs need 69206016 bytes":    func(a *ep.DispatchArgs) { a.MaxTokens = 1 << 16 },
		"at most max_experts 64":         func(a *ep.DispatchArgs) { a.NumExperts = 65 },
		"Device is nil":                  func(a *ep.DispatchArgs) { a.Device = nil },
		"x is a null pointer":            func(a *ep.DispatchArgs) { a.Device.X = 0 },
		"x is at":                        func(a *ep.DispatchArgs) { a.Device.X += 2 },
		"topk_idx is a null pointer":     func(a *ep.DispatchArgs) { a.Device.TopkIdx = 0 },
		"active_ranks is at":             func(a *ep.DispatchArgs) { a.Device.ActiveRanks += 2 },
		"recv_count is at":               func(a *ep.DispatchArgs) { a.Device.RecvCount = 2 },
		"layout_range is at":             func(a *ep.DispatchArgs) { a.Device.LayoutRange = 4 },
		"stats is at":                    func(a *ep.DispatchArgs) { a.Device.Stats = 4 },
		"rows of unknown":                func(a *ep.DispatchArgs) { a.RowType = 9 },
		"num_max_tokens_per_rank is 0":   func(a *ep.DispatchArgs) { a.MaxTokens = 0 },
		"at most max_selections 64":      func(a *ep.DispatchArgs) { a.TopK = 64; a.NumTokens = 6 },
		"multiples of 512 up to ":        func(a *ep.DispatchArgs) { a.RowType = protocol.FP8UE8M0 },
		"x has -1 tokens, allowed 0 to":  func(a *ep.DispatchArgs) { a.NumTokens = -1 },
	} {
		args, res, device := o.args, cuda.Result{}, *o.args.Device
		args.Device = &device
		change(&args)
		err := r.Dispatch(&args, &res, ep.PhaseDone)
		require.ErrorIs(t, err, ep.ErrInvalid, text)
		require.ErrorContains(t, err, text)
		require.Zero(t, res)
	}
	o.dispatch()
	for text, change := range map[string]func(a *ep.CombineArgs){
		"topk_idx is [9, 3]":             func(a *ep.CombineArgs) { a.NumTokens = 9 },
		"topk_weights is a null pointer": func(a *ep.CombineArgs) { a.Device.TopkWeights = 0 },
		"Device is nil":                  func(a *ep.CombineArgs) { a.Device = nil },
		"out is a null pointer":          func(a *ep.CombineArgs) { a.Device.Out = 0 },
		"x is at":                        func(a *ep.CombineArgs) { a.Device.X = 8 },
	} {
		args, device := o.combin, *o.combin.Device
		args.Device = &device
		change(&args)
		_, err := r.Combine(o.res.Handle, &args, ep.PhaseDone)
		require.ErrorIs(t, err, ep.ErrInvalid, text)
		require.ErrorContains(t, err, text)
	}
	o.combine()
	r.sync()
	o.check()
}

// half makes a dispatch and the first phase of a combine of what it has received.
func (o *op) half() cuda.ReduceTicket {
	o.dispatch()
	o.combin.Device.X = o.res.RecvX
	return o.publish()
}

// publish makes the first phase of a combine.
func (o *op) publish() cuda.ReduceTicket {
	ticket, err := o.r.Combine(o.res.Handle, &o.combin, ep.PhaseSent)
	require.NoError(o.r.t, err)
	return ticket
}

// TestReduceOfTakenSlot: a handle that has lost its slot has its sum: the dispatch that
// took the slot launched it.
func TestReduceOfTakenSlot(t *testing.T) {
	r := newGroup(t, 1)[0]
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 6))
	a, b := newOp(r, rng), newOp(r, rng)
	ticket := a.half()
	b.dispatch()
	for b.res.Slot != a.res.Slot {
		b.dispatch()
	}
	require.NoError(t, r.Reduce(ticket))
	for range 8 { // more than there are slots
		b.dispatch()
	}
	require.ErrorIs(t, r.Reduce(0), ep.ErrNoHandle)
	require.ErrorIs(t, r.Reduce(ticket+1), ep.ErrNoHandle)
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
	kept, lost := held.half(), dropped.half()
	require.NoError(t, r.Release(dropped.res.Handle, r.stream))
	for range 9 { // of two slots
		other.run()
		require.NoError(t, r.Reduce(kept))
		require.ErrorIs(t, r.Reduce(lost), ep.ErrStaleHandle)
	}
	r.sync()
	held.check()
	other.check()
	require.NoError(t, r.Err())
}

// TestReduceOfAnEarlierCombine: the next combine launched its sum. The sum of that one is
// not launched, or given up, in its place.
func TestReduceOfAnEarlierCombine(t *testing.T) {
	emu := cudatest.Emulate(t)
	r := newGroup(t, 1)[0]
	o := newOp(r, rand.New(rand.NewPCG(testenv.Seed(t), 9)))
	first := o.half()
	second := o.publish()
	launched := emu.Calls("cuLaunchKernel")
	require.NoError(t, r.Reduce(first))
	cancelled, err := r.CancelReduce(first, r.stream)
	require.NoError(t, err)
	require.False(t, cancelled)
	cancelled, err = r.CancelReceive(o.res.Handle, r.stream)
	require.NoError(t, err)
	require.False(t, cancelled)
	require.Equal(t, launched, emu.Calls("cuLaunchKernel"))
	require.NoError(t, r.Reduce(second))
	require.Greater(t, emu.Calls("cuLaunchKernel"), launched)
	r.sync()
	o.check()

	third := o.publish()
	cancelled, err = r.CancelReduce(third, r.stream)
	require.NoError(t, err)
	require.True(t, cancelled)
	require.NoError(t, r.Reduce(second))
	require.ErrorIs(t, r.Reduce(third), ep.ErrStaleHandle)
	require.NoError(t, r.Err())
}

// TestCancelledDispatch: one that is not received is released, once.
func TestCancelledDispatch(t *testing.T) {
	r := newGroup(t, 1)[0]
	o := newOp(r, rand.New(rand.NewPCG(testenv.Seed(t), 10)))
	require.NoError(t, r.Dispatch(&o.args, &o.res, ep.PhaseSent))
	cancelled, err := r.CancelReceive(o.res.Handle, r.stream)
	require.NoError(t, err)
	require.True(t, cancelled)
	_, err = r.CancelReceive(o.res.Handle, r.stream)
	require.ErrorIs(t, err, ep.ErrStaleHandle)
	o.run()
	r.sync()
	o.check()
}

// TestReduceOfTheForgotten: what is not known any more is an error.
func TestReduceOfTheForgotten(t *testing.T) {
	r := newGroup(t, 1)[0]
	o := newOp(r, rand.New(rand.NewPCG(testenv.Seed(t), 8)))
	first := o.half()
	o.run()
	o.run()
	r.SkipTickets(4093)
	require.NoError(t, r.Reduce(first))
	r.SkipTickets(1)
	err := r.Reduce(first)
	require.ErrorIs(t, err, ep.ErrStaleHandle)
	require.ErrorContains(t, err, "1, which 4096 others have followed")
	o.run()
	r.sync()
	o.check()
}
