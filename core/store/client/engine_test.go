package client

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/wire"
)

// engine opens the store's own engine; path "" is memory.
func engine(t testing.TB, path string, capacity int64) *store.Store {
	t.Helper()
	var cfg store.Config
	if path == "" {
		m, err := medium.NewMemory(capacity)
		require.NoError(t, err)
		cfg.Medium = m
	} else {
		m, err := medium.OpenFiles(path, capacity)
		require.NoError(t, err)
		cfg.Medium, cfg.Secret = m, m.Secret()
	}
	s, err := store.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// served starts a server of the store's own engine.
func served(t testing.TB, s *store.Store, p wire.Protection) (*Client, *server.Server) {
	t.Helper()
	srv, err := server.Listen(server.Config{
		Store: server.Of(s), Addr: "127.0.0.1:0", Keys: keys(t, keyA), Protection: p, Stats: func() any { return s.Stats() },
	})
	require.NoError(t, err)
	t.Cleanup(srv.Close)
	return dial(t, one(srv), func(c *Config) { c.Protection = p }), srv
}

// Over the engine itself, in memory and in files: what was put is got, by one and in
// batches, scattered, leased and listed.
func TestOverTheEngine(t *testing.T) {
	both(t, func(t *testing.T, p wire.Protection) {
		for _, path := range []string{"", t.TempDir()} {
			c, srv := served(t, engine(t, path, 1<<30), p)
			src := newRand(t)
			var names, blocks [][]byte
			var from, into [][][]byte
			for i, n := range append(blockSizes, 1000, 77777, 500_000) {
				names = append(names, fmt.Appendf(nil, "block %d", i))
				blocks = append(blocks, noise(src, n))
				from = append(from, cut(src, blocks[i]))
				into = append(into, cut(src, make([]byte, n)))
			}
			done, err := c.Do(Request{Op: message.Put, Keys: names, Buffers: from})
			require.NoError(t, err)
			require.NotContains(t, done.OK, false, "%v", srv.Stats().Replies)
			ok, err := c.Put(names[3], []byte("others"), nil)
			require.NoError(t, err)
			require.False(t, ok)
			done, err = c.Do(Request{Op: message.Get, Keys: append(names, []byte("none")), Buffers: append(into, nil)})
			require.NoError(t, err)
			for i := range blocks {
				require.True(t, done.OK[i], "block of %d bytes", len(blocks[i]))
				require.True(t, bytes.Equal(blocks[i], bytes.Join(into[i], nil)))
			}
			require.Equal(t, -1, done.Lengths[len(names)])
			leases, err := c.Lookup(names[:2], 0, 0)
			require.NoError(t, err)
			for i, l := range leases {
				room := make([]byte, len(blocks[i]))
				ok, err := l.Read([][]byte{room})
				require.NoError(t, err)
				require.True(t, ok)
				require.True(t, bytes.Equal(blocks[i], room))
				l.Release()
			}
			listed := 0
			require.NoError(t, c.List([]byte("block"), 0, func([]byte) bool { listed++; return true }))
			require.Equal(t, len(names), listed)
			n, err := c.Delete(names[:5])
			require.NoError(t, err)
			require.Equal(t, 5, n)
			n, err = c.Prefix(names[5:])
			require.NoError(t, err)
			require.Equal(t, len(names)-5, n)
			require.NoError(t, c.Flush(testTimeout))
			require.Contains(t, string(c.Stats(0)[c.cfg.Servers[0]]), `"num_blocks":`)
		}
	})
}

// What was flushed to files is there for another server on them.
func TestServerAndEngineStartAgain(t *testing.T) {
	path, data := t.TempDir(), noise(newRand(t), 300_000)
	s := engine(t, path, 1<<30)
	c, srv := served(t, s, wire.ProtectDigest)
	mustPut(t, c, "key", data)
	require.NoError(t, c.Flush(testTimeout))
	require.NoError(t, c.Close())
	srv.Drain(time.Now().Add(testTimeout))
	require.NoError(t, s.Close())
	c, _ = served(t, engine(t, path, 1<<30), wire.ProtectDigest)
	mustGet(t, c, "key", data)
}

// A store that is smaller than what is put evicts, and never gives anything else than what
// was put.
func TestEvictionUnderLoad(t *testing.T) {
	c, _ := served(t, engine(t, "", 64<<20), wire.ProtectDigest)
	src := newRand(t)
	blocks, hits := map[string][]byte{}, 0
	for i := range 400 {
		key := fmt.Sprint(i)
		blocks[key] = noise(src, 200_000+src.IntN(200_000))
		mustPut(t, c, key, blocks[key])
		key = fmt.Sprint(src.IntN(i + 1))
		got, err := c.Get([]byte(key))
		require.NoError(t, err)
		if got != nil {
			require.True(t, bytes.Equal(blocks[key], got))
			hits++
		}
	}
	require.NotZero(t, hits)
	require.Less(t, hits, 400)
}
