package client

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/rights"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/wire"
)

// TestRefusedRight: what the key may not do is no error, does not happen, is counted, and is said once; also when the right is
// taken away from a client that runs. A namespace that it may not open is refused at once.
func TestRefusedRight(t *testing.T) {
	var words atomic.Pointer[string]
	grant := func(s string) { words.Store(&s) }
	grant("")
	ring, err := wire.NewKeyringWithTerms(func() ([]byte, error) { return []byte(keyA + *words.Load()), nil }, rights.Parse)
	require.NoError(t, err)
	s, _ := serve(t, func(c *server.Config) { c.Keys = ring })
	var mu sync.Mutex
	var said []string
	quick := func(c *Config) {
		c.ProbeMin, c.ProbeMax = 10*time.Millisecond, 10*time.Millisecond
		c.Warn = func(line string) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, line)
		}
	}
	c := dial(t, one(s), quick)
	mustPut(t, c, "key", []byte("data"))
	grant(" read")
	require.NoError(t, s.Reload())
	require.Eventually(t, func() bool { return c.counts.Broken.Load() == 1 }, testTimeout, time.Millisecond)
	back(t, c)
	for _, key := range []string{"key", "other"} {
		ok, err := c.Put([]byte(key), []byte("other"), nil)
		require.NoError(t, err)
		require.False(t, ok)
	}
	n, err := c.Delete([][]byte{[]byte("key")})
	require.NoError(t, err)
	require.Zero(t, n)
	require.ErrorContains(t, c.Flush(testTimeout), "denied")
	mustGet(t, c, "key", []byte("data"))
	require.EqualValues(t, 4, c.counts.Replies(message.Denied))
	require.Len(t, said, 1)
	require.Contains(t, said[0], "put was refused: the key has no right to it")

	grant(" salt=another")
	require.NoError(t, s.Reload())
	require.Eventually(t, func() bool { return c.counts.Refused.Load() > 0 }, testTimeout, time.Millisecond)
	_, why := c.Up()
	require.ErrorIs(t, why[0], ErrRefused)
	_, err = Open(Config{Servers: c.cfg.Servers, Namespace: here, Keys: keys(t, keyA), Connect: testTimeout})
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "key 1 may not open namespaces of this salt")
}
