package tcp

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// snapshot is what unauthenticated peers must not be able to change.
func snapshot(tr *Transport) string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	s := fmt.Sprintln(tr.numEndpoint, len(tr.freeRegions), len(tr.freeConns), tr.done.num.Load(), tr.events.num.Load())
	for _, ep := range tr.endpoints {
		ep.mu.Lock()
		s += fmt.Sprintln(ep.id, ep.State(), ep.rendezvous.parked, ep.in.head, ep.in.tail, ep.in.base, ep.out.head)
		ep.mu.Unlock()
	}
	return s
}

// newListening is a listening transport with an endpoint that is not connected, and what one
// needs to dial it.
func newListening(t *testing.T, config Config) (*Transport, *endpoint, *wire.Keyring) {
	config.Keyring = wire.GenerateKeyring()
	tr := openOne(t, config)
	ep, err := tr.NewEndpoint(transport.EndpointSpec{SendDepth: 4, RecvDepth: 4})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, ep.Close())
		require.NoError(t, tr.Close())
	})
	return tr, ep.(*endpoint), config.Keyring
}

func dialRaw(t *testing.T, tr *Transport) net.Conn {
	c, err := net.Dial("tcp", tr.listener.addrs[0].String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// hello makes the first frame of a handshake with an endpoint.
func hello(t *testing.T, ring *wire.Keyring, to token) []byte {
	h, err := wire.NewHandshake(wire.RoleClient, clientConfig(ring, join{to: to, num: 1, sendDepth: 4, recvDepth: 4}))
	require.NoError(t, err)
	return h.Start()
}

func clientConfig(ring *wire.Keyring, j join) wire.Config {
	return wire.Config{
		Keys: ring, Protection: wire.ProtectDigest, Ordered: true,
		MaxPayloadBytes: segmentBytes, Codes: codes, Blob: j.encode(),
	}
}

// shakeHands is a dialler's part in a handshake, without what surrounds it in the product.
func shakeHands(conn net.Conn, config wire.Config) (*wire.Session, error) {
	h, err := wire.NewHandshake(wire.RoleClient, config)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	_, err = conn.Write(h.Start())
	for err == nil && !h.Done() {
		in := make([]byte, h.Need())
		if _, err = io.ReadFull(conn, in); err != nil {
			break
		}
		var out []byte
		if _, out, err = h.Step(in); err == nil && out != nil {
			_, err = conn.Write(out)
		}
	}
	return h.Session(), err
}

// mustBeClosed reads until the other side closes.
func mustBeClosed(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(soon)))
	_, err := io.Copy(io.Discard, c)
	var timeout net.Error
	if err != nil {
		require.False(t, asTimeout(err, &timeout), "an unauthenticated connection stays open")
	}
}

func asTimeout(err error, target *net.Error) bool {
	e, ok := err.(net.Error)
	*target = e
	return ok && e.Timeout()
}

