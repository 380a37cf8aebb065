package verbs

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

func write(id uint64, r transport.Region) transport.SendRequest {
	return transport.SendRequest{ID: id, Op: transport.OpWrite, Local: whole(r), Remote: r.Remote()}
}

// TestOpenFailsAnywhere lets each call of New fail: nothing stays open.
func TestOpenFailsAnywhere(t *testing.T) {
	before := sys.Stats()
	for name, want := range map[string]error{
		"open_device":         transport.ErrNotSupported,
		"query_device":        syscall.EPERM,
		"query_port":          syscall.EPERM,
		"query_gid":           nil,
		"alloc_pd":            transport.ErrNoResource,
		"create_comp_channel": transport.ErrNoResource,
		"create_cq":           transport.ErrNoResource,
		"create_qp":           transport.ErrNoResource,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.failures[name] = []syscall.Errno{syscall.ENOMEM}
			if want == syscall.EPERM {
				f.failures[name] = []syscall.Errno{syscall.EPERM}
			}
			_, err := f.tryOpen(Config{})
			require.Error(t, err)
			if want != nil {
				require.ErrorIs(t, err, want)
			}
		})
	}
	assert.Equal(t, before, sys.Stats())
}

func TestInlineBytesAreTried(t *testing.T) {
	f := newFake(t)
	f.failures["create_qp"] = repeated(syscall.EINVAL, 2)
	tr := f.open(Config{InlineBytes: 200})
	assert.Equal(t, 50, tr.Limits().InlineBytes)
	assert.Equal(t, 4, tr.Limits().NumPieces, "the device's")
}

func TestDeviceThatTakesNoQueuePair(t *testing.T) {
	f := newFake(t)
	f.failures["create_qp"] = repeated(syscall.EINVAL, 100)
	_, err := f.tryOpen(Config{})
	require.ErrorIs(t, err, syscall.EINVAL)
}

// TestES4CreateFails: nothing has happened, and nothing stays reserved.
func TestES4CreateFails(t *testing.T) {
	f := newFake(t)
	tr := f.open(Config{NumEndpoints: 2})
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.EAGAIN, syscall.ENOSPC, syscall.EPERM} {
		f.failures["create_qp"] = []syscall.Errno{errno}
		_, err := tr.NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
		require.ErrorIs(t, err, errno)
		assert.Equal(t, errno != syscall.EPERM, errors.Is(err, transport.ErrNoResource))
		f.failures["modify_qp"] = []syscall.Errno{errno}
		_, err = tr.NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
		require.ErrorIs(t, err, errno)
		f.failures["reg_mr"] = []syscall.Errno{errno}
		_, err = tr.Register(f.arena.Bytes()[:10], 0)
		require.ErrorIs(t, err, errno)
		assert.Equal(t, errno != syscall.EPERM, errors.Is(err, transport.ErrNoResource))
	}
	assert.Zero(t, tr.reserved)
	newEndpoint(t, tr, 1)
	newEndpoint(t, tr, 1)
}

// TestStates checks what the queue pair is told on the way to RTS.
func TestStates(t *testing.T) {
	t.Run("Ethernet", func(t *testing.T) { testStates(t, libibverbs.LinkEthernet) })
	t.Run("InfiniBand", func(t *testing.T) { testStates(t, libibverbs.LinkInfiniBand) })
}

func testStates(t *testing.T, link uint8) {
	f := newFake(t)
	f.linkType = link
	tr := f.open(Config{RetryCount: 3, RNRRetryCount: 2, RNRTimer: 5, TimeoutExponent: 10, TrafficClass: 104})
	e := newEndpoint(t, tr, 4).(*endpoint)
	other := newEndpoint(t, tr, 4).(*endpoint)
	assert.NotEqual(t, e.local.psn, other.local.psn, "random")
	peer := address{linkLayer: link, mtu: 2, readDepth: 5, lid: 99, qpNumber: 77, psn: 88, gid: [16]byte{0xfe, 15: 9}}
	require.NoError(t, e.Connect(peer.encode(), time.Now().Add(time.Minute)))

	steps := f.states[uintptr(e.qp)]
	require.Len(t, steps, 3)
	init, rtr, rts := steps[0], steps[1].attr, steps[2].attr
	assert.EqualValues(t, libibverbs.QPStateInit, init.attr.QPState)
	assert.EqualValues(t, 1, init.attr.PortNum)
	assert.EqualValues(t, libibverbs.QPStateRTR, rtr.QPState)
	assert.EqualValues(t, 2, rtr.PathMTU, "the smaller one")
	assert.EqualValues(t, 77, rtr.DestQPNum)
	assert.EqualValues(t, 88, rtr.RQPSN)
	assert.EqualValues(t, 7, rtr.MaxDestRdAtomic)
	assert.EqualValues(t, 5, rtr.MinRNRTimer)
	assert.EqualValues(t, libibverbs.QPStateRTS, rts.QPState)
	assert.EqualValues(t, e.local.psn, rts.SQPSN)
	assert.EqualValues(t, []uint8{10, 3, 2, 5}, []uint8{rts.Timeout, rts.RetryCnt, rts.RNRRetry, rts.MaxRdAtomic})
	want := libibverbs.AHAttr{DLID: 99, PortNum: 1}
	if link == libibverbs.LinkEthernet {
		want.DGID, want.SGIDIndex, want.HopLimit, want.TrafficClass, want.IsGlobal = peer.gid, 3, 64, 104, 1
	}
	assert.Equal(t, want, rtr.AH)

	// Another subnet: by GID, even on InfiniBand.
	peer.gid[0] = 0x20
	assert.EqualValues(t, 1, e.route(peer).IsGlobal)
	peer.linkLayer = 3 - link
	require.ErrorIs(t, other.Connect(peer.encode(), time.Now().Add(time.Minute)), errAddress)
}

