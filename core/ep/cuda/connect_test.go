package cuda_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// TestConnectAgain: a Connect that could not tell the device where another rank's
// memory is, or which epoch it is, does so when it is called again.
func TestConnectAgain(t *testing.T) {
	for numCopied, lacks := range []string{"memory", "epoch"} {
		t.Run(lacks, func(t *testing.T) { connectAgain(t, numCopied) })
	}
}

// connectAgain fails after numCopied copies.
func connectAgain(t *testing.T, numCopied int) {
	const copies = "cuMemcpyHtoDAsync_v2"
	emu := cudatest.Emulate(t)
	group := newUnconnected(t, 2)
	emu.FailAfter(copies, numCopied, libcuda.ErrOutOfMemory)
	require.ErrorIs(t, group[0].Connect(connectIn), libcuda.ErrOutOfMemory)
	require.ErrorIs(t, group[0].Err(), ep.ErrInvalid, "it is not connected")
	before := emu.Calls(copies)
	require.NoError(t, group[0].Connect(connectIn))
	require.Equal(t, before+2-numCopied, emu.Calls(copies))
	require.NoError(t, group[1].Connect(connectIn))
	roundOf(ops(t, group, 20))
}

// TestCloseEndsConnect: a Connect that waits for a rank that does not come returns that the
// buffer was closed, and Close does not wait for the deadline.
func TestCloseEndsConnect(t *testing.T) {
	r, mute := newAlone(t)
	ended := make(chan error, 1)
	go func() { ended <- r.Connect(time.Hour) }()
	mute.await(5)
	require.NoError(t, r.Buffer.Close())
	require.ErrorIs(t, <-ended, ep.ErrClosed)
	require.ErrorIs(t, r.Connect(time.Hour), ep.ErrClosed)
}

// TestStopEndsInstall: so does an Install that waits for what a rank of the last
// epoch may still write, because it gets no processor.
func TestStopEndsInstall(t *testing.T) {
	group, slow := newDrowsyGroup(t)
	slow.hold()
	st, err := group[1].Prepare()
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- group[1].Install(st.Epoch+1, st.Next, nil, time.Hour) }()
	group[1].Stop()
	require.ErrorIs(t, <-ended, ep.ErrClosed)
	group[1].Stop()
	require.ErrorIs(t, group[1].Install(st.Epoch+1, st.Next, nil, time.Hour), ep.ErrClosed)
}

// TestRoundsDuringInstall: memory for rounds is not waited for as long as an Install waits for ranks.
func TestRoundsDuringInstall(t *testing.T) {
	group, slow := newDrowsyGroup(t)
	slow.hold()
	st, err := group[1].Prepare()
	require.NoError(t, err)
	ended, asked := make(chan error, 1), make(chan error, 1)
	go func() { ended <- group[1].Install(st.Epoch+1, st.Next, nil, time.Hour) }()
	time.Sleep(20 * time.Millisecond) // it has begun by then, and if not, Rounds is refused all the same
	go func() {
		_, err := group[1].Rounds()
		asked <- err
	}()
	select {
	case err := <-asked:
		require.ErrorIs(t, err, ep.ErrUpdating)
	case <-time.After(connectIn):
		t.Error("Rounds waits for Install")
	}
	group[1].Stop()
	require.ErrorIs(t, <-ended, ep.ErrClosed)
}

// TestNumbersOfAFailedInstall: an epoch that this rank did not come to was the
// others' all the same. What they have begun in it must not be taken for the next.
func TestNumbersOfAFailedInstall(t *testing.T) {
	group := newGroup(t, 2)
	st, err := group[0].Prepare()
	require.NoError(t, err)
	_, err = group[1].Prepare()
	require.NoError(t, err)
	failed := errors.New("no memory")
	require.ErrorIs(t, group[0].Install(st.Epoch+1, st.Next, func() error { return failed }, connectIn), failed)
	again, err := group[0].Prepare()
	require.NoError(t, err)
	require.Equal(t, st.Next+protocol.MaxSlotsCUDA+1, again.Next)
}

// mute is a domain in which rank 1 never lays out a memory descriptor.
type mute struct {
	domain.Domain
	asked chan struct{}
}

func (m *mute) Slab(rank, id int) (domain.Segment, error) {
	if rank == m.Rank() {
		return m.Domain.Slab(rank, id)
	}
	select {
	case m.asked <- struct{}{}:
	default:
	}
	return nil, errors.New("there is none yet")
}

// await returns when a memory descriptor was asked for n times.
func (m *mute) await(n int) {
	for range n {
		<-m.asked
	}
}

// newAlone is rank 0 of two, of which the other one never comes.
func newAlone(t *testing.T) (*rank, *mute) {
	emu := cudatest.Emulate(t)
	m := &mute{Domain: inproc.New(2, layout.ControlBytes)[0], asked: make(chan struct{})}
	r := newRank(t, emu, m, configOf(t, 2))
	t.Cleanup(r.close)
	return r, m
}
