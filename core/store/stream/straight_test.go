package stream

import (
	"bytes"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/wire"
)

// counted has all bytes there already, and counts those that it was asked for by reads longer than the reader's own
// memory.
type counted struct {
	net.Conn
	sent     bytes.Buffer
	straight int
}

func (c *counted) Write(p []byte) (int, error) { return c.sent.Write(p) }

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.sent.Read(p)
	if len(p) > readBytes {
		c.straight += n
	}
	return n, err
}

// Blocks are read to where they belong, and not copied there, but for what came with what stands before them.
func TestBlocksAreReadStraight(t *testing.T) {
	const num, length = 4, 64 << 10
	client, server := conns(t)
	a, b := sessions(t, client, server, wire.ProtectDigest)
	c := &counted{Conn: client}
	w, payload := NewWriter(c, a, long, nil), make([]byte, num*length)
	require.NoError(t, w.Append(&wire.Head{Code: 1, ApartBytes: uint32(len(payload))}, [][]byte{payload}))
	require.NoError(t, w.Flush())
	r, into := NewReader(c, b, long), make([]byte, length)
	_, err := r.Next()
	require.NoError(t, err)
	for range num {
		require.NoError(t, r.ReadBlock(into))
	}
	require.NoError(t, r.End())
	require.GreaterOrEqual(t, c.straight, num*length-readBytes)
	require.Less(t, readBytes, length/4)
}