// TestCO6PostFailsInTheMiddle: those before it are posted, the others not, and
// neither slots nor pins are lost.
func TestCO6PostFailsInTheMiddle(t *testing.T) {
	f := newFake(t)
	tr := f.open(Config{})
	a, _ := connected(t, tr, 8)
	mr, err := tr.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	for round := range 20 {
		f.postFails = round%5 + 1
		n, err := a.PostSend([]transport.SendRequest{write(1, mr), write(2, mr), write(3, mr), write(4, mr)})
		if f.postFails == 5 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, syscall.EINVAL)
		}
		require.Equal(t, f.postFails-1, n)
		require.EqualValues(t, n, mr.(*region).pins.Load())
		for range n {
			f.finish(a.(*endpoint).qp, libibverbs.WCSuccess)
		}
		require.Len(t, await(t, tr, n), n)
	}
	require.NoError(t, mr.Close())
}

// TestCO2Strays: completions that belong to nothing change nothing.
func TestCO2Strays(t *testing.T) {
	f := newFake(t)
	tr := f.open(Config{})
	a, _ := connected(t, tr, 8)
	mr, err := tr.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	post(t, a, write(1, mr))
	e := a.(*endpoint)
	real := f.pending[uintptr(e.qp)][0].id
	f.push(libibverbs.WC{WRID: 1 << 63})                                  // no such key
	f.push(libibverbs.WC{WRID: uint64(newTag(7, false, 0, 0))})           // no such endpoint
	f.push(libibverbs.WC{WRID: uint64(newTag(60000, false, 0, 0))})       // nor this one
	f.push(libibverbs.WC{WRID: uint64(newTag(e.index, false, 60000, 0))}) // no such slot
	f.push(libibverbs.WC{WRID: real | 1})                                 // a receive
	f.finish(e.qp, libibverbs.WCSuccess)
	f.push(libibverbs.WC{WRID: real}) // twice
	require.Len(t, await(t, tr, 1), 1)
	n, err := tr.Poll(make([]transport.Completion, 4))
	require.NoError(t, err)
	require.Zero(t, n)
	assert.EqualValues(t, 6, tr.NumStrays())
	assert.Equal(t, transport.StateReady, a.State())
	require.NoError(t, mr.Close())
}

// TestStatusOfEach: every status that a device knows has its meaning.
func TestStatusOfEach(t *testing.T) {
	const ok, flushed, local, remote = transport.StatusOK, transport.StatusFlushed, transport.StatusLocal, transport.StatusRemote
	const noRecv, gone, other = transport.StatusNoReceive, transport.StatusUnreachable, transport.StatusOther
	want := []transport.Status{
		ok, local, local, other, local, flushed, local, other, local, remote, remote, remote,
		gone, noRecv, other, other, gone, other, other, other, gone, other, other, other,
		other, // newer than this library
	}
	require.Len(t, want, libibverbs.NumWCStatusValues+1)
	f := newFake(t)
	tr := f.open(Config{})
	mr, err := tr.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	for status, meaning := range want {
		a, b := connected(t, tr, 2)
		post(t, a, write(7, mr), write(8, mr))
		f.finish(a.(*endpoint).qp, libibverbs.WCStatus(status))
		all := await(t, tr, 1)
		assert.Equal(t, meaning, all[7].Status, status)
		if status == 0 {
			assert.Equal(t, transport.StateReady, a.State())
			f.finish(a.(*endpoint).qp, libibverbs.WCSuccess)
			continue
		}
		assert.Equal(t, transport.StateError, a.State())
		// Whatever the device does by itself, it is told to flush.
		assert.Equal(t, transport.StatusFlushed, await(t, tr, 1)[8].Status)
		closeEndpoint(t, tr, a)
		closeEndpoint(t, tr, b)
	}
	require.NoError(t, mr.Close())
}

// TestWaitFinds: what Wait has found is not over before it is polled; that a
// request of it has failed is reported before.
func TestWaitFinds(t *testing.T) {
	f := newFake(t)
	tr := f.open(Config{})
	a, b := connected(t, tr, 2)
	mr, err := tr.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	post(t, a, write(1, mr))
	f.finish(a.(*endpoint).qp, libibverbs.WCRemAccessErr)
	require.NoError(t, tr.Wait(time.Minute))
	tr.events.every = 0
	var events [4]transport.Event
	require.Equal(t, 1, tr.PollEvents(events[:]))
	require.Equal(t, transport.EventEndpointFailed, events[0].Kind)
	require.Equal(t, a.ID(), events[0].Endpoint)
	require.NoError(t, a.Retire())
	require.ErrorIs(t, a.Close(), transport.ErrBusy)
	require.ErrorIs(t, mr.Close(), transport.ErrBusy)
	require.Equal(t, transport.StatusRemote, await(t, tr, 1)[1].Status)
	closeEndpoint(t, tr, a)
	closeEndpoint(t, tr, b)
	require.NoError(t, mr.Close())
}
