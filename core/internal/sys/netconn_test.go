//go:build linux

package sys

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestConnsAreNoted: listeners and connections of package net are in the table for as long as they are open, and
// one that was being made while a fork began is given up.
func TestConnsAreNoted(t *testing.T) {
	before := forkTable.Load()
	table := &ForkTable{}
	SetForkTable(table)
	t.Cleanup(func() { forkTable.Store(before) })
	held := func(raw int) bool { return table.held[raw/64].Load()>>(raw%64)&1 == 1 }

	l, err := ListenNet("127.0.0.1:0")
	require.NoError(t, err)
	require.True(t, held(l.raw))
	taken := make(chan *Conn, 2*numDials)
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			taken <- nc.(*Conn)
		}
	}()
	c, err := DialNet(context.Background(), l.Addr().String())
	require.NoError(t, err)
	accepted := <-taken
	require.True(t, held(c.raw))
	require.True(t, held(accepted.raw))

	copied, err := c.File() // as a forked child has one
	require.NoError(t, err)
	defer copied.Close()
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	require.False(t, held(c.raw))
	require.NoError(t, accepted.SetReadDeadline(time.Now().Add(20*time.Second)))
	n, err := accepted.Read(make([]byte, 1))
	require.Zero(t, n)
	require.EqualError(t, err, "EOF", "the other side sees the end though there is a copy")
	require.NoError(t, accepted.Close())
	require.False(t, held(accepted.raw))

	dials := 0
	forked := func(nc net.Conn) { dials++; table.forks.Add(1); _ = nc }
	conn, err := dialing(func() (net.Conn, error) {
		nc, err := net.Dial("tcp", l.Addr().String())
		if dials < 2 {
			forked(nc)
		}
		return nc, err
	})
	require.NoError(t, err)
	require.Equal(t, 2, dials)
	require.True(t, held(conn.raw))
	require.NoError(t, conn.Close())
	_, err = dialing(func() (net.Conn, error) {
		nc, err := net.Dial("tcp", l.Addr().String())
		forked(nc)
		return nc, err
	})
	require.ErrorContains(t, err, "forked")

	a, b, err := StreamPair()
	require.NoError(t, err)
	unix, err := UnixNet(a)
	require.NoError(t, err)
	require.True(t, held(unix.raw))
	require.NoError(t, unix.Close())
	require.False(t, held(unix.raw))
	require.NoError(t, b.Close())

	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	require.False(t, held(l.raw))
	require.Zero(t, table.making.Load())
}
