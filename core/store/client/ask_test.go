package client

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/store/server/servertest"
	"github.com/moewire/moewire/core/wire"
)

// Keys are spread over the servers, each key always to the same one; when one is gone, its
// share is missed and nothing else.
func TestSeveralServers(t *testing.T) {
	a, engineA := serve(t)
	b, _ := serve(t)
	d, _ := serve(t)
	c := dial(t, []*server.Server{a, b, d}, func(c *Config) { c.ProbeMin = time.Hour })
	var names [][]byte
	var blocks [][][]byte
	for i := range 300 {
		names = append(names, fmt.Appendf(nil, "block %d", i))
		blocks = append(blocks, [][]byte{fmt.Appendf(nil, "data %d", i)})
	}
	done, err := c.Do(Request{Op: message.Put, Keys: names, Buffers: blocks})
	require.NoError(t, err)
	require.NotContains(t, done.OK, false)
	n, err := c.Prefix(names)
	require.NoError(t, err)
	require.Equal(t, 300, n)
	share := make([]int, 3)
	for i := range names {
		share[c.serverOf(names[i])]++
	}
	for _, n := range share {
		require.InDelta(t, 100, n, 50)
	}
	listed := map[string]bool{}
	require.NoError(t, c.List([]byte("block 1"), 0, func(key []byte) bool { listed[string(key)] = true; return true }))
	require.Len(t, listed, 111)
	require.NoError(t, c.Flush(testTimeout))
	require.Len(t, c.Stats(0), 3)
	a.Close()
	require.Eventually(t, func() bool { up, _ := c.Up(); return up == 2 }, testTimeout, time.Millisecond)
	done, err = c.Do(Request{Op: message.Get, Keys: names})
	require.NoError(t, err)
	for i := range names {
		require.Equal(t, c.serverOf(names[i]) != 0, done.OK[i])
		if done.OK[i] {
			require.Equal(t, blocks[i][0], done.Data[i])
		}
	}
	open, _, _ := engineA.Counts()
	require.Zero(t, open)
}

// TestParents: the parent of a block that is put is the last one before it, of those at its own server.
func TestParents(t *testing.T) {
	for _, servers := range []int{1, 3} {
		c := &Client{}
		for i := range servers {
			c.peers = append(c.peers, &peer{name: fmt.Sprint("server ", i)})
		}
		chain := [][]byte{[]byte("the parent")}
		for i := range 50 {
			chain = append(chain, fmt.Append(nil, i))
		}
		parts := c.puts(&call{}, &Request{Op: message.Put, Parent: chain[0], Keys: chain[1:], Buffers: make([][][]byte, 50)})
		for i, p := range parts {
			var want []byte
			for before := i; before >= 0 && want == nil; before-- {
				if c.serverOf(chain[before]) == c.serverOf(p.keys[0]) {
					want = chain[before]
				}
			}
			require.Equal(t, want, p.parent)
		}
		require.Nil(t, c.puts(&call{}, &Request{Op: message.Put, Keys: chain[:1], Buffers: make([][][]byte, 1)})[0].parent)
	}
}

// Two namespaces that differ in any one field share nothing.
func TestNamespacesShareNothing(t *testing.T) {
	s, _ := serve(t)
	mustPut(t, dial(t, one(s)), "key", []byte("data"))
	for i := range 7 {
		c := dial(t, one(s), func(c *Config) {
			at := []*string{
				&c.Namespace.Model, &c.Namespace.Weights, &c.Namespace.DType, &c.Namespace.Layout,
				&c.Namespace.Chunk, &c.Namespace.Parallel, &c.Namespace.Salt,
			}
			*at[i] += "x"
		})
		found, err := c.Exists([][]byte{[]byte("key")})
		require.NoError(t, err)
		require.False(t, found[0], i)
	}
	mustGet(t, dial(t, one(s)), "key", []byte("data"))
}

