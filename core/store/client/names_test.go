package client

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/store/server/servertest"
)

// names is a resolver that knows every name, as one address.
type names struct {
	address atomic.Pointer[netip.Addr] // nil: none is known
	asked   atomic.Int64
}

// resolve has all names of this process resolved by n until the test ends.
func (n *names) resolve(t *testing.T) {
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		local, remote := net.Pipe()
		go n.serve(remote)
		return local, nil
	}}
	t.Cleanup(func() { net.DefaultResolver = before })
}

// serve answers the questions of a connection: in front of each message stands its length.
func (n *names) serve(conn net.Conn) {
	defer conn.Close()
	for {
		var length [2]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		question := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(conn, question); err != nil {
			return
		}
		answer := n.answer(question)
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// answer is a message of DNS (RFC 1035) to one with one question.
func (n *names) answer(question []byte) []byte {
	n.asked.Add(1)
	end := 12
	for question[end] != 0 {
		end += 1 + int(question[end])
	}
	isA := binary.BigEndian.Uint16(question[end+1:]) == 1
	out := append([]byte{}, question[:end+5]...)
	address := n.address.Load()
	copy(out[2:], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0})
	switch {
	case address == nil:
		out[3] |= 3 // no such name
	case isA:
		out[7] = 1
		ip := address.As4()
		out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4) // the name, A, of the internet, for a minute
		out = append(out, ip[:]...)
	}
	return out
}

// at has the name resolved to an address from now on; "" to none.
func (n *names) at(address string) {
	if address == "" {
		n.address.Store(nil)
		return
	}
	ip := netip.MustParseAddr(address)
	n.address.Store(&ip)
}

// TestNameMoves: a server is a name, which is resolved again for each connection. When it has moved to another server, the client
// gets that one's blocks and none of the first one's; while the name is unknown, all is a miss at once.
func TestNameMoves(t *testing.T) {
	n := &names{}
	n.resolve(t)
	src := newRand(t)
	mine, other, third := noise(src, 5000), noise(src, 5000), noise(src, 5000)
	a, engine := serve(t)
	port := a.Addr().(*net.TCPAddr).Port
	b, _ := serve(t, func(c *server.Config) { c.Addr = fmt.Sprint("127.0.0.2:", port) })
	mustPut(t, dial(t, one(b)), "both", other)
	n.at("127.0.0.1")
	c := dial(t, nil, by(CarrierTCP), func(c *Config) {
		c.Servers, c.ProbeMin, c.ProbeMax = []string{fmt.Sprint("blocks.test.:", port)}, 10*time.Millisecond, 10*time.Millisecond
	})
	mustPut(t, c, "both", mine)
	mustPut(t, c, "first", third)
	leases, err := c.Lookup([][]byte{[]byte("both")}, 0, 0)
	require.NoError(t, err)

	n.at("")
	a.Close()
	require.Eventually(t, func() bool { up, _ := c.Up(); return up == 0 }, testTimeout, time.Millisecond)
	misses := c.counts.Unreachable.Load()
	for range 100 {
		mustMiss(t, c, "both")
	}
	require.Equal(t, misses+100, c.counts.Unreachable.Load(), "none of them has waited")

	n.at("127.0.0.2")
	back(t, c)
	mustGet(t, c, "both", other)
	mustMiss(t, c, "first")
	ok, err := leases[0].Read([][]byte{make([]byte, len(mine))})
	require.NoError(t, err)
	require.False(t, ok, "a lease of the first server")
	leases[0].Release()

	moveBack(t, n, engine, b)
	require.Eventually(t, func() bool { got, _ := c.Get([]byte("first")); return got != nil }, testTimeout, time.Millisecond)
	mustGet(t, c, "first", third)
	mustGet(t, c, "both", mine)
	require.GreaterOrEqual(t, n.asked.Load(), int64(3))
}

// moveBack ends the second server, and begins one of the first one's blocks at a third address.
func moveBack(t *testing.T, n *names, engine *servertest.Engine, second *server.Server) {
	port := second.Addr().(*net.TCPAddr).Port
	n.at("127.0.0.3")
	serve(t, func(c *server.Config) { c.Addr, c.Store = fmt.Sprint("127.0.0.3:", port), engine })
	second.Close()
}

func mustMiss(t *testing.T, c *Client, key string) {
	t.Helper()
	got, err := c.Get([]byte(key))
	require.NoError(t, err)
	require.Nil(t, got)
}
