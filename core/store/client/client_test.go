package client

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/store/server/servertest"
	"github.com/moewire/moewire/core/wire"
)

const (
	keyA = "1 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	keyB = "1 100102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
)

func keys(t testing.TB, text string) *wire.Keyring {
	t.Helper()
	r, err := wire.NewKeyring(func() ([]byte, error) { return []byte(text), nil })
	require.NoError(t, err)
	return r
}

// serve starts a server of a new engine.
func serve(t testing.TB, change ...func(*server.Config)) (*server.Server, *servertest.Engine) {
	t.Helper()
	engine := servertest.New()
	cfg := server.Config{Store: engine, Addr: "127.0.0.1:0", Keys: keys(t, keyA), Storage: 1, Log: func(line string) { t.Log(line) }}
	for _, f := range change {
		f(&cfg)
	}
	s, err := server.Listen(cfg)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s, engine
}

var here = message.Namespace{Model: "m", Weights: "w", DType: "bf16"}

// dial opens a client. Its deadline is long, so that a busy machine makes no misses.
func dial(t testing.TB, servers []*server.Server, change ...func(*Config)) *Client {
	t.Helper()
	cfg := Config{Namespace: here, Keys: keys(t, keyA), Timeout: 20 * time.Second, Connect: 20 * time.Second}
	for _, s := range servers {
		cfg.Servers = append(cfg.Servers, s.Addr().String())
	}
	for _, f := range change {
		f(&cfg)
	}
	c, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func one(s *server.Server) []*server.Server { return []*server.Server{s} }

func newRand(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(testenv.Seed(t), 0))
}

func noise(src *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 8 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], src.Uint64())
		copy(b[i:], word[:])
	}
	return b
}

// cut cuts memory into pieces at random, some of them empty.
func cut(src *rand.Rand, b []byte) [][]byte {
	list := [][]byte{nil}
	for len(b) > 0 {
		n := min(len(b), 1+src.IntN(len(b)))
		list = append(list, b[:n:n])
		b = b[n:]
	}
	return append(list, nil)
}

// blockSizes are those around the seams between chunks, pieces and parts.
var blockSizes = []int{
	0, 1, 100, 8 << 10, 8<<10 + 1, 16<<10 - 1, 16 << 10, 64 << 10, 256<<10 + 1,
	message.PartBytes - 1, message.PartBytes, message.PartBytes + 1, 3*message.PartBytes + 77,
}

func both(t *testing.T, f func(t *testing.T, p wire.Protection)) {
	for _, p := range []wire.Protection{wire.ProtectDigest, wire.ProtectEncrypt} {
		t.Run(p.String(), func(t *testing.T) { f(t, p) })
	}
}

func pair(t testing.TB, p wire.Protection, change ...func(*server.Config)) (*Client, *server.Server, *servertest.Engine) {
	t.Helper()
	s, e := serve(t, append(change, func(c *server.Config) { c.Protection = p })...)
	return dial(t, one(s), func(c *Config) { c.Protection = p }), s, e
}

// What was put is what is got, whatever its size, from memory and from a disk, with either
// protection.
func TestPutGet(t *testing.T) {
	both(t, func(t *testing.T, p wire.Protection) {
		for _, onDisk := range []bool{false, true} {
			src := newRand(t)
			c, _, engine := pair(t, p)
			engine.OnDisk.Store(onDisk)
			for _, n := range blockSizes {
				key, data := fmt.Appendf(nil, "key %d", n), noise(src, n)
				ok, err := c.Put(key, data, nil)
				require.NoError(t, err)
				require.True(t, ok, n)
				got, err := c.Get(key)
				require.NoError(t, err)
				require.NotNil(t, got, n)
				require.True(t, bytes.Equal(data, got), n)
			}
			got, err := c.Get([]byte("another key"))
			require.NoError(t, err)
			require.Nil(t, got)
			open, _, _ := engine.Counts()
			require.Zero(t, open)
		}
	})
}

