package verbs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/transport"
)

// quick makes a device give up early, so that tests do.
var quick = Config{RNRRetryCount: 1, RNRTimer: 12, NumEndpoints: 16}

// deviceStatus is what the device itself said.
func deviceStatus(c transport.Completion) libibverbs.WCStatus {
	return libibverbs.WCStatus(c.Vendor >> 16)
}

// failedByItself checks the completion of a request that its device failed,
// and that the endpoint is in the error state and was reported once.
func failedByItself(t *testing.T, tr *Transport, e transport.Endpoint, id uint64, want transport.Status, device ...libibverbs.WCStatus) {
	t.Helper()
	c := await(t, tr, 1)[id]
	assert.Equal(t, want, c.Status, "%+v", c)
	assert.Contains(t, device, deviceStatus(c))
	assert.Zero(t, c.NumBytes)
	assert.Equal(t, transport.StateError, e.State())
	var events [8]transport.Event
	var kinds []transport.EventKind
	for _, ev := range events[:tr.PollEvents(events[:])] {
		if ev.Endpoint == e.ID() {
			kinds = append(kinds, ev.Kind)
		}
	}
	assert.Equal(t, []transport.EventKind{transport.EventEndpointFailed}, kinds)
}

func TestPeerRefuses(t *testing.T) {
	tr := openDevice(t, quick)
	local := memory(t, tr, 4096, both)
	readable, writable := memory(t, tr, 4096, transport.AccessRead), memory(t, tr, 4096, transport.AccessWrite)
	badKey := writable.Remote()
	badKey.Key ^= 0x5500
	for name, r := range map[string]transport.SendRequest{
		"wrong key":             {Op: transport.OpWrite, Remote: badKey},
		"write where only read": {Op: transport.OpWrite, Remote: readable.Remote()},
		"read where only write": {Op: transport.OpRead, Remote: writable.Remote()},
		"beyond the end":        {Op: transport.OpWrite, Remote: writable.Remote(), RemoteOff: 1},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := connected(t, tr, 4)
			r.ID, r.Local = 7, whole(local)
			post(t, a, r)
			failedByItself(t, tr, a, 7, transport.StatusRemote, libibverbs.WCRemAccessErr)
		})
	}
	assert.Equal(t, make([]byte, 4096), writable.Bytes())
	assert.Equal(t, make([]byte, 4096), readable.Bytes())
}

func TestClosedRegionRefuses(t *testing.T) {
	tr := openDevice(t, quick)
	local, remote := memory(t, tr, 4096, both), memory(t, tr, 4096, both)
	where := remote.Remote()
	require.NoError(t, remote.Close())
	a, _ := connected(t, tr, 4)
	post(t, a, transport.SendRequest{ID: 7, Op: transport.OpWrite, Local: whole(local), Remote: where})
	failedByItself(t, tr, a, 7, transport.StatusRemote, libibverbs.WCRemAccessErr)
	assert.Equal(t, make([]byte, 4096), remote.Bytes())
}

func TestNoReceivePosted(t *testing.T) {
	tr := openDevice(t, quick)
	local := memory(t, tr, 64, both)
	a, _ := connected(t, tr, 4)
	post(t, a, transport.SendRequest{ID: 7, Op: transport.OpSend, Local: whole(local)})
	failedByItself(t, tr, a, 7, transport.StatusNoReceive, libibverbs.WCRNRRetryExcErr)
}

func TestPeerIsGone(t *testing.T) {
	tr := openDevice(t, Config{RetryCount: 3, NumEndpoints: 4})
	local := memory(t, tr, 64, both)
	a, b := connected(t, tr, 4)
	closeEndpoint(t, tr, b)
	begin := time.Now()
	post(t, a,
		transport.SendRequest{ID: 7, Op: transport.OpWrite, Local: whole(local), Remote: local.Remote()},
		transport.SendRequest{ID: 8, Op: transport.OpWrite, Local: whole(local), Remote: local.Remote()})
	all := await(t, tr, 2)
	t.Logf("given up after %v, bound %v", time.Since(begin), tr.Config().UnreachableBound())
	assert.Equal(t, transport.StatusUnreachable, all[7].Status)
	assert.Equal(t, transport.StatusFlushed, all[8].Status)
	assert.Equal(t, transport.StateError, a.State())
}

