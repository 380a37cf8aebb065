package tcp

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// openHandshakes returns a check of how many handshakes more hold keys than now.
func openHandshakes(t *testing.T) func(want int64) {
	before := wire.NumOpenHandshakes()
	return func(want int64) {
		t.Helper()
		require.Eventually(t, func() bool { return wire.NumOpenHandshakes() == before+want }, soon, time.Millisecond,
			"handshakes hold keys, wanted %d", want)
	}
}

// TestAbandonedDialForgetsKeys: a handshake with a peer that says nothing, or ends the
// connection, keeps no key once it is given up.
func TestAbandonedDialForgetsKeys(t *testing.T) {
	open := openHandshakes(t)
	unresponsive, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer unresponsive.Close()
	_, ep, _ := newListening(t, Config{HandshakeTimeout: 50 * time.Millisecond})
	stop, err := sys.NewEvent()
	require.NoError(t, err)
	defer stop.Close()
	d := &dialer{ep: ep, peer: &address{}, num: 1, stop: stop, deadline: time.Now().Add(soon)}
	gone := make(chan error, 1)
	go func() {
		_, err := d.try(netip.MustParseAddrPort(unresponsive.Addr().String()), 0)
		gone <- err
	}()
	conn, err := unresponsive.Accept()
	require.NoError(t, err)
	open(1)
	require.Error(t, <-gone) // in time
	require.NoError(t, conn.Close())
	open(0)
}

// TestAbandonedConnForgetsKeys: a connection that says hello and does not confirm
// leaves no key behind, however it ends.
func TestAbandonedConnForgetsKeys(t *testing.T) {
	open := openHandshakes(t)
	tr := openOne(t, Config{Keyring: wire.GenerateKeyring(), HandshakeTimeout: 300 * time.Millisecond})
	e, err := tr.NewEndpoint(transport.EndpointSpec{SendDepth: 4, RecvDepth: 4})
	require.NoError(t, err)
	for _, end := range []func(net.Conn){
		func(net.Conn) {}, // in time, it is dismissed
		func(conn net.Conn) { require.NoError(t, conn.Close()) },
		func(net.Conn) { require.NoError(t, e.Close()); require.NoError(t, tr.Close()) },
	} {
		conn := dialRaw(t, tr)
		h, err := wire.NewHandshake(wire.RoleClient,
			clientConfig(tr.config.Keyring, join{to: e.(*endpoint).token, num: 1, sendDepth: 4, recvDepth: 4}))
		require.NoError(t, err)
		_, err = conn.Write(h.Start())
		require.NoError(t, err)
		h.Close() // it is this test's, and counts too
		open(1)
		end(conn)
		open(0)
	}
}
