package client

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
)

// arena is a medium that servers share.
type arena interface {
	medium.Medium
	server.Arena
}

// shared starts a server whose arena clients of this host can read; path "" is memory.
func shared(t testing.TB, path string, capacity int64, change ...func(*server.Config)) (*server.Server, *store.Store) {
	t.Helper()
	var a arena
	var cfg store.Config
	storage := uint8(1)
	if path == "" {
		m, err := medium.NewMemory(capacity)
		require.NoError(t, err)
		a = m
	} else {
		m, err := medium.OpenFiles(path, capacity)
		require.NoError(t, err)
		a, cfg.Secret, storage = m, m.Secret(), 2
	}
	cfg.Medium = a
	s, err := store.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	srvCfg := server.Config{Store: server.Of(s), Storage: storage, Arena: a, Addr: "127.0.0.1:0", Keys: keys(t, keyA)}
	for _, f := range change {
		f(&srvCfg)
	}
	srv, err := server.Listen(srvCfg)
	require.NoError(t, err)
	t.Cleanup(srv.Close)
	return srv, s
}

// withArena gives a server of maps an arena, in which no block is.
func withArena(t testing.TB) func(*server.Config) {
	m, err := medium.NewMemory(8 << 20)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return func(c *server.Config) { c.Arena = m }
}

// by dials with a carrier.
func by(carrier Carrier) func(*Config) {
	return func(c *Config) { c.Carrier = carrier }
}

// carriers are clients of a server over each of them.
func carriers(t testing.TB, srv *server.Server) map[string]*Client {
	return map[string]*Client{
		"auto": dial(t, one(srv)), "shm": dial(t, one(srv), by(CarrierSHM)), "tcp": dial(t, one(srv), by(CarrierTCP)),
	}
}

// storages runs a test with memory and with files.
func storages(t *testing.T, f func(t *testing.T, path string)) {
	t.Run("memory", func(t *testing.T) { f(t, "") })
	t.Run("files", func(t *testing.T) { f(t, t.TempDir()) })
}

// Random puts, gets and deletes of several clients over all carriers: what is got is what a plain map has. The store has
// room for all, so that nothing is evicted.
func TestCarriersAgainstAMap(t *testing.T) {
	storages(t, func(t *testing.T, path string) {
		srv, _ := shared(t, path, 256<<20)
		clients := carriers(t, srv)
		names := []string{"auto", "shm", "tcp"}
		src, want := newRand(t), map[string][]byte{}
		for range 300 {
			c := clients[names[src.IntN(3)]]
			key := fmt.Sprint("key ", src.IntN(40))
			switch src.IntN(3) {
			case 0:
				data := noise(src, blockSizes[src.IntN(len(blockSizes))])
				_, known := want[key]
				ok, err := c.Put([]byte(key), data, nil)
				require.NoError(t, err)
				require.Equal(t, !known || bytes.Equal(want[key], data), ok)
				if !known {
					want[key] = data
				}
			case 1:
				n, err := c.Delete([][]byte{[]byte(key)})
				require.NoError(t, err)
				_, known := want[key]
				require.Equal(t, known, n == 1)
				delete(want, key)
			default:
				compare(t, c, src, want)
			}
		}
		require.Positive(t, clients["shm"].counts.Hits.Load())
		for name, c := range clients {
			require.Equal(t, name != "tcp", c.counts.Bounced.Load() > 0, name)
		}
		for _, c := range clients {
			require.Zero(t, c.counts.Moved.Load()+c.counts.BadTags.Load()+c.counts.Latched.Load())
		}
	})
}

// compare gets a batch, into memory of the caller's in pieces or of the client's own.
func compare(t *testing.T, c *Client, src *rand.Rand, want map[string][]byte) {
	r := Request{Op: message.Get}
	for i := range 1 + src.IntN(8) {
		r.Keys = append(r.Keys, fmt.Appendf(nil, "key %d", (i*7+src.IntN(40))%40))
	}
	scattered := src.IntN(2) == 0
	if scattered {
		for range r.Keys {
			r.Buffers = append(r.Buffers, cut(src, make([]byte, 4*message.PartBytes)))
		}
	}
	done, err := c.Do(r)
	require.NoError(t, err)
	for i, key := range r.Keys {
		data, known := want[string(key)]
		require.Equal(t, known, done.OK[i], "%s", key)
		if !known {
			require.Equal(t, -1, done.Lengths[i])
			continue
		}
		require.Equal(t, len(data), done.Lengths[i])
		got := done.Data
		if scattered {
			got = [][]byte{bytes.Join(r.Buffers[i], nil)[:len(data)]}
		} else {
			got = got[i : i+1]
		}
		require.True(t, bytes.Equal(data, got[0]), "%s", key)
	}
}
