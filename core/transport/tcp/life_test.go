package tcp

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

func TestBulkAllocatesNothing(t *testing.T) {
	eachVariant(t, func(t *testing.T, p *pair) {
		const n = 600_000
		p.memory(n, transport.AccessRead|transport.AccessWrite)
		p.connect(4, 4)
		var done [8]transport.Completion
		ask := []transport.SendRequest{
			{Op: transport.OpWrite, Local: whole(p.mems[0]), Remote: p.mems[1].Remote()},
			{Op: transport.OpRead, Local: whole(p.mems[0]), Remote: p.mems[1].Remote()},
			{Op: transport.OpWriteImm, Local: whole(p.mems[0]), Remote: p.mems[1].Remote()},
		}
		receives := []transport.RecvRequest{{}}
		round := func() {
			_, err := p.ep[1].PostRecv(receives)
			_, err2 := p.ep[0].PostSend(ask)
			for left := 4; left > 0 && err == nil && err2 == nil; {
				for i := range p.tr {
					var got int
					got, err = p.tr[i].Poll(done[:])
					left -= got
				}
			}
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
		}
		for range 20 {
			round()
		}
		require.Zero(t, testing.AllocsPerRun(20, round))
		p.close()
	})
}

// TestRegionClosedWhileLanding closes a region when half of a write is there.
// From then on its memory belongs to its owner.
func TestRegionClosedWhileLanding(t *testing.T) {
	x := newImpostor(t)
	const n = 40_000
	mem, free := mapped(t, n)
	defer free()
	r, err := x.tr.Register(mem, transport.AccessWrite)
	require.NoError(t, err)
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = 0xee
	}
	var extra [extraBytes]byte
	m := message{code: codeWrite, key: r.Remote().Key, total: n}
	m.encode(&extra)
	frame, err := x.session.Seal(nil, &wire.Head{Code: m.code, Extra: extra[:]}, payload)
	require.NoError(t, err)
	_, err = x.conn.Write(append(frame, payload[:n/2]...))
	require.NoError(t, err)
	landed := func() bool {
		x.ep.io.Lock()
		defer x.ep.io.Unlock()
		return len(x.ep.conns) == 1 && x.ep.conns[0].rx.left == n/2
	}
	require.Eventually(t, func() bool { x.poll(); return landed() }, soon, time.Millisecond)
	require.NoError(t, r.Close())
	clear(mem)
	_, err = x.conn.Write(payload[n/2:])
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, failed := x.poll(); return failed }, soon, time.Millisecond)
	require.Equal(t, make([]byte, n), mem)
	x.close()
}

// TestRetiredWhileLanding: from the end of the endpoint on, receives belong to
// their owner again, also when half of a send is there (CO4).
func TestRetiredWhileLanding(t *testing.T) {
	x := newImpostor(t)
	var extra [extraBytes]byte
	m := message{code: codeSend, total: 100}
	m.encode(&extra)
	payload := bytes.Repeat([]byte{0xee}, 100)
	frame, err := x.session.Seal(nil, &wire.Head{Code: m.code, Extra: extra[:]}, payload)
	require.NoError(t, err)
	_, err = x.conn.Write(append(frame, payload[:50]...))
	require.NoError(t, err)
	landed := func() bool {
		x.ep.io.Lock()
		defer x.ep.io.Unlock()
		return len(x.ep.conns) == 1 && x.ep.conns[0].rx.left == 50
	}
	require.Eventually(t, func() bool { x.poll(); return landed() }, soon, time.Millisecond)
	require.NoError(t, x.ep.Retire())
	clear(x.region.Bytes())
	_, _ = x.conn.Write(payload[50:])
	for range 20 {
		x.poll()
		time.Sleep(time.Millisecond)
	}
	require.Equal(t, make([]byte, 4096), x.region.Bytes())
	x.close()
}

