package cuda_test

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
)

// ops draws one operation per rank.
func ops(t testing.TB, group []*rank, stream uint64) (all []*op) {
	rng := rand.New(rand.NewPCG(testenv.Seed(t), stream))
	for _, r := range group {
		all = append(all, newOp(r, rng))
	}
	return all
}

// roundOf runs an operation of all ranks and checks it.
func roundOf(all []*op, lost ...int) {
	for _, o := range all {
		o.run()
	}
	for _, o := range all {
		o.r.sync()
		o.check(lost...)
		require.NoError(o.r.t, o.r.Err())
	}
}

// TestKilled: when the process of a rank ends, ranks that wait for it go on without it
// at once, without any deadline, and so do later operations.
func TestKilled(t *testing.T) {
	group := newGroup(t, 3)
	all := ops(t, group, 10)
	for _, o := range all[:2] {
		o.dispatch()
	}
	inproc.Kill(group[0].dom, 2)
	for _, o := range all[:2] {
		o.combine()
	}
	for _, o := range all[:2] {
		o.r.sync()
		o.check(2)
		require.Equal(t, []int32{1, 1, 0}, o.r.active.values)
		require.NoError(t, o.r.Err())
		require.EqualValues(t, rankset.Of(0, 1), o.r.Members())
	}
	for range 4 {
		roundOf(all[:2], 2)
	}
}

// setDepth is for one test. It comes after the group, because the group's end waits for
// what was launched.
func setDepth(t *testing.T, emu *cudatest.Driver, launches int) {
	t.Cleanup(func() { emu.Depth(1 << 30) })
	emu.Depth(launches)
}

// TestKilledWhileLaunchesWait: a rank that has launched more than its device takes,
// and so waits for it in a call, goes on all the same when the rank that the device waits
// for is lost; nothing was decided in the call.
func TestKilledWhileLaunchesWait(t *testing.T) {
	emu := cudatest.Emulate(t)
	group := newGroup(t, 2)
	all := ops(t, group, 42)
	setDepth(t, emu, 3)
	before := emu.Calls("cuLaunchKernel")
	launched := make(chan error, 1)
	go func() {
		err := errors.Join(
			group[0].Dispatch(&all[0].args, &all[0].res, ep.PhaseDone), // its first launch runs, two wait
			group[0].Dispatch(&all[0].args, &all[0].res, ep.PhaseDone),
		)
		all[0].combin.Device.X = all[0].res.RecvX
		_, failed := group[0].Combine(all[0].res.Handle, &all[0].combin, ep.PhaseDone)
		launched <- errors.Join(err, failed)
	}()
	require.Eventually(t, func() bool { return emu.Calls("cuLaunchKernel") == before+5 }, connectIn, time.Millisecond)
	require.NoError(t, group[0].Err(), "what a call finds out waits for no other call")
	inproc.Kill(group[0].dom, 1)
	select {
	case err := <-launched:
		require.NoError(t, err)
	case <-time.After(connectIn):
		require.Fail(t, "the call did not end")
	}
	group[0].sync()
	all[0].check(1)
	require.NoError(t, group[0].Err())
}

// TestPrepareWaitsForCalls: nothing is launched once Prepare has returned, also
// not by a call that had begun.
func TestPrepareWaitsForCalls(t *testing.T) {
	emu := cudatest.Emulate(t)
	group := newGroup(t, 2)
	all := ops(t, group, 43)
	before := emu.Calls("cuLaunchKernel")
	setDepth(t, emu, 0)
	launched := make(chan error, 1)
	go func() { launched <- group[0].Dispatch(&all[0].args, &all[0].res, ep.PhaseDone) }()
	require.Eventually(t, func() bool { return emu.Calls("cuLaunchKernel") == before+1 }, connectIn, time.Millisecond)
	group[0].SetDrainTimeout(time.Millisecond)
	_, err := group[0].Prepare()
	emu.Depth(1 << 30)
	require.ErrorContains(t, err, "the device has not done what was launched")
	require.NoError(t, <-launched)
	group[0].SetDrainTimeout(connectIn)
	_, err = group[0].Prepare()
	require.NoError(t, err)
	require.ErrorIs(t, group[0].Dispatch(&all[0].args, &all[0].res, ep.PhaseDone), ep.ErrUpdating)
}

