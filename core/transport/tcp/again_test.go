package tcp

import (
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// wall stands between the side that dials and the side that accepts. It cuts the
// connections with numbers, in the order of their arrival, that are in cut, when the last
// frame of their handshake is on its way: the dialler takes it to be over, the other side
// never gets it.
type wall struct {
	listener net.Listener
	to       string
	cut      map[int]bool
	mu       sync.Mutex
	conns    []net.Conn
	running  sync.WaitGroup
}

func newWall(t *testing.T, to netip.AddrPort, cut ...int) *wall {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wall{listener: l, to: to.String(), cut: map[int]bool{}}
	for _, n := range cut {
		w.cut[n] = true
	}
	w.running.Go(w.run)
	t.Cleanup(w.close)
	return w
}

func (w *wall) run() {
	for n := 0; ; n++ {
		in, err := w.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", w.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		w.mu.Lock()
		w.conns = append(w.conns, in, out)
		w.mu.Unlock()
		cut := w.cut[n]
		w.running.Go(func() { w.forward(in, out, cut) })
		w.running.Go(func() { pass(out, in) })
	}
}

// forward carries what the dialler says; the second frame is the last of the handshake.
func (w *wall) forward(in, out net.Conn, cut bool) {
	for frame := 0; cut; frame++ {
		b := make([]byte, wire.LengthBytes)
		if _, err := io.ReadFull(in, b); err != nil {
			break
		}
		b = append(b, make([]byte, binary.LittleEndian.Uint32(b))...)
		if _, err := io.ReadFull(in, b[wire.LengthBytes:]); err != nil || frame == 1 {
			break
		}
		_, _ = out.Write(b)
	}
	if !cut {
		_, _ = io.Copy(out, in)
	}
	_ = in.Close()
	_ = out.Close()
}

func pass(from, to net.Conn) {
	_, _ = io.Copy(to, from)
	_ = from.Close()
	_ = to.Close()
}

func (w *wall) addr() netip.AddrPort { return netip.MustParseAddrPort(w.listener.Addr().String()) }

func (w *wall) close() {
	_ = w.listener.Close()
	w.mu.Lock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.mu.Unlock()
	w.running.Wait()
}

// ordered makes endpoints and returns which one dials first.
func (p *pair) ordered() (dialler, other int) {
	p.t.Helper()
	for i := range p.ep {
		ep, err := p.tr[i].NewEndpoint(transport.EndpointSpec{SendDepth: 4, RecvDepth: 4})
		require.NoError(p.t, err)
		p.ep[i] = ep
	}
	if dials(p.ep[0].(*endpoint).token, p.ep[1].(*endpoint).token) {
		return 0, 1
	}
	return 1, 0
}

// behind is an endpoint's address by way of the wall.
func behind(t *testing.T, ep transport.Endpoint, w *wall) []byte {
	a, err := decodeAddress(ep.Local())
	require.NoError(t, err)
	a.addrs = []netip.AddrPort{w.addr()}
	return a.encode()
}

// TestConnectAgain: a connection that ends between its handshake and the
// peer's accept does not end Connect, whichever of the sockets it is: the peer
// still waits.
func TestConnectAgain(t *testing.T) {
	for name, cut := range map[string][]int{
		"the first": {0}, "the second": {1}, "the last": {2}, "again": {0, 4, 8}, "all": {0, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, func(_ int, c *Config) { c.NumSockets = 3 })
			from, to := p.ordered()
			w := newWall(t, p.tr[to].listener.addrs[0], cut...)
			errs := make(chan error, 2)
			deadline := time.Now().Add(soon)
			address, back := behind(t, p.ep[to], w), p.ep[from].Local()
			go func() { errs <- p.ep[from].Connect(address, deadline) }()
			go func() { errs <- p.ep[to].Connect(back, deadline) }()
			require.NoError(t, <-errs)
			require.NoError(t, <-errs)
			p.recv(to, transport.RecvRequest{ID: 1})
			p.send(from, transport.SendRequest{ID: 2, Op: transport.OpSend})
			require.Equal(t, transport.StatusOK, p.one(to).Status)
			p.close()
		})
	}
}