// TestUnpolledIsOutstanding: a request counts until its completion was polled.
func TestUnpolledIsOutstanding(t *testing.T) {
	p := newPair(t, nil)
	p.memory(10, transport.AccessWrite)
	p.connect(2, 2)
	send := []transport.SendRequest{{Op: transport.OpSend}}
	receive := []transport.RecvRequest{{}}
	p.recv(1, transport.RecvRequest{}, transport.RecvRequest{})
	p.send(0, send[0], send[0])
	for i := range p.tr {
		ended := func() bool { return p.tr[0].Wait(0) == nil && p.tr[1].Wait(0) == nil && p.tr[i].done.num.Load() == 2 }
		require.Eventually(t, ended, soon, time.Millisecond)
	}
	_, err := p.ep[0].PostSend(send)
	require.ErrorIs(t, err, transport.ErrWouldBlock)
	_, err = p.ep[1].PostRecv(receive)
	require.ErrorIs(t, err, transport.ErrWouldBlock)
	p.take(0, 2)
	p.recv(1, receive[0])
	p.send(0, send[0])
	p.close()
}

// TestSleepLooksFirst: what came between the last look and sleeping is seen.
func TestSleepLooksFirst(t *testing.T) {
	tr := openOne(t, Config{Keyring: wire.GenerateKeyring()})
	tr.standby.Enter() // it would take what is ready
	defer tr.standby.Leave()
	ep, err := tr.NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
	require.NoError(t, err)
	sleeps := func() {
		t.Helper()
		ended := make(chan error, 1)
		go func() { ended <- tr.sleep(&tr.waiter, time.Hour) }()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(soon):
			tr.waiter.ring()
			t.Error("sleeps on")
		}
	}
	tr.enqueue(ep.(*endpoint))
	sleeps()
	tr.runReady()
	tr.woken.Store(true)
	sleeps()
	tr.woken.Store(false)
	require.NoError(t, ep.Close())
	require.NoError(t, tr.Close())
}

func TestRetireEndsConnect(t *testing.T) {
	p := newPair(t, nil)
	for i := range p.ep {
		ep, err := p.tr[i].NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
		require.NoError(t, err)
		p.ep[i] = ep
	}
	errs := make(chan error)
	// Both outcomes of which side dials: each meets one that never connects.
	for i := range p.ep {
		remote := p.ep[1-i].Local()
		go func() { errs <- p.ep[i].Connect(remote, time.Now().Add(time.Hour)) }()
		time.Sleep(20 * time.Millisecond)
		require.ErrorIs(t, p.ep[i].Close(), transport.ErrBusy)
		require.NoError(t, p.ep[i].Retire())
		err := <-errs
		require.Error(t, err)
		require.False(t, errors.Is(err, sys.ErrTimeout))
		fresh, err := p.tr[i].NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
		require.NoError(t, err)
		require.NoError(t, p.ep[i].Close())
		p.ep[i] = fresh
	}
	p.close()
}

func TestConnectToNobodyEndsAtOnce(t *testing.T) {
	p := newPair(t, nil)
	ep, err := p.tr[0].NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
	require.NoError(t, err)
	p.ep[0] = ep
	gone := address{numSockets: 1, addrs: p.tr[1].addrs}
	for i := range gone.token {
		gone.token[i] = 0xff // this side dials
	}
	require.NoError(t, p.tr[1].Close())
	require.ErrorIs(t, ep.Connect(gone.encode(), time.Now().Add(time.Hour)), sys.ErrNoListener)
	require.NoError(t, ep.Close())
	require.NoError(t, p.tr[0].Close())
}

func TestConfigSaysWhatIsWrong(t *testing.T) {
	ring := wire.GenerateKeyring()
	unspecified := []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:0")}
	for want, c := range map[string]Config{
		"Keyring":                      {Listen: loopback},
		"listen and interface are":     {Keyring: ring},
		"NumSockets":                   {Listen: loopback, Keyring: ring, NumSockets: 17},
		"NumEndpoints":                 {Listen: loopback, Keyring: ring, NumEndpoints: -1},
		"UnresponsiveTimeout":          {Listen: loopback, Keyring: ring, UnresponsiveTimeout: time.Millisecond},
		"Protection":                   {Listen: loopback, Keyring: ring, Protection: 9},
		`interface "no such interface`: {Interface: "no such interface", Keyring: ring},
		"listen has 0.0.0.0:0":         {Listen: unspecified, Keyring: ring},
		"advertise has 0.0.0.0:0":      {Listen: loopback, Advertise: unspecified, Keyring: ring},
		"have 17 addresses, advertise has 0, at most 16": {Listen: slices.Repeat(loopback, 17), Keyring: ring},
		"have 1 addresses, advertise has 18, at most 16": {
			Listen: loopback, Keyring: ring, Advertise: slices.Repeat([]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}, 18),
		},
	} {
		_, err := Open(c)
		require.ErrorContains(t, err, want)
	}
	tr, err := Open(Config{Interface: "lo", Keyring: ring})
	require.NoError(t, err)
	require.Contains(t, tr.Device(), "127.0.0.1:")
	require.NoError(t, tr.Close())
	require.Zero(t, sys.Stats().LeakedFDs)
}

