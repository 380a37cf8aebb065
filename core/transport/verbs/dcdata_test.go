package verbs

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/transport"
)

// dcFake opens a device that has DC.
func dcFake(t *testing.T, config Config) (*fakeLib, *Transport) {
	t.Helper()
	withMlx5(t)
	f := newFake(t)
	config.DC = true
	return f, f.open(config)
}

// dcis are the transport's initiators.
func (f *fakeLib) dcis(tr *Transport) (all []libibverbs.QP) {
	for _, i := range tr.dcPort.dcis {
		all = append(all, i.qp)
	}
	return all
}

// numAlive counts objects of a kind.
func (f *fakeLib) numAlive(kind string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.alive {
		if k == kind {
			n++
		}
	}
	return n
}

// TestDCRequests: what an initiator is told for each operation, and where to.
func TestDCRequests(t *testing.T) {
	f, tr := dcFake(t, Config{NumDCIs: 1, TrafficClass: 104})
	a, b := connected(t, tr, 8)
	require.Equal(t, "fake0/1 (DC)", a.(*endpoint).Device())
	require.Equal(t, 1+2, f.numAlive("qp"), "an initiator, two targets: the queue pairs to be connected are gone")
	require.Equal(t, libibverbs.AHAttr{
		DGID: [16]byte{0: 0xfe, 15: 3}, SGIDIndex: 3, HopLimit: 64, TrafficClass: 104,
		DLID: 17, IsGlobal: 1, PortNum: 1,
	}, f.ahs[0])
	target := b.(*endpoint).local
	assert.NotEqual(t, target.targetKey, a.(*endpoint).local.targetKey, "random")

	mr, err := tr.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	copy(mr.Bytes(), "inline")
	request := func(op transport.Opcode) transport.SendRequest {
		return transport.SendRequest{ID: uint64(op), Op: op, Imm: 0x01020304, Local: whole(mr), Remote: mr.Remote(), RemoteOff: 16}
	}
	inline := transport.SendRequest{ID: 9, Op: transport.OpSend, Inline: true, Local: []transport.Piece{
		{Region: mr, Bytes: 3}, {Region: mr, Off: 3, Bytes: 3},
	}}
	post(t, a, request(transport.OpWrite), request(transport.OpWriteImm), request(transport.OpSend), request(transport.OpRead), inline)
	require.Len(t, f.sent, 5)
	body := libibverbs.MR(mr.(*region).mrs[0]).Body()
	for i, want := range []struct {
		opcode uint32
		imm    uint32
		rdma   bool
	}{
		{libibverbs.WRRDMAWrite, 0, true}, {libibverbs.WRRDMAWriteWithImm, 0x04030201, true},
		{libibverbs.WRSend, 0, false}, {libibverbs.WRRDMARead, 0, true},
	} {
		s := f.sent[i]
		assert.Equal(t, want.opcode, s.Opcode)
		assert.Equal(t, want.imm, s.ImmData, "big-endian")
		if want.rdma {
			assert.Equal(t, uint64(body.Addr)+16, s.RemoteAddr)
			assert.Equal(t, body.RKey, s.RKey)
		}
		assert.Equal(t, []libibverbs.SGE{{Addr: uint64(body.Addr), Length: 64, LKey: body.LKey}}, s.sges)
		assert.Equal(t, target.target, s.to.Number)
		assert.Equal(t, target.targetKey, s.to.Key)
	}
	assert.Equal(t, "inline", string(f.sent[4].inline))
	for range 5 {
		f.finish(f.dcis(tr)[0], libibverbs.WCSuccess)
	}
	all := await(t, tr, 5)
	assert.Equal(t, transport.Completion{ID: 4, Endpoint: a.ID(), Op: transport.OpRead, NumBytes: 64}, all[4])
	require.NoError(t, mr.Close())
	require.Zero(t, tr.NumStrays())
}