// At the cap a submission would block and nothing happens; a synchronous call waits.
func TestCap(t *testing.T) {
	s, _ := serve(t)
	c, r := relayed(t, s, time.Hour)
	mustPut(t, c, "key", []byte("data"))
	r.stopped.Store(true)
	get := Request{Op: message.Get, Keys: [][]byte{[]byte("key")}}
	var ids []uint64
	for {
		id, err := c.Submit(get)
		if err != nil {
			require.ErrorIs(t, err, ErrWouldBlock)
			break
		}
		ids = append(ids, id)
	}
	require.Len(t, ids, 1024)
	require.EqualValues(t, 1, c.counts.Capped.Load())
	get.Timeout = 10 * time.Millisecond
	done, err := c.Do(get)
	require.NoError(t, err)
	require.False(t, done.OK[0])
	r.stopped.Store(false)
	for _, id := range ids {
		done, err := c.Wait(id, time.Now().Add(testTimeout))
		require.NoError(t, err)
		require.True(t, done.OK[0])
	}
	require.Empty(t, c.Drain(nil))
	mustGet(t, c, "key", []byte("data"))
}

// Requests that have ended count until they are drained: so a client that never drains keeps no more of them than the cap.
// Synchronous calls go on.
func TestCapOfCompletions(t *testing.T) {
	s, _ := serve(t)
	c := dial(t, one(s), func(c *Config) { c.Requests = 4 })
	ask := Request{Op: message.Exists, Keys: [][]byte{[]byte("key")}}
	var err error
	n := 0
	for ; n < 100 && err == nil; n++ {
		_, err = c.Submit(ask)
		require.Eventually(t, func() bool { return c.places.Stats().Leased == 0 }, testTimeout, time.Millisecond)
	}
	require.ErrorIs(t, err, ErrWouldBlock)
	require.Equal(t, 5, n)
	require.EqualValues(t, 1, c.counts.Capped.Load())
	_, err = c.Do(ask)
	require.NoError(t, err)
	_, ok := c.Next()
	require.True(t, ok)
	_, err = c.Submit(ask)
	require.NoError(t, err, "there is room again")
	require.Eventually(t, func() bool { return len(c.Drain(nil)) > 0 }, testTimeout, time.Millisecond)
}

// Completions come through Drain, and the descriptor is readable while there are some.
func TestDrainCompletions(t *testing.T) {
	s, _ := serve(t)
	c := dial(t, one(s))
	want := map[uint64]bool{}
	for i := range 200 {
		id, err := c.Submit(Request{Op: message.Put, Keys: [][]byte{fmt.Appendf(nil, "%d", i)}, Buffers: [][][]byte{{noise(newRand(t), 100)}}})
		require.NoError(t, err)
		want[id] = true
	}
	deadline := time.Now().Add(testTimeout)
	for len(want) > 0 && time.Now().Before(deadline) {
		for _, done := range c.Drain(nil) {
			require.True(t, want[done.ID])
			require.True(t, done.OK[0])
			delete(want, done.ID)
		}
	}
	require.Empty(t, want)
	_, err := c.Wait(1, deadline)
	require.ErrorIs(t, err, ErrArgument)
}

// Bad arguments are errors that name what was given and what is allowed.
func TestBadArguments(t *testing.T) {
	s, _ := serve(t)
	c := dial(t, one(s))
	key := [][]byte{[]byte("key")}
	many := make([][]byte, message.MaxKeys+1)
	for text, r := range map[string]Request{
		"0 keys given; allowed: 1 to 512":           {Op: message.Get},
		"513 keys given":                            {Op: message.Get, Keys: many},
		"key 0 has 0 bytes; allowed: 1 to 512":      {Op: message.Get, Keys: [][]byte{nil}},
		"key 0 has 513 bytes":                       {Op: message.Get, Keys: [][]byte{make([]byte, 513)}},
		"the parent has 513 bytes":                  {Op: message.Put, Keys: key, Parent: make([]byte, 513)},
		"0 buffers given for 1 keys":                {Op: message.Put, Keys: key},
		"2 buffers given for 1 keys":                {Op: message.Get, Keys: key, Buffers: make([][][]byte, 2)},
		"operation 0x6":                             {Op: message.Open, Keys: key},
		"a time is negative":                        {Op: message.Get, Keys: key, Timeout: -1},
		"block 0 has 268435457 bytes; allowed: 268": {Op: message.Put, Keys: key, Buffers: [][][]byte{{make([]byte, message.MaxBlockBytes+1)}}},
	} {
		_, err := c.Submit(r)
		require.ErrorIs(t, err, ErrArgument)
		require.ErrorContains(t, err, text)
	}
	for text, change := range map[string]func(*Config){
		"0 servers given":           func(c *Config) { c.Servers = nil },
		"a server is given twice":   func(c *Config) { c.Servers = []string{"a:1", "b:1", "a:1"} },
		"no key given":              func(c *Config) { c.Keys = nil },
		"the namespace has 5028":    func(c *Config) { c.Namespace.Salt = string(make([]byte, 5000)) },
		"a time or a bound is nega": func(c *Config) { c.Timeout = -1 },
	} {
		cfg := Config{Servers: []string{"127.0.0.1:1"}, Keys: keys(t, keyA)}
		change(&cfg)
		_, err := Open(cfg)
		require.ErrorIs(t, err, ErrArgument)
		require.ErrorContains(t, err, text)
	}
}