func TestCloseEndsWait(t *testing.T) {
	tr := openOne(t, Config{Keyring: wire.GenerateKeyring()})
	ended := make(chan error)
	go func() { ended <- tr.Wait(time.Hour) }()
	require.Eventually(t, tr.waiter.asleep.Load, soon, time.Millisecond)
	closed := make(chan error, 1)
	go func() { closed <- tr.Close() }()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, transport.ErrState)
	case <-time.After(soon):
		t.Fatal("Wait goes on")
	}
	require.NoError(t, <-closed)
	require.ErrorIs(t, tr.Wait(time.Hour), transport.ErrState)
	tr.Wake()
}

// TestAcknowledgementEndsWait: a goroutine that has looked for news and is about to sleep
// is told of what completes by nothing but an acknowledgement, when another goroutine
// reads that.
func TestAcknowledgementEndsWait(t *testing.T) {
	p := newPair(t, nil)
	p.memory(10, transport.AccessWrite)
	p.connect(2, 2)
	tr := p.tr[0]
	tr.turnMu.Lock() // nothing reads
	p.send(0, transport.SendRequest{ID: 1, Op: transport.OpWrite, Local: whole(p.mems[0]), Remote: p.mems[1].Remote()})
	tr.waiter.asleep.Store(true)
	tr.turnMu.Unlock()
	require.Eventually(t, func() bool { return tr.done.num.Load() == 1 }, soon, time.Millisecond) // the standby reads
	tr.turnMu.Lock()                                                                              // until its turn is over
	asleep := tr.waiter.asleep.Load()
	tr.turnMu.Unlock()
	require.False(t, asleep, "sleeps on")
	require.Equal(t, transport.StatusOK, p.one(0).Status)
	p.close()
}

// TestNoReceiveEndsWait: a request that begins to wait for a receive during a
// Wait without end has its time all the same.
func TestNoReceiveEndsWait(t *testing.T) {
	p := newPair(t, func(_ int, c *Config) { c.ReceiveTimeout = 20 * time.Millisecond })
	p.memory(10, transport.AccessWrite)
	p.connect(2, 2)
	tr := p.tr[0]
	p.turn() // nothing is left of connecting
	ended := make(chan error, 1)
	go func() { ended <- tr.Wait(time.Hour) }()
	require.Eventually(t, tr.waiter.asleep.Load, soon, time.Millisecond)
	p.send(0, transport.SendRequest{ID: 1, Op: transport.OpSend, Local: whole(p.mems[0])})
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(soon):
		t.Fatal("Wait goes on")
	}
	require.Equal(t, transport.StatusNoReceive, p.one(0).Status)
	p.close()
}

// TestRefusalOfAnotherSocket: the first socket says that a request is refused,
// also when another one finds out and nothing else happens.
func TestRefusalOfAnotherSocket(t *testing.T) {
	p := newPair(t, func(_ int, c *Config) { c.NumSockets = 3 })
	p.memory(1000, transport.AccessRead)
	p.connect(4, 4)
	p.tr[1].standby.Enter() // this test alone moves bytes there
	defer p.tr[1].standby.Leave()
	p.turn() // nothing is left of connecting
	p.send(0, transport.SendRequest{ID: 1, Op: transport.OpRead, Local: whole(p.mems[0]), Remote: p.mems[1].Remote()})
	ep := p.ep[1].(*endpoint)
	asked := func() bool {
		ep.io.Lock()
		defer ep.io.Unlock()
		for _, c := range ep.conns {
			c.receive()
		}
		return ep.in.firstRead != ep.in.endRead
	}
	require.Eventually(t, asked, soon, time.Millisecond)
	_, _ = p.tr[1].poller.Poll(new(sys.PollEvents)) // nothing else happens
	require.NoError(t, p.mems[1].Close())
	ep.io.Lock()
	ep.conns[2].send()
	ep.unlockIO()
	require.Equal(t, transport.StatusRemote, p.one(0).Status)
	p.close()
}