// TestDCStatusOfEach: however a request ends, its own peer ends with it, and
// the one initiator serves the next.
func TestDCStatusOfEach(t *testing.T) {
	f, tr := dcFake(t, Config{NumDCIs: 1})
	f.moves = true
	mr, err := tr.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	for status := libibverbs.WCStatus(1); status <= libibverbs.NumWCStatusValues; status++ {
		a, b := connected(t, tr, 2)
		postRecv(t, a, transport.RecvRequest{ID: 9})
		f.ends = []libibverbs.WCStatus{status}
		post(t, a, write(7, mr), write(8, mr))
		all := await(t, tr, 3)
		assert.Equal(t, statusOf(status), all[7].Status, status)
		assert.Equal(t, transport.StatusFlushed, all[8].Status)
		assert.Equal(t, transport.StatusFlushed, all[9].Status)
		assert.Equal(t, transport.StateError, a.State())
		assert.Equal(t, transport.StateReady, b.State())
		assert.Equal(t, DCStats{NumDCIs: 1, NumFailures: uint64(status), NumResets: uint64(status)}, tr.DCStats())
		closeEndpoint(t, tr, a)
		closeEndpoint(t, tr, b)
	}
	require.NoError(t, mr.Close())
}

// TestDCFailsAlone: with two initiators, a peer that fails takes no other along; a peer
// that waits is served after the reset, which comes after the last completion.
func TestDCFailsAlone(t *testing.T) {
	f, tr := dcFake(t, Config{NumDCIs: 2})
	dcis := f.dcis(tr)
	mr, err := tr.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	bad, _ := connected(t, tr, 4)
	good, _ := connected(t, tr, 4)
	waits, _ := connected(t, tr, 4)
	post(t, bad, write(1, mr), write(2, mr))
	post(t, good, write(3, mr))
	post(t, waits, write(4, mr))
	require.Len(t, f.sent, 3, "there is no initiator for the third peer")
	f.finish(dcis[0], libibverbs.WCRetryExcErr)
	all := await(t, tr, 2)
	assert.Equal(t, transport.StatusUnreachable, all[1].Status)
	assert.Equal(t, transport.StatusFlushed, all[2].Status)
	require.Len(t, f.pending[uintptr(dcis[0])], 1, "the third peer's")
	states := f.states[uintptr(dcis[0])]
	var last []uint32
	for _, s := range states[len(states)-5:] {
		last = append(last, s.attr.QPState)
	}
	assert.Equal(t, []uint32{6, 0, 1, 2, 3}, last, "ERR, RESET, INIT, RTR, RTS")
	assert.Equal(t, transport.StateReady, good.State())
	f.finish(dcis[1], libibverbs.WCSuccess)
	f.finish(dcis[0], libibverbs.WCSuccess)
	all = await(t, tr, 2)
	assert.Equal(t, transport.StatusOK, all[3].Status)
	assert.Equal(t, transport.StatusOK, all[4].Status)
	assert.Equal(t, DCStats{NumDCIs: 2, NumFailures: 1, NumResets: 1}, tr.DCStats())
	require.NoError(t, mr.Close())
}

// TestDCCannotBeReset: when no initiator works any more, a peer that waits is told, and
// new connections go without DC and say why.
func TestDCCannotBeReset(t *testing.T) {
	f, tr := dcFake(t, Config{NumDCIs: 1})
	mr, err := tr.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	bad, _ := connected(t, tr, 4)
	waits, _ := connected(t, tr, 4)
	post(t, bad, write(1, mr))
	post(t, waits, write(2, mr), write(3, mr))
	f.failures["modify_qp"] = []syscall.Errno{0, syscall.ENOMEM} // ERR, RESET
	f.finish(f.dcis(tr)[0], libibverbs.WCRetryExcErr)
	all := await(t, tr, 3)
	assert.Equal(t, transport.StatusFlushed, all[2].Status)
	assert.Equal(t, transport.StatusFlushed, all[3].Status)
	assert.Equal(t, transport.StateError, waits.State())
	var events [4]transport.Event
	require.Equal(t, 2, tr.PollEvents(events[:]))
	assert.Equal(t, "fake0/1: no DC initiator works any more", events[1].Detail)
	assert.Equal(t, DCStats{NumDCIs: 1, NumBroken: 1, NumFailures: 1}, tr.DCStats())

	a, _ := connected(t, tr, 4)
	require.False(t, a.(*endpoint).local.hasDC)
	assert.Equal(t, "fake0/1 (no DC: no DC initiator works any more)", a.(*endpoint).Device())
	post(t, a, write(4, mr))
	f.finish(a.(*endpoint).qp, libibverbs.WCSuccess)
	assert.Equal(t, transport.StatusOK, await(t, tr, 1)[4].Status)
	require.NoError(t, mr.Close())
}