// TestWF1UnauthenticatedChangeNothing: what comes from a client that does not know the
// key, or was recorded, ends with the connection and a count.
func TestWF1UnauthenticatedChangeNothing(t *testing.T) {
	tr, ep, ring := newListening(t, Config{HandshakeTimeout: 300 * time.Millisecond})
	recorded := hello(t, ring, ep.token)
	flip := func(i int) []byte {
		b := bytes.Clone(hello(t, ring, ep.token))
		b[i] ^= 1
		return b
	}
	reason := func(r wire.Reason) func() uint64 { return func() uint64 { return tr.counters.Wire.Refused(r) } }
	c := &tr.counters
	before := snapshot(tr)
	for _, s := range []struct {
		name  string
		bytes []byte
		hang  bool // keep the connection open and say no more
		count func() uint64
	}{
		{"nothing, for too long", nil, true, c.Late.Load},
		{"one byte, for too long", []byte{0}, true, c.Late.Load},
		{"half a hello, for too long", recorded[:60], true, c.Late.Load},
		{"half a hello", recorded[:60], false, c.Ended.Load},
		{"text", []byte("GET / HTTP/1.1\r\nHost: experts\r\n\r\n"), false, reason(wire.ErrLength)},
		{"a huge length", []byte{0xff, 0xff, 0xff, 0x7f}, false, reason(wire.ErrLength)},
		{"zeros", make([]byte, 4096), false, reason(wire.ErrLength)},
		{"an altered length", flip(1), true, c.Late.Load},
		{"a much altered length", flip(2), false, reason(wire.ErrLength)},
		{"an altered version", flip(4), false, reason(wire.ErrMAC)},
		{"an altered key id", flip(8), false, reason(wire.ErrKeyID)},
		{"an altered blob", flip(130), false, reason(wire.ErrMAC)},
		{"an altered tag", flip(len(recorded) - 1), false, reason(wire.ErrMAC)},
		{"another key", hello(t, wire.GenerateKeyring(), ep.token), false, reason(wire.ErrMAC)},
		{"nobody's token", hello(t, ring, token{1}), false, c.NotWanted.Load},
		{"a hello that is not confirmed", recorded, true, c.Late.Load},
		{"a recorded hello", recorded, true, reason(wire.ErrReplay)},
	} {
		was := s.count()
		conn := dialRaw(t, tr)
		_, _ = conn.Write(s.bytes) // may be refused half-way
		if !s.hang {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
		mustBeClosed(t, conn)
		require.Eventually(t, func() bool { return s.count() == was+1 }, soon, time.Millisecond, "%s is not counted", s.name)
		require.Equal(t, before, snapshot(tr), s.name)
	}
	require.Zero(t, c.Joined.Load())
}

func TestRandomBytesChangeNothing(t *testing.T) {
	tr, _, _ := newListening(t, Config{})
	before := snapshot(tr)
	noise := make([]byte, 10_000)
	for i := range uint64(50) {
		fillRandom(noise, testenv.Seed(t)+i)
		conn := dialRaw(t, tr)
		_, _ = conn.Write(noise[:1+i*200])
		_ = conn.(*net.TCPConn).CloseWrite()
		mustBeClosed(t, conn)
	}
	require.Equal(t, before, snapshot(tr))
	require.Zero(t, tr.counters.Joined.Load())
}

// TestPendingConnectionsDoNotDisplacePeers: connections that say nothing are bounded in
// number, and peers connect all the same.
func TestPendingConnectionsDoNotDisplacePeers(t *testing.T) {
	const pending = 4
	p := newPair(t, func(_ int, c *Config) { c.NumPending, c.HandshakeTimeout = pending, 10*time.Minute })
	var pendingConns []net.Conn
	for _, tr := range p.tr {
		for range 5 * pending {
			pendingConns = append(pendingConns, dialRaw(t, tr))
		}
	}
	for _, tr := range p.tr {
		require.Eventually(t, func() bool { return tr.counters.Crowded.Load() == 4*pending }, soon, time.Millisecond)
	}
	mustBeClosed(t, pendingConns[0])
	p.connect(4, 4)
	p.recv(1, transport.RecvRequest{ID: 1})
	p.send(0, transport.SendRequest{ID: 2, Op: transport.OpSend})
	require.Equal(t, transport.StatusOK, p.one(1).Status)
	p.close()
	mustBeClosed(t, pendingConns[len(pendingConns)-1])
}

func TestWrongKeyDoesNotConnect(t *testing.T) {
	p := newPair(t, func(_ int, c *Config) { c.Keyring = wire.GenerateKeyring() })
	for i := range p.ep {
		ep, err := p.tr[i].NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
		require.NoError(t, err)
		p.ep[i] = ep
	}
	errs := make(chan error, 2)
	for i := range p.ep {
		remote := p.ep[1-i].Local()
		go func() { errs <- p.ep[i].Connect(remote, time.Now().Add(400*time.Millisecond)) }()
	}
	require.Error(t, <-errs)
	require.Error(t, <-errs)
	require.NotZero(t, p.tr[0].counters.Wire.Refused(wire.ErrMAC)+p.tr[1].counters.Wire.Refused(wire.ErrMAC))
	p.close()
}

// TestProtectionIsPinned: sides that protect payloads differently do not come to terms,
// whichever dials, and are told at once.
func TestProtectionIsPinned(t *testing.T) {
	p := newPair(t, func(i int, c *Config) {
		c.Protection = []wire.Protection{wire.ProtectDigest, wire.ProtectEncrypt}[i]
	})
	errs := make(chan error, 2)
	for i := range p.ep {
		ep, err := p.tr[i].NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
		require.NoError(t, err)
		p.ep[i] = ep
	}
	for i := range p.ep {
		remote := p.ep[1-i].Local()
		go func() { errs <- p.ep[i].Connect(remote, time.Now().Add(time.Second)) }()
	}
	first, second := <-errs, <-errs
	require.Error(t, first)
	require.Error(t, second)
	p.close()
}

// TestParkedSockets: sockets that say different things of their connection do not become
// one, even from a peer with the key.
func TestParkedSockets(t *testing.T) {
	_, ep, _ := newListening(t, Config{NumSockets: 8})
	ep.rendezvous.begun = true // as Connect does; the peer's token is zero
	defer func() { ep.rendezvous.begun = false }()
	ep.rendezvous.arrived = make(chan struct{}, 1)
	socket := newSockets(t)
	offer := func(index, num int) {
		require.True(t, ep.offer(parked{fd: socket(), join: join{index: index, num: num, sendDepth: 1, recvDepth: 1}}))
	}
	offer(0, 2)
	offer(5, 6)
	set, stopped := ep.takeParked()
	require.False(t, stopped)
	require.Empty(t, set)
	offer(1, 6)
	set, _ = ep.takeParked()
	require.Empty(t, set)
	ep.rendezvous.dropParked()
}