// TestAcceptsAgain: a connection that breaks while its accept is written does not end
// Connect of the accepting side: the peer dials again.
func TestAcceptsAgain(t *testing.T) {
	p := newPair(t, nil)
	from, to := p.ordered()
	ep := p.ep[to].(*endpoint)
	broken := newSockets(t)()
	require.NoError(t, sys.ShutdownWrite(broken))
	j := join{from: p.ep[from].(*endpoint).token, to: ep.token, num: 1, sendDepth: 4, recvDepth: 4}
	require.True(t, ep.offer(parked{fd: broken, session: newSession(t), join: j}))
	errs := make(chan error, 2)
	deadline := time.Now().Add(soon)
	local, back := p.ep[to].Local(), p.ep[from].Local()
	go func() { errs <- p.ep[to].Connect(back, deadline) }()
	require.Eventually(t, func() bool {
		ep.mu.Lock()
		defer ep.mu.Unlock()
		return ep.rendezvous.parked[0].fd == nil // taken
	}, soon, time.Millisecond)
	go func() { errs <- p.ep[from].Connect(local, deadline) }()
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	p.close()
}

// newSockets returns a function that makes connected sockets. Their other ends say
// nothing.
func newSockets(t *testing.T) func() *sys.FD {
	listener, at, err := sys.ListenTCP(loopback[0], 8)
	require.NoError(t, err)
	never, err := sys.NewEvent()
	require.NoError(t, err)
	t.Cleanup(func() { sys.CloseAll(listener, never) })
	return func() *sys.FD {
		fd, err := sys.DialTCP(at, sys.TCPOptions{})
		if err == sys.ErrInProgress {
			_, err = sys.WaitSocket(fd, true, never, time.Now().Add(soon))
		}
		require.NoError(t, err)
		return fd
	}
}

// newSession is a session of the accepting side, without a peer.
func newSession(t *testing.T) *wire.Session {
	config := wire.Config{Keys: wire.GenerateKeyring(), MaxPayloadBytes: 1, Ordered: true}
	a, err := wire.NewHandshake(wire.RoleClient, config)
	require.NoError(t, err)
	config.Guard, err = wire.NewGuard(0)
	require.NoError(t, err)
	b, err := wire.NewHandshake(wire.RoleServer, config)
	require.NoError(t, err)
	_, out, err := b.Step(a.Start())
	require.NoError(t, err)
	_, out, err = a.Step(out)
	require.NoError(t, err)
	_, _, err = b.Step(out)
	require.NoError(t, err)
	return b.Session()
}

// TestConnectEndsWithThePeer: a peer that has given up refuses the next attempt,
// and that is the end, long before the deadline.
func TestConnectEndsWithThePeer(t *testing.T) {
	p := newPair(t, nil)
	from, to := p.ordered()
	errs := make(chan error, 1)
	local := p.ep[to].Local()
	go func() { errs <- p.ep[from].Connect(local, time.Now().Add(time.Hour)) }()
	require.Eventually(t, func() bool { return p.tr[to].counters.Joined.Load() == 1 }, soon, time.Millisecond)
	require.NoError(t, p.ep[to].Retire())
	select {
	case err := <-errs:
		var refused *wire.RefusedError
		require.ErrorAs(t, err, &refused)
		require.ErrorIs(t, err, errEnded)
	case <-time.After(soon):
		require.Fail(t, "Connect goes on although the peer has given up")
	}
	p.close()
}

// TestConnectEndsWhereAnotherIsAwaited: so does one that waits for another peer.
func TestConnectEndsWhereAnotherIsAwaited(t *testing.T) {
	p := newPair(t, nil)
	from, to := p.ordered()
	accepts := make(chan error, 1)
	third := address{token: token{0, 1}, numSockets: 1, addrs: loopback}
	go func() { accepts <- p.ep[to].Connect(third.encode(), time.Now().Add(time.Hour)) }()
	ep := p.ep[to].(*endpoint)
	require.Eventually(t, func() bool { return !ep.waitsFor(token{}) }, soon, time.Millisecond)
	dialled := make(chan error, 1)
	local := p.ep[to].Local()
	go func() { dialled <- p.ep[from].Connect(local, time.Now().Add(time.Hour)) }()
	select {
	case err := <-dialled:
		var refused *wire.RefusedError
		require.ErrorAs(t, err, &refused)
	case <-time.After(soon):
		require.Fail(t, "Connect goes on although the peer waits for another")
	}
	require.NoError(t, ep.Retire())
	require.Error(t, <-accepts)
	p.close()
}