// BS3: a lease reads its block though it was deleted, until its release.
func TestLookup(t *testing.T) {
	both(t, func(t *testing.T, p wire.Protection) {
		c, _, engine := pair(t, p)
		src := newRand(t)
		data := noise(src, 2<<20+5)
		mustPut(t, c, "key", data)
		leases, err := c.Lookup([][]byte{[]byte("none"), []byte("key")}, 0, 0)
		require.NoError(t, err)
		require.Nil(t, leases[0])
		require.Equal(t, len(data), leases[1].Bytes())
		_, err = c.Delete([][]byte{[]byte("key")})
		require.NoError(t, err)
		into := make([]byte, len(data))
		ok, err := leases[1].Read(cut(src, into))
		require.NoError(t, err)
		require.True(t, ok)
		require.True(t, bytes.Equal(data, into))
		_, err = leases[1].Read([][]byte{into[1:]})
		require.ErrorIs(t, err, ErrArgument)
		leases[1].Release()
		leases[1].Release()
		ok, err = leases[1].Read([][]byte{into})
		require.NoError(t, err)
		require.False(t, ok)
		open, _, _ := engine.Counts()
		require.Zero(t, open)
	})
}

// The leases of a lookup end together, with one request for each server; those that have ended stay as they are.
func TestReleaseAll(t *testing.T) {
	a, engineA := serve(t)
	b, engineB := serve(t)
	c := dial(t, []*server.Server{a, b})
	var names [][]byte
	for i := range 200 {
		names = append(names, fmt.Append(nil, i))
		mustPut(t, c, string(names[i]), names[i])
	}
	leases, err := c.Lookup(append(names, []byte("none")), 0, 0)
	require.NoError(t, err)
	require.True(t, leases[7].End())
	c.ReleaseAll(leases)
	for _, engine := range []*servertest.Engine{engineA, engineB} {
		open, _, _ := engine.Counts()
		require.Zero(t, open)
	}
	requests := a.Counters().Requests(message.Release) + b.Counters().Requests(message.Release)
	require.EqualValues(t, 1+2, requests, "one for each server, and the one before")
	require.False(t, leases[8].End())
	c.ReleaseAll(leases)
	require.Equal(t, requests, a.Counters().Requests(message.Release)+b.Counters().Requests(message.Release))
}

// What a medium flips is found by the reader of a lease, too.
func TestSpoiledLease(t *testing.T) {
	c, _, engine := pair(t, wire.ProtectDigest)
	mustPut(t, c, "key", make([]byte, 2<<20))
	leases, err := c.Lookup([][]byte{[]byte("key")}, 0, 0)
	require.NoError(t, err)
	engine.Spoil("key")
	ok, err := leases[0].Read([][]byte{make([]byte, 2<<20)})
	require.NoError(t, err)
	require.False(t, ok)
	require.EqualValues(t, 1, c.counts.BadTags.Load())
	require.Eventually(t, func() bool { _, _, bads := engine.Counts(); return bads == 1 }, testTimeout, time.Millisecond)
	leases[0].Release()
}
