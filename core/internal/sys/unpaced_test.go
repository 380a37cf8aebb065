//go:build linux

package sys

import (
	"context"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// control is what decides how much a connection sends at a time.
func control(t *testing.T, c syscall.Conn) string {
	t.Helper()
	raw, err := rawOf(c)
	require.NoError(t, err)
	name, err := unix.GetsockoptString(raw, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	require.NoError(t, err)
	return name
}

// TestUnpaced: both ends of a connection within this host have the control that paces nothing, wherever the listener
// is bound, and sockets for other hosts have the system's.
func TestUnpaced(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer plain.Close()
	usual := control(t, plain.(*net.TCPListener))

	for bound, want := range map[string]string{"127.0.0.1:0": unpacedControl, "[::1]:0": unpacedControl, ":0": usual} {
		l, err := ListenNet(bound)
		if err != nil && bound == "[::1]:0" {
			continue // a host without IPv6
		}
		require.NoError(t, err)
		require.Equal(t, want, control(t, l.TCPListener), bound)
		to := l.Addr().String()
		if bound == ":0" {
			_, port, err := net.SplitHostPort(to)
			require.NoError(t, err)
			to = "127.0.0.1:" + port
		}
		dialled, err := DialNet(context.Background(), to)
		require.NoError(t, err)
		accepted, err := l.Accept()
		require.NoError(t, err)
		require.Equal(t, unpacedControl, control(t, dialled.TCPConn), bound)
		require.Equal(t, unpacedControl, control(t, accepted.(*Conn).TCPConn), bound)
		require.NoError(t, dialled.Close())
		require.NoError(t, accepted.Close())
		require.NoError(t, l.Close())
	}

	for addr, want := range map[string]string{"192.0.2.1:1": usual, "[2001:db8::1]:1": usual, "127.0.0.2:1": unpacedControl} {
		other := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) error {
			return unpaceDial(network, addr, c)
		}}
		l, err := other.Listen(context.Background(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.Equal(t, want, control(t, l.(*net.TCPListener)), addr)
		require.NoError(t, l.Close())
	}
}