// TestSocketsOfTwoAttempts: the dialler gives up an attempt half-way and begins another
// one; the network brings the sockets of both, and not yet the end of the first. They are
// not taken for one set, whichever comes last.
func TestSocketsOfTwoAttempts(t *testing.T) {
	tr, ep, ring := newListening(t, Config{NumSockets: 2})
	dial := func(index int, attempt uint32) net.Conn {
		t.Helper()
		done := tr.counters.Joined.Load() + tr.counters.NotWanted.Load()
		c := dialRaw(t, tr)
		_, err := shakeHands(c, clientConfig(ring, join{
			to: ep.token, index: index, num: 2, sendDepth: 4, recvDepth: 4, attempt: attempt,
		}))
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			return tr.counters.Joined.Load()+tr.counters.NotWanted.Load() > done
		}, soon, time.Millisecond)
		return c
	}
	take := func() []parked {
		t.Helper()
		set, stopped := ep.takeParked() // as Connect does; the peer's token is zero
		require.False(t, stopped)
		return set
	}
	first := dial(1, 1)
	require.Empty(t, take())
	dial(0, 2)
	require.Empty(t, take(), "one socket of each attempt")
	mustBeClosed(t, first)
	mustBeClosed(t, dial(1, 1)) // it comes late
	require.Empty(t, take())
	require.EqualValues(t, 1, tr.counters.NotWanted.Load())
	dial(1, 2)
	set := take()
	require.Len(t, set, 2)
	require.Equal(t, []uint32{2, 2}, []uint32{set[0].join.attempt, set[1].join.attempt})
	closeAll(set)
	mustBeClosed(t, dial(0, 1)) // nothing waits, and yet
}

// TestAnotherPeerReplacesTheSet: until Connect says which peer to wait for, sockets of
// two peers are no set, either.
func TestAnotherPeerReplacesTheSet(t *testing.T) {
	_, ep, _ := newListening(t, Config{NumSockets: 2})
	socket := newSockets(t)
	for _, j := range []join{{from: token{1}, index: 1}, {index: 0}} {
		j.num, j.sendDepth, j.recvDepth = 2, 1, 1
		require.True(t, ep.offer(parked{fd: socket(), join: j}))
	}
	require.Nil(t, ep.rendezvous.parked[1].fd)
	require.NotNil(t, ep.rendezvous.parked[0].fd)
}

// TestFormat: what the carrier says of itself, byte for byte, and that it takes
// no other version's.
func TestFormat(t *testing.T) {
	a := address{id: 7, token: token{1, 2}, numSockets: 3, addrs: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:80")}}
	b := a.encode()
	require.Equal(t, "6d777402"+"0700000000000000"+"01020000000000000000000000000000"+"0301"+
		"00000000000000000000ffff0a000001"+"5000", hex.EncodeToString(b))
	b[3] = 1
	_, err := decodeAddress(b)
	require.ErrorContains(t, err, "of version 2: it has 1")

	j := join{from: token{1}, to: token{2}, index: 1, num: 3, sendDepth: 4, recvDepth: 5, attempt: 6}
	b = j.encode()
	require.Equal(t, "02"+"01000000000000000000000000000000"+"02000000000000000000000000000000"+"0103"+
		"04000000"+"05000000"+"06000000", hex.EncodeToString(b))
	got, ok := decodeJoin(b)
	require.True(t, ok)
	require.Equal(t, j, got)
	b[0] = 1
	_, ok = decodeJoin(b)
	require.False(t, ok)
}

// TestAnotherVersionIsRefused: a dialler with another version's join is told.
func TestAnotherVersionIsRefused(t *testing.T) {
	tr, ep, ring := newListening(t, Config{})
	j := join{to: ep.token, num: 1, sendDepth: 4, recvDepth: 4}
	config := clientConfig(ring, j)
	config.Blob[0]--
	_, err := shakeHands(dialRaw(t, tr), config)
	var refused *wire.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, wire.ErrDeclined, refused.Reason)
}