// TestDCTakesNoBatch: a batch that the driver refuses ends its peer, and each
// request of it once.
func TestDCTakesNoBatch(t *testing.T) {
	f, tr := dcFake(t, Config{NumDCIs: 1})
	f.moves = true
	mr, err := tr.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	a, _ := connected(t, tr, 4)
	f.failures["wr_complete"] = []syscall.Errno{syscall.ENOMEM}
	post(t, a, write(1, mr), write(2, mr))
	all := await(t, tr, 2)
	assert.Equal(t, transport.StatusFlushed, all[1].Status)
	assert.Equal(t, transport.StatusFlushed, all[2].Status)
	assert.Equal(t, transport.StateError, a.State())
	b, _ := connected(t, tr, 4)
	post(t, b, write(3, mr))
	assert.Equal(t, transport.StatusOK, await(t, tr, 1)[3].Status)
	assert.Equal(t, DCStats{NumDCIs: 1, NumFailures: 1, NumResets: 1}, tr.DCStats())
	require.NoError(t, mr.Close())
}

// TestDCRetireOfWhoWaits: what waits for an initiator is returned at once,
// and its turn goes to the next.
func TestDCRetireOfWhoWaits(t *testing.T) {
	f, tr := dcFake(t, Config{NumDCIs: 1})
	mr, err := tr.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	has, _ := connected(t, tr, 4)
	first, _ := connected(t, tr, 4)
	second, _ := connected(t, tr, 4)
	post(t, has, write(1, mr))
	post(t, first, write(2, mr), write(3, mr))
	post(t, second, write(4, mr))
	require.NoError(t, first.Retire())
	all := await(t, tr, 2)
	assert.Equal(t, transport.StatusFlushed, all[2].Status)
	assert.Equal(t, transport.StatusFlushed, all[3].Status)
	f.finish(f.dcis(tr)[0], libibverbs.WCSuccess)
	await(t, tr, 1)
	f.finish(f.dcis(tr)[0], libibverbs.WCSuccess)
	assert.Equal(t, transport.StatusOK, await(t, tr, 1)[4].Status)
	assert.Equal(t, DCStats{NumDCIs: 1}, tr.DCStats(), "nothing failed")

	// A peer that has one returns what is outstanding, by the error state.
	post(t, second, write(5, mr))
	post(t, has, write(6, mr))
	require.NoError(t, second.Retire())
	assert.Equal(t, transport.StatusFlushed, await(t, tr, 1)[5].Status)
	f.finish(f.dcis(tr)[0], libibverbs.WCSuccess)
	assert.Equal(t, transport.StatusOK, await(t, tr, 1)[6].Status)
	assert.Equal(t, DCStats{NumDCIs: 1, NumResets: 1}, tr.DCStats())
	require.NoError(t, mr.Close())
}

