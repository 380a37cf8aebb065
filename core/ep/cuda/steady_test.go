package cuda_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/testenv"
)

// launching is all that operations ask of the driver, and what goes on behind them:
// none of it waits for the device, asks how far it is, or allocates.
var launching = []string{"cuLaunchKernel", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuStreamIsCapturing"}

// calledSince is how often the driver was called since, by function.
func calledSince(emu *cudatest.Driver, before map[string]int) map[string]int {
	times := map[string]int{}
	for _, call := range emu.Called() {
		if n := emu.Calls(call) - before[call]; n > 0 {
			times[call] = n
		}
	}
	return times
}

// TestOperationsOnlyLaunch: a hundred of them, of all kinds, with what is asked
// about them meanwhile, and all that the watchers do until they have ended.
func TestOperationsOnlyLaunch(t *testing.T) {
	emu := cudatest.Emulate(t)
	group := newGroup(t, 2)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 211))
	var all [][]*op // by kind and rank
	for range steadyKinds {
		var kind []*op
		for _, r := range group {
			kind = append(kind, newOp(r, rng))
		}
		all = append(all, kind)
	}
	before := calledSince(emu, nil)
	const operations = 100
	for i := range operations {
		for _, o := range all[i%len(steadyKinds)] {
			steadyKinds[i%len(steadyKinds)](o)
		}
	}
	for _, r := range group {
		ended(r, operations)
	}
	times := calledSince(emu, before)
	t.Log(times)
	require.GreaterOrEqual(t, times["cuLaunchKernel"], 3*operations*len(group))
	for _, call := range launching {
		delete(times, call)
	}
	require.Empty(t, times)
	for i := range group {
		group[i].sync()
		require.NoError(t, group[i].Err())
		all[0][i].check()
		all[1][i].check()
	}
}

// steadyKinds launch an operation: at once, in phases, of fp8 rows, flat, released
// without a combine, combined twice.
var steadyKinds = []func(*op){
	(*op).run,
	(*op).runApart,
	func(o *op) {
		o.args.RowType = protocol.FP8
		o.runApart()
	},
	func(o *op) {
		o.args.Flat, o.combin.Flat, o.args.Device.TopkWeights = true, true, o.w.at
		o.combin.Device.TopkIdx, o.combin.Device.TopkWeights = 0, 0
		o.run()
	},
	func(o *op) {
		o.dispatch()
		require.NoError(o.r.t, o.r.Release(o.res.Handle, o.r.stream))
	},
	func(o *op) {
		o.run()
		o.combine()
	},
}

// runApart launches the phases by themselves.
func (o *op) runApart() {
	require.NoError(o.r.t, o.r.Dispatch(&o.args, &o.res, ep.PhaseSent))
	require.NoError(o.r.t, o.r.Receive(o.res.Handle))
	o.combin.Device.X = o.res.CombineX
	if !o.args.RowType.IsFP8() {
		o.combin.Device.X = o.res.RecvX
	}
	ticket, err := o.r.Combine(o.res.Handle, &o.combin, ep.PhaseSent)
	require.NoError(o.r.t, err)
	require.NoError(o.r.t, o.r.Reduce(ticket))
}

// ended waits, without a word to the driver, until the device has ended so many
// dispatches, and asks all that may be asked of a buffer.
func ended(r *rank, dispatches uint64) {
	require.Eventually(r.t, func() bool {
		require.NoError(r.t, r.Err())
		require.EqualValues(r.t, rankset.Of(0, 1), r.Members())
		_, _ = r.Events(0)
		stats, err := r.Stats()
		require.NoError(r.t, err)
		return stats.Dispatch.Done == dispatches
	}, connectIn, 5*time.Millisecond)
}
