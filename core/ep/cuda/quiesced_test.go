package cuda_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// isQuiesced waits until a rank has said that it writes nothing more.
func (r *rank) isQuiesced() {
	quiesced := r.dom.Control(r.self).Word(layout.Quiesced())
	require.Eventually(r.t, func() bool { return quiesced.Load() != 0 }, connectIn, time.Millisecond)
}

// TestQuiescedAfterErrors: a rank that leaves asks whether its device is idle
// again after an error, which may not be that of a broken device, if a capture was
// under way, or if it could not be asked.
func TestQuiescedAfterErrors(t *testing.T) {
	t.Run("failed", func(t *testing.T) { abandonAfter(t, synchronizes, libcuda.ErrIllegalAddress, 2) })
	t.Run("captured", func(t *testing.T) { abandonAfter(t, synchronizes, libcuda.ErrStreamCaptureUnsupport, 2) })
	t.Run("not asked", func(t *testing.T) { abandonAfter(t, pushes, libcuda.ErrOutOfMemory, 1) })
}

const (
	synchronizes = "cuCtxSynchronize"
	pushes       = "cuCtxPushCurrent_v2"
)

// abandonAfter wants the device to be asked so often when a call fails once.
func abandonAfter(t *testing.T, call string, code libcuda.Result, times int) {
	emu := cudatest.Emulate(t)
	group := newGroup(t, 2)
	before := emu.Calls(synchronizes)
	emu.FailAfter(call, 0, code)
	defect := errors.New("a defect")
	group[1].Abandon(defect)
	require.ErrorIs(t, group[1].Err(), defect)
	group[1].isQuiesced()
	require.Equal(t, before+times, emu.Calls(synchronizes))
	group[1].Abandon(errors.New("another one"))
	require.ErrorIs(t, group[1].Err(), defect)
	roundOf(ops(t, group, 21)[:1], 1)
}

// TestPrepareAsksTheDevice: without an answer it does not take it for idle. The
// watcher, which would ask too, sleeps.
func TestPrepareAsksTheDevice(t *testing.T) {
	group, slow := newDrowsyGroup(t)
	slow.hold()
	group[0].emu.FailAfter(pushes, 0, libcuda.ErrOutOfMemory)
	_, err := group[0].Prepare()
	require.ErrorIs(t, err, libcuda.ErrOutOfMemory)
	require.ErrorContains(t, err, "the device was not asked")
	_, err = group[0].Prepare()
	require.NoError(t, err)
}

// TestFencedBeforeItEnters: a rank that was taken out before it was connected is
// quiesced, too.
func TestFencedBeforeItEnters(t *testing.T) {
	group := newUnconnected(t, 2)
	require.NoError(t, group[0].Connect(connectIn))
	members := group[0].dom.Members()
	require.True(t, membership.Fence(members, membership.Members(members.Load()).Epoch(), 0, 1))
	require.ErrorIs(t, group[1].Connect(connectIn), ep.ErrFenced)
	group[1].isQuiesced()
	require.ErrorIs(t, group[1].Err(), ep.ErrFenced)
}

// TestInstallAfterFailedPrepare: no epoch begins while the device may still run
// what was launched in the last one.
func TestInstallAfterFailedPrepare(t *testing.T) {
	group := newGroup(t, 3)
	all := ops(t, group, 22)
	all[0].dispatch() // waits for rank 2
	group[1].SetDrainTimeout(time.Millisecond)
	_, err := group[1].Prepare()
	require.ErrorContains(t, err, "the device has not done what was launched")
	err = group[1].Install(1, 0, nil, connectIn)
	require.ErrorIs(t, err, ep.ErrInvalid)
	require.ErrorContains(t, err, "prepare again")
	group[1].SetDrainTimeout(connectIn)
	inproc.Kill(group[0].dom, 2)
	_, err = group[1].Prepare()
	require.NoError(t, err)
}

// TestPrepareWaitsForTheWatcher: the watcher may still wait for what others do, with
// which the device is busy; no epoch begins without it.
func TestPrepareWaitsForTheWatcher(t *testing.T) {
	group := newGroup(t, 2)
	answered := group[0].Asks()
	group[0].SetDrainTimeout(time.Millisecond)
	_, err := group[0].Prepare()
	require.ErrorContains(t, err, "the device has not done what was launched")
	group[0].SetDrainTimeout(connectIn)
	time.AfterFunc(time.Millisecond, answered)
	update(t, group)
	roundOf(ops(t, group, 180))
}

// TestWaitThatHasEnded: a wait that ends while the watcher looks has no beginning.
func TestWaitThatHasEnded(t *testing.T) {
	now := time.Now()
	require.Equal(t, now, cuda.Waiting(rankset.Of(1), now, func(int) uint64 { return 0 }))
}

// TestUpdateWithoutWhoLives: a rank that does nothing, and is not at the rendezvous, learns
// that it is out, and the others do not wait for its process to end; also where ranks
// of another host have a part in the agreement on the members.
func TestUpdateWithoutWhoLives(t *testing.T) {
	t.Run("one host", func(t *testing.T) { updateWithout(t, newGroup(t, 3), 2) })
	t.Run("two hosts", func(t *testing.T) { updateWithout(t, newHosts(t, "aab").ranks, 1) })
}

func updateWithout(t *testing.T, group []*rank, absent int) {
	roundOf(ops(t, group, 210))
	next, come := ep.Standing{}, slices.Delete(slices.Clone(group), absent, absent+1)
	for _, r := range come {
		st, err := r.Prepare()
		require.NoError(t, err)
		next.Epoch, next.Next = st.Epoch+1, max(next.Next, st.Next)
	}
	for _, r := range come {
		require.NoError(t, r.Install(next.Epoch, next.Next, nil, connectIn/6))
	}
	group[absent].isQuiesced()
	require.ErrorIs(t, group[absent].Err(), ep.ErrFenced)
}