// TestDCEvents: an event of an initiator, a target or its receive queue ends the endpoint
// that uses it, and an idle initiator comes back.
func TestDCEvents(t *testing.T) {
	f, tr := dcFake(t, Config{NumDCIs: 1})
	f.moves = true
	dci := uintptr(f.dcis(tr)[0])
	raise := func(kind libibverbs.EventType, element uintptr) {
		f.raise(libibverbs.AsyncEvent{Type: kind, Element: element})
		tr.takeEvents()
	}
	raise(libibverbs.EventQPFatal, dci)
	assert.Equal(t, DCStats{NumDCIs: 1, NumFailures: 1, NumResets: 1}, tr.DCStats())
	for name, element := range map[string]func(e *endpoint) (libibverbs.EventType, uintptr){
		"target": func(e *endpoint) (libibverbs.EventType, uintptr) {
			return libibverbs.EventQPFatal, uintptr(e.dc.target)
		},
		"receive queue": func(e *endpoint) (libibverbs.EventType, uintptr) { return libibverbs.EventSRQErr, uintptr(e.dc.srq) },
		"initiator":     func(*endpoint) (libibverbs.EventType, uintptr) { return libibverbs.EventQPFatal, dci },
	} {
		a, _ := connected(t, tr, 4)
		postRecv(t, a, transport.RecvRequest{ID: 1})
		post(t, a, transport.SendRequest{ID: 2, Op: transport.OpSend}) // waits for a receive
		raise(element(a.(*endpoint)))
		all := await(t, tr, 2)
		assert.Equal(t, transport.StatusFlushed, all[1].Status, name)
		assert.Equal(t, transport.StatusFlushed, all[2].Status, name)
		assert.Equal(t, transport.StateError, a.State(), name)
	}
	a, b := connected(t, tr, 4)
	postRecv(t, b, transport.RecvRequest{ID: 3})
	post(t, a, transport.SendRequest{ID: 4, Op: transport.OpSend})
	require.Len(t, await(t, tr, 2), 2)
	assert.Zero(t, tr.DCStats().NumBroken)
}

// TestDCDeviceIsRemoved: everything ends, once each, after the initiators and
// the targets were destroyed.
func TestDCDeviceIsRemoved(t *testing.T) {
	withMlx5(t)
	f := newFake(t)
	tr, err := f.tryOpen(Config{DC: true, NumDCIs: 1})
	require.NoError(t, err)
	mr, err := tr.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	var ends []transport.Endpoint
	for i := range uint64(3) {
		a, b := connected(t, tr, 4)
		ends = append(ends, a, b)
		postRecv(t, b, transport.RecvRequest{ID: 10 + i})
		post(t, a, write(i, mr), write(20+i, mr)) // those of two peers wait
	}
	f.calls, f.removed = nil, true
	f.raise(libibverbs.AsyncEvent{Type: libibverbs.EventDeviceFatal})
	tr.takeEvents()
	for id, c := range await(t, tr, 9) {
		assert.Equal(t, transport.StatusFlushed, c.Status, id)
	}
	assert.Len(t, slices.DeleteFunc(slices.Clone(f.calls), func(c string) bool { return c != "destroy_qp" }), 1+6)
	_, err = ends[0].PostSend([]transport.SendRequest{write(30, mr)})
	require.NoError(t, err)
	assert.Equal(t, transport.StatusFlushed, await(t, tr, 1)[30].Status)
	for _, e := range ends {
		closeEndpoint(t, tr, e)
	}
	require.NoError(t, mr.Close())
	require.NoError(t, tr.Close())
	f.alive = nil // the kernel has freed it
}

// TestDCUnresponsivePeer: a peer that has not connected takes no receives, and keeps
// its own.
func TestDCUnresponsivePeer(t *testing.T) {
	f, tr := dcFake(t, Config{})
	f.moves, f.impatient = true, true
	a, b := newEndpoint(t, tr, 4), newEndpoint(t, tr, 4)
	postRecv(t, b, transport.RecvRequest{ID: 1})
	require.NoError(t, a.Connect(b.Local(), time.Now().Add(time.Minute)))
	post(t, a, transport.SendRequest{ID: 2, Op: transport.OpSend})
	all := await(t, tr, 1)
	assert.Equal(t, transport.StatusNoReceive, all[2].Status)
	assert.Equal(t, transport.StateNew, b.State())
	require.NoError(t, b.Retire())
	assert.Zero(t, f.numAlive("srq"), "nothing reaches what has failed, or was retired, before it is closed")
	assert.Equal(t, transport.StatusFlushed, await(t, tr, 1)[1].Status)
}

