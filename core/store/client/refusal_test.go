package client

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/wire"
)

// A server that ends in the middle of a handshake is gone, which is no error. One that ends every handshake
// without a word refuses.
func TestServerThatEndsInTheHandshake(t *testing.T) {
	for _, again := range []bool{false, true} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		var taken atomic.Int64
		go func() {
			for {
				nc, err := l.Accept()
				if err != nil {
					return
				}
				taken.Add(1)
				if !again {
					_ = l.Close()
				}
				_, _ = nc.Read(make([]byte, 4096))
				_ = nc.Close()
			}
		}()
		cfg := Config{Servers: []string{l.Addr().String()}, Keys: keys(t, keyA), Connect: testTimeout}
		c, err := Open(cfg)
		if again {
			require.ErrorIs(t, err, ErrRefused)
			require.EqualValues(t, silentTries, taken.Load())
			require.NoError(t, l.Close())
			continue
		}
		require.NoError(t, err)
		up, why := c.Up()
		require.Zero(t, up)
		require.NotErrorIs(t, why[0], ErrRefused)
		require.NoError(t, c.Close())
	}
}

// exchanged is a ring from a source that has another key from some moment on.
func exchanged(t *testing.T) (ring *wire.Keyring, now *atomic.Bool) {
	now = &atomic.Bool{}
	ring, err := wire.NewKeyring(func() ([]byte, error) {
		if now.Load() {
			return []byte(keyB), nil
		}
		return []byte(keyA), nil
	})
	require.NoError(t, err)
	return ring, now
}

// Keys are exchanged at the server, and then in the file that clients have read before: a new client and one whose
// connection breaks read it again, and are not refused.
func TestKeysAreExchanged(t *testing.T) {
	at, atServer := exchanged(t)
	s, _ := serve(t, func(c *server.Config) { c.Keys = at })
	ring, there := exchanged(t)
	c := dial(t, one(s), func(c *Config) { c.Keys, c.ProbeMin, c.ProbeMax = ring, 10*time.Millisecond, 10*time.Millisecond })
	stale, other := exchanged(t)
	mustPut(t, c, "key", []byte("data"))
	atServer.Store(true)
	require.NoError(t, at.Reload())
	there.Store(true)
	other.Store(true)
	c.peers[0].link.fail(io.EOF)
	require.Eventually(t, func() bool { return c.counts.Broken.Load() == 1 }, testTimeout, time.Millisecond)
	back(t, c)
	mustGet(t, c, "key", []byte("data"))
	mustGet(t, dial(t, one(s), func(c *Config) { c.Keys = stale }), "key", []byte("data"))
	require.Zero(t, c.counts.Refused.Load())
}