func TestReceiveIsTooSmall(t *testing.T) {
	tr := openDevice(t, quick)
	local, small := memory(t, tr, 4096, both), memory(t, tr, 64, both)
	a, b := connected(t, tr, 4)
	postRecv(t, b, transport.RecvRequest{ID: 1, Local: whole(small)})
	post(t, a, transport.SendRequest{ID: 2, Op: transport.OpSend, Local: whole(local)})
	all := await(t, tr, 2)
	assert.Equal(t, transport.StatusLocal, all[1].Status)
	assert.Equal(t, transport.StatusRemote, all[2].Status)
	assert.Equal(t, transport.StateError, a.State())
	assert.Equal(t, transport.StateError, b.State())
}

func TestBadLocalKey(t *testing.T) {
	tr := openDevice(t, quick)
	local, remote := memory(t, tr, 64, both), memory(t, tr, 64, both)
	a, _ := connected(t, tr, 4)
	local.(*region).lkeys[0] ^= 0x5500
	post(t, a, transport.SendRequest{ID: 7, Op: transport.OpWrite, Local: whole(local), Remote: remote.Remote()})
	failedByItself(t, tr, a, 7, transport.StatusLocal, libibverbs.WCLocProtErr, libibverbs.WCLocQPOpErr)
}

// TestES7RetireFlushes: everything outstanding ends, and is flushed; and so
// does what is posted afterwards.
func TestES7RetireFlushes(t *testing.T) {
	tr := openDevice(t, small)
	local := memory(t, tr, 64, both)
	a, b := connected(t, tr, 16)
	closeEndpoint(t, tr, b) // so that sends of a stay outstanding
	var want []uint64
	for id := range uint64(8) {
		postRecv(t, a, transport.RecvRequest{ID: id})
		post(t, a, transport.SendRequest{ID: 100 + id, Op: transport.OpWrite, Local: whole(local), Remote: local.Remote()})
		want = append(want, id, 100+id)
	}
	require.ErrorIs(t, a.Close(), transport.ErrBusy)
	require.NoError(t, a.Retire())
	assert.Equal(t, transport.StateError, a.State())
	require.NoError(t, a.Retire())
	postRecv(t, a, transport.RecvRequest{ID: 50})
	post(t, a, transport.SendRequest{ID: 150, Op: transport.OpWrite, Local: whole(local), Remote: local.Remote()})
	want = append(want, 50, 150)
	all := await(t, tr, len(want))
	for _, id := range want {
		assert.Equal(t, transport.StatusFlushed, all[id].Status, id)
	}
	var events [4]transport.Event
	assert.Zero(t, tr.PollEvents(events[:]), "it did not fail by itself: %v", events)
	require.NoError(t, a.Close())
	assert.Equal(t, transport.StateClosed, a.State())
	// ES8: a closed one takes nothing.
	_, err := a.PostSend([]transport.SendRequest{{Op: transport.OpSend}})
	require.ErrorIs(t, err, transport.ErrState)
	_, err = a.PostRecv([]transport.RecvRequest{{}})
	require.ErrorIs(t, err, transport.ErrState)
}

func TestRetireBeforeConnectFlushesReceives(t *testing.T) {
	tr := openDevice(t, small)
	a := newEndpoint(t, tr, 4)
	_, err := a.PostSend([]transport.SendRequest{{Op: transport.OpSend}})
	require.ErrorIs(t, err, transport.ErrState)
	postRecv(t, a, transport.RecvRequest{ID: 1}, transport.RecvRequest{ID: 2})
	require.ErrorIs(t, a.Close(), transport.ErrBusy)
	require.NoError(t, a.Retire())
	all := await(t, tr, 2)
	assert.Equal(t, transport.StatusFlushed, all[1].Status)
	assert.Equal(t, transport.StatusFlushed, all[2].Status)
	require.ErrorIs(t, a.Connect(a.Local(), time.Now().Add(time.Minute)), transport.ErrState)
}

func TestRefusedConnectFlushesReceives(t *testing.T) {
	tr := openDevice(t, small)
	a := newEndpoint(t, tr, 4)
	postRecv(t, a, transport.RecvRequest{ID: 1})
	require.ErrorContains(t, a.Connect([]byte("?"), time.Now().Add(time.Minute)), "1 bytes, want 32")
	assert.Equal(t, transport.StateError, a.State())
	assert.Equal(t, transport.StatusFlushed, await(t, tr, 1)[1].Status)
}