// BS6: a batch is by position, hits, misses, scattered and too small buffers side by side.
func TestBatch(t *testing.T) {
	both(t, func(t *testing.T, p wire.Protection) {
		src := newRand(t)
		c, _, _ := pair(t, p)
		var names, blocks [][]byte
		var pieces [][][]byte
		for i := range 60 {
			names = append(names, fmt.Appendf(nil, "block %d", i))
			blocks = append(blocks, noise(src, blockSizes[src.IntN(len(blockSizes))]))
			pieces = append(pieces, cut(src, blocks[i]))
		}
		done, err := c.Do(Request{Op: message.Put, Keys: names[:50], Buffers: pieces[:50]})
		require.NoError(t, err)
		for i := range 50 {
			require.True(t, done.OK[i], i)
		}
		order := src.Perm(60)
		var ask [][]byte
		var into [][]byte
		pieces = pieces[:0]
		for _, i := range order {
			ask = append(ask, names[i])
			room := make([]byte, len(blocks[i])+src.IntN(2)*10)
			if i%7 == 3 && len(room) > 0 {
				room = make([]byte, max(len(blocks[i])-1, 0))
			}
			into = append(into, room)
			pieces = append(pieces, cut(src, room))
		}
		done, err = c.Do(Request{Op: message.Get, Keys: ask, Buffers: pieces})
		require.NoError(t, err)
		for at, i := range order {
			switch {
			case i >= 50:
				require.False(t, done.OK[at])
				require.Equal(t, -1, done.Lengths[at])
			case len(into[at]) < len(blocks[i]):
				require.False(t, done.OK[at])
				require.Equal(t, len(blocks[i]), done.Lengths[at])
			default:
				require.True(t, done.OK[at], "key %d of %d bytes", i, len(blocks[i]))
				require.Equal(t, len(blocks[i]), done.Lengths[at])
				require.True(t, bytes.Equal(blocks[i], into[at][:len(blocks[i])]))
				require.Equal(t, make([]byte, len(into[at])-len(blocks[i])), into[at][len(blocks[i]):])
			}
		}
	})
}

func TestExistsDeletePrefixTouchPin(t *testing.T) {
	c, _, engine := pair(t, wire.ProtectDigest)
	var names [][]byte
	for i := range 100 {
		names = append(names, fmt.Appendf(nil, "%d", i))
		if i != 40 && i != 70 {
			ok, err := c.Put(names[i], []byte("data"), nil)
			require.NoError(t, err)
			require.True(t, ok)
		}
	}
	n, err := c.Prefix(names)
	require.NoError(t, err)
	require.Equal(t, 40, n)
	n, err = c.Delete(names[30:50])
	require.NoError(t, err)
	require.Equal(t, 19, n)
	found, err := c.Exists(names)
	require.NoError(t, err)
	for i, yes := range found {
		require.Equal(t, (i < 30 || i >= 50) && i != 70, yes, i)
	}
	pinned, err := c.Pin(names[:31], time.Minute)
	require.NoError(t, err)
	require.True(t, pinned[29])
	require.False(t, pinned[30])
	require.NoError(t, c.Touch(names[:7]))
	_, touched, _ := engine.Counts()
	require.Equal(t, 7, touched)
}

// The same block again is fine; another one under its key is not, and the first one stays.
func TestConflict(t *testing.T) {
	c, _, _ := pair(t, wire.ProtectDigest)
	for data, want := range map[string]bool{"abc": true} {
		for range 2 {
			ok, err := c.Put([]byte("k"), []byte(data), nil)
			require.NoError(t, err)
			require.Equal(t, want, ok)
		}
	}
	for _, other := range []string{"abd", "abcd", ""} {
		ok, err := c.Put([]byte("k"), []byte(other), nil)
		require.NoError(t, err)
		require.False(t, ok)
	}
	got, err := c.Get([]byte("k"))
	require.NoError(t, err)
	require.Equal(t, "abc", string(got))
	require.EqualValues(t, 3, c.Counters().Replies(message.Conflict))
	require.EqualValues(t, 1, c.Counters().Replies(message.Existing))
}