// TestDCNotForThisPair: a pair goes without DC, says why, and keeps the order of
// receives that were posted before.
func TestDCNotForThisPair(t *testing.T) {
	for name, c := range map[string]struct {
		peer func(a *address)
		why  string
	}{
		"peer":  {func(a *address) { a.hasDC = false }, "fake0/1 (no DC: the peer's port has no DC)"},
		"sizes": {func(a *address) { a.mtu = 3 }, "fake0/1 (no DC: MTUs differ, codes 4 and 3)"},
	} {
		t.Run(name, func(t *testing.T) {
			f, tr := dcFake(t, Config{NumDCIs: 1})
			e := newEndpoint(t, tr, 4).(*endpoint)
			postRecv(t, e, transport.RecvRequest{ID: 1}, transport.RecvRequest{ID: 2})
			postRecv(t, e, transport.RecvRequest{ID: 3})
			peer := e.local
			c.peer(&peer)
			require.NoError(t, e.Connect(peer.encode(), time.Now().Add(time.Minute)))
			assert.Equal(t, c.why, e.Device())
			assert.Equal(t, 2, f.numAlive("qp"), "an initiator and a queue pair")
			assert.Zero(t, f.numAlive("srq"))
			for id := range uint64(3) {
				f.finish(e.qp, libibverbs.WCSuccess)
				require.Contains(t, await(t, tr, 1), id+1)
			}
		})
	}
}

// TestDCEndpointWithout: whatever of DC cannot be made for an endpoint, it goes
// without, and nothing of it stays.
func TestDCEndpointWithout(t *testing.T) {
	for name, errnos := range map[string][]syscall.Errno{
		"create_srq": {syscall.ENOMEM}, "mlx5dv_create_qp": {syscall.EINVAL},
		"modify_qp": {0, 0, syscall.EINVAL}, // INIT of the queue pair, and of the target
	} {
		t.Run(name, func(t *testing.T) {
			f, tr := dcFake(t, Config{NumDCIs: 1})
			f.failures[name] = errnos
			e := newEndpoint(t, tr, 4).(*endpoint)
			assert.False(t, e.local.hasDC)
			assert.Contains(t, e.Device(), "(no DC: ")
			assert.Zero(t, f.numAlive("srq"))
			postRecv(t, e, transport.RecvRequest{ID: 1})
			require.NoError(t, e.Connect(newEndpoint(t, tr, 4).Local(), time.Now().Add(time.Minute)))
			f.finish(e.qp, libibverbs.WCSuccess)
			require.Len(t, await(t, tr, 1), 1)
		})
	}
}

// TestDCConnectFails: without an address handle the endpoint ends, with its
// receives.
func TestDCConnectFails(t *testing.T) {
	f, tr := dcFake(t, Config{})
	a, b := newEndpoint(t, tr, 4), newEndpoint(t, tr, 4)
	postRecv(t, a, transport.RecvRequest{ID: 1})
	f.failures["create_ah"] = []syscall.Errno{syscall.ENOMEM}
	err := a.Connect(b.Local(), time.Now().Add(time.Minute))
	require.ErrorIs(t, err, transport.ErrNoResource)
	require.ErrorContains(t, err, "ibv_create_ah")
	assert.Equal(t, transport.StatusFlushed, await(t, tr, 1)[1].Status)
	assert.Zero(t, f.numAlive("srq")-1, "that of the other endpoint")
}

// TestDCOfAGroup: each port has its own; people are told of all.
func TestDCOfAGroup(t *testing.T) {
	withMlx5(t)
	f := newFakes(t, 2)
	f.moves = true
	g := f.group(Config{DC: true, NumDCIs: 2})
	meet := func() *endpoint {
		a, b := groupEndpoint(t, g), groupEndpoint(t, g)
		join(t, a, b)
		return a
	}
	require.Equal(t, "fake0/1 (DC)", meet().Device())
	f.raiseOn(0, portDown)
	groupEvents(g)
	require.Equal(t, "fake1/1 (DC)", meet().Device())
	assert.Contains(t, g.Remarks(), "fake0/1: DC: used with ports that have it; fake1/1: DC: used with ports that have it")
	require.True(t, g.NICs()[1].DC.Detected)
}
