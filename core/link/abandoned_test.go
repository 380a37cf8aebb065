package link

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/wire"
)

// openHandshakes returns a check of how many handshakes more hold keys than now.
func openHandshakes(t *testing.T) func(want int64) {
	before := wire.NumOpenHandshakes()
	return func(want int64) {
		t.Helper()
		require.Eventually(t, func() bool { return wire.NumOpenHandshakes() == before+want }, testTimeout, time.Millisecond,
			"handshakes hold keys, wanted %d", want)
	}
}

// TestAbandonedDialForgetsKeys: a handshake with a rank that says nothing keeps no
// key once another one is made in its place, or the connections are closed.
func TestAbandonedDialForgetsKeys(t *testing.T) {
	open := openHandshakes(t)
	unresponsive, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer unresponsive.Close()
	e, err := Listen(loopback())
	require.NoError(t, err)
	c, err := StartControls(ControlConfig{Rank: 1, ID: newID(), Keys: wire.GenerateKeyring(), Tick: time.Millisecond}, e,
		map[int]Participant{0: {ID: newID(), Addr: netip.MustParseAddrPort(unresponsive.Addr().String())}}, newLog())
	require.NoError(t, err)
	first, err := unresponsive.Accept()
	require.NoError(t, err)
	open(1)
	require.NoError(t, first.Close())
	second, err := unresponsive.Accept()
	require.NoError(t, err)
	defer second.Close()
	open(1)
	require.NoError(t, c.Close())
	open(0)
}

// TestAbandonedConnForgetsKeys: a connection that says hello and does not confirm
// leaves no key behind, however it ends.
func TestAbandonedConnForgetsKeys(t *testing.T) {
	open := openHandshakes(t)
	b := besiege(t)
	for _, end := range []func(net.Conn){
		func(net.Conn) {}, // in time, it is dropped
		func(conn net.Conn) { require.NoError(t, conn.Close()) },
		func(net.Conn) { require.NoError(t, b.Close()) },
	} {
		conn, err := net.Dial("tcp", b.listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		h := b.handshake(b.keys, b.friend)
		_, err = conn.Write(h.Start())
		require.NoError(t, err)
		h.Close() // it is this test's, and counts too
		open(1)
		end(conn)
		open(0)
	}
}