// TestLate: a rank that does nothing is expelled after the deadline, gets
// ErrFenced, and comes back by an update.
func TestLate(t *testing.T) {
	group := newGroup(t, 2)
	all := ops(t, group, 11)
	roundOf(all)
	all[0].args.Timeout = time.Millisecond
	all[0].run()
	group[0].sync()
	all[0].check(1)
	require.Equal(t, []int32{1, 0}, group[0].active.values)
	_, _, lost := group[0].Membership()
	require.EqualValues(t, 1, lost)
	require.ErrorIs(t, group[1].Dispatch(&all[1].args, &all[1].res, ep.PhaseDone), ep.ErrFenced)
	require.ErrorIs(t, group[1].Err(), ep.ErrFenced)
	// The slots are used again once rank 1 is known to be quiesced. Within one process
	// it can tell so only while the device does nothing for others either.
	quiesced := group[0].dom.Control(1).Word(layout.Quiesced())
	require.Eventually(t, func() bool { return quiesced.Load() != 0 }, connectIn, time.Millisecond)
	for range 3 {
		roundOf(all[:1], 1)
	}
	update(t, group)
	all[0].args.Timeout = -1
	group[0].active.values[1] = 1
	for range 3 {
		roundOf(all)
	}
}

// update makes a new epoch of ranks that all live. There is no rendezvous to hold
// within one process.
func update(t *testing.T, group []*rank) {
	var params [][]byte
	for _, r := range group {
		st, err := r.Prepare()
		require.NoError(t, err)
		p, err := configOf(t, r.ranks).Params(st)
		require.NoError(t, err)
		params = append(params, p)
	}
	next, err := cuda.CheckParams(0, params)
	require.NoError(t, err)
	for _, r := range group {
		require.ErrorIs(t, r.Err(), ep.ErrUpdating)
		require.NoError(t, r.Install(next.Epoch, next.Next, nil, connectIn))
		require.NoError(t, r.Err())
	}
}

// TestMismatch: every rank hears what differs; an update mends it.
func TestMismatch(t *testing.T) {
	group := newGroup(t, 2)
	all := ops(t, group, 12)
	all[1].args.MaxTokens--
	all[1].args.NumTokens = 1
	for _, o := range all {
		o.dispatch()
	}
	for _, o := range all {
		o.r.sync()
		err := o.r.Err()
		require.ErrorIs(t, err, ep.ErrMismatch)
		require.ErrorContains(t, err, "num_max_tokens_per_rank")
	}
	update(t, group)
	for _, r := range group {
		r.active.values[0], r.active.values[1] = 1, 1
	}
	roundOf(ops(t, group, 13))
}

// TestDeviceErrors: what the device finds out ends the buffer, by its name, and
// the group goes on without the rank.
func TestDeviceErrors(t *testing.T) {
	group := newGroup(t, 2)
	all := ops(t, group, 14)
	all[1].ids.values[0] = 99
	all[0].run()
	all[1].dispatch()
	all[1].combin.Device.X = all[1].res.RecvX
	_, err := group[1].Combine(all[1].res.Handle, &all[1].combin, ep.PhaseDone)
	if err != nil { // the device was quicker
		require.ErrorIs(t, err, ep.ErrInvalid)
	}
	group[1].sync()
	require.ErrorIs(t, group[1].Err(), ep.ErrInvalid)
	require.ErrorContains(t, group[1].Err(), "topk_idx[0, 0] is 99")
	group[0].sync()
	all[0].check(1)
	require.Equal(t, []int32{1, 0}, group[0].active.values)
}

// TestReplayAcrossUpdate: a graph that was recorded in one epoch runs in the
// next one, at the same addresses, also with another process behind a rank.
func TestReplayAcrossUpdate(t *testing.T) {
	group := newGroup(t, 2)
	all := ops(t, group, 15)
	var graphs []libcuda.GraphExec
	for _, o := range all {
		graphs = append(graphs, record(o, 3))
	}
	replay := func() {
		for i, r := range group {
			r.must(func() error { return r.emu.GraphLaunch(graphs[i], libcuda.Stream(r.stream)) })
		}
		for i, r := range group {
			r.sync()
			require.NoError(t, r.Err())
			all[i].check()
			clear(all[i].out.values)
		}
	}
	replay()
	update(t, group)
	replay()
	roundOf(ops(t, group, 16)) // plain calls between replays
	replay()
	for i, r := range group {
		r.must(func() error { return r.emu.GraphExecDestroy(graphs[i]) })
	}
}

// record captures n operations.
func record(o *op, n int) (exec libcuda.GraphExec) {
	runtime.LockOSThread() // the thread that has begun a capture ends it
	defer runtime.UnlockOSThread()
	r := o.r
	s := libcuda.Stream(r.stream)
	r.must(func() error { return r.emu.BeginCapture(s, libcuda.CaptureModeThreadLocal) })
	for range n {
		o.run()
	}
	r.must(func() error {
		g, err := r.emu.EndCapture(s)
		require.NoError(r.t, err)
		if exec, err = r.emu.GraphInstantiate(g); err != nil {
			return err
		}
		return r.emu.GraphDestroy(g)
	})
	return exec
}

// TestReplayTakesTheSlot: a handle gives an error after a replay has used its slot,
// never another operation's sums.
func TestReplayTakesTheSlot(t *testing.T) {
	r := newGroup(t, 1)[0]
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 17))
	recorded, plain := newOp(r, rng), newOp(r, rng)
	graph := record(recorded, 2) // both slots
	plain.dispatch()
	r.must(func() error { return r.emu.GraphLaunch(graph, libcuda.Stream(r.stream)) })
	plain.combine()
	r.sync()
	require.ErrorIs(t, r.Err(), ep.ErrStaleHandle)
	recorded.check()
	r.must(func() error { return r.emu.GraphExecDestroy(graph) })
}

// TestLostRankWasAhead: what a lost rank has begun alone is not taken for what
// its successor does.
func TestLostRankWasAhead(t *testing.T) {
	group := newGroup(t, 2)
	all := ops(t, group, 18)
	roundOf(all)
	all[1].dispatch()
	waits := group[0].dom.Control(1).Word(layout.WaitsFor())
	require.Eventually(t, func() bool { return waits.Load() == 0b01 }, connectIn, time.Millisecond)
	inproc.Kill(group[0].dom, 1)
	st, err := group[0].Prepare()
	require.NoError(t, err)
	group[1].close()
	cfg := configOf(t, 2)
	cfg.Joining = true
	*group[1] = *newRank(t, group[0].emu, inproc.Join(group[0].dom, 1), cfg)
	for _, r := range group {
		require.NoError(t, r.Install(st.Epoch+1, st.Next, nil, connectIn))
	}
	group[0].active.values[1] = 1
	next := ops(t, group, 19)
	for range 2 {
		next[0].run() // rank 1 has not begun: its slot is not open
		group[0].launchDone(t)
		next[1].run()
		for _, o := range next {
			o.r.sync()
			o.check()
			require.NoError(t, o.r.Err())
		}
	}
}

// launchDone gives the device time to go as far as it can: until it waits.
func (r *rank) launchDone(t *testing.T) {
	waits := r.dom.Control(r.self).Word(layout.WaitsFor())
	require.Eventually(t, func() bool { return waits.Load() != 0 }, connectIn, time.Millisecond)
}
