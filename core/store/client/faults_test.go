package client

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/wire"
)

const patience = 30 * time.Second

// relay is a cable to a server, which can be stopped, and flips bits if told to.
type relay struct {
	to      string
	stopped atomic.Bool
	flip    atomic.Int64 // of what the server sends, the byte of that number; 0: none
	mu      sync.Mutex
	record  bytes.Buffer // what clients have sent
	conns   []net.Conn
}

// dial is Config.Dial.
func (r *relay) dial(ctx context.Context, _ string) (Conn, error) {
	far, err := dialTCP(ctx, r.to)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	near, err := dialTCP(ctx, l.Addr().String())
	if err != nil {
		return nil, err
	}
	mid, err := l.Accept()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.conns = append(r.conns, mid, far)
	r.mu.Unlock()
	go r.carry(mid, far, true)
	go r.carry(far, mid, false)
	return near, nil
}

func (r *relay) carry(from, to net.Conn, sent bool) {
	defer from.Close()
	defer to.Close()
	b := make([]byte, 64<<10)
	total := int64(0)
	for {
		n, err := from.Read(b)
		for r.stopped.Load() {
			time.Sleep(time.Millisecond)
		}
		if err != nil {
			return
		}
		if sent {
			r.mu.Lock()
			r.record.Write(b[:n])
			r.mu.Unlock()
		} else if at := r.flip.Load() - total; at > 0 && at <= int64(n) {
			b[at-1] ^= 4
		}
		total += int64(n)
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

func (r *relay) close() {
	r.stopped.Store(false)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		_ = c.Close()
	}
}

// relayed makes a client behind a cable.
func relayed(t *testing.T, s *server.Server, timeout time.Duration) (*Client, *relay) {
	t.Helper()
	r := &relay{to: s.Addr().String()}
	c := dial(t, one(s), func(c *Config) {
		c.Dial, c.Timeout, c.ProbeMin, c.ProbeMax, c.Connect = r.dial, timeout, 20*time.Millisecond, 50*time.Millisecond, patience
	})
	t.Cleanup(r.close)
	return c, r
}

func mustPut(t testing.TB, c *Client, key string, data []byte) {
	t.Helper()
	ok, err := c.Put([]byte(key), data, nil)
	require.NoError(t, err)
	require.True(t, ok)
}

func mustGet(t testing.TB, c *Client, key string, want []byte) {
	t.Helper()
	got, err := c.Get([]byte(key))
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
}

func back(t testing.TB, c *Client) {
	t.Helper()
	require.Eventually(t, func() bool { up, _ := c.Up(); return up == len(c.peers) }, patience, time.Millisecond)
}

// A server that hangs costs one deadline; then its share is a miss at once, until it is back.
func TestHungServer(t *testing.T) {
	s, _ := serve(t)
	c, r := relayed(t, s, 300*time.Millisecond)
	mustPut(t, c, "key", []byte("data"))
	r.stopped.Store(true)
	got, err := c.Get([]byte("key"))
	require.NoError(t, err)
	require.Nil(t, got)
	require.Eventually(t, func() bool { up, _ := c.Up(); return up == 0 }, patience, time.Millisecond)
	late := c.counts.Late.Load()
	for i := range 1000 {
		got, err := c.Get(fmt.Appendf(nil, "%d", i))
		require.NoError(t, err)
		require.Nil(t, got)
	}
	require.EqualValues(t, 1000, c.counts.Unreachable.Load(), "none of them has waited")
	require.Equal(t, late, c.counts.Late.Load())
	r.stopped.Store(false)
	back(t, c)
	mustGet(t, c, "key", []byte("data"))
}

// A server that is killed and started again is found again; meanwhile there are misses and
// no errors, and every request completes.
func TestServerKilled(t *testing.T) {
	s, engine := serve(t)
	addr := s.Addr().String()
	c := dial(t, one(s), func(c *Config) { c.ProbeMin, c.ProbeMax = 5*time.Millisecond, 10*time.Millisecond })
	data := noise(newRand(t), 2<<20)
	mustPut(t, c, "key", data)
	stop := make(chan struct{})
	var hits atomic.Int64
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				got, err := c.Get([]byte("key"))
				if err != nil || got != nil && !bytes.Equal(got, data) {
					t.Errorf("%v, %d bytes", err, len(got))
				}
				if got != nil {
					hits.Add(1)
				}
				if _, err := c.Put(fmt.Appendf(nil, "%d %d", i, n), data[:n%1000*100], nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 5 {
		s.Close()
		open, _, _ := engine.Counts()
		require.Zero(t, open, "a server that is closed holds nothing")
		cfg := server.Config{Store: engine, Addr: addr, Keys: keys(t, keyA)}
		var err error
		require.Eventually(t, func() bool { s, err = server.Listen(cfg); return err == nil }, patience, time.Millisecond)
		t.Cleanup(s.Close)
		before := hits.Load()
		require.Eventually(t, func() bool { return hits.Load() > before+3 }, patience, time.Millisecond)
	}
	close(stop)
	all.Wait()
	require.GreaterOrEqual(t, c.counts.Broken.Load(), uint64(5))
}

// No server at all is no error: everything is a miss.
func TestNoServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	c := dial(t, nil, func(c *Config) { c.Servers = []string{addr} })
	ok, err := c.Put([]byte("key"), nil, nil)
	require.NoError(t, err)
	require.False(t, ok)
	n, err := c.Prefix([][]byte{[]byte("key")})
	require.NoError(t, err)
	require.Zero(t, n)
	require.Error(t, c.Flush(0), "what was stored may not be on a disk")
	up, why := c.Up()
	require.Zero(t, up)
	require.Len(t, why, 1)
}

// Another key is an error, and so is another protection.
func TestRefusedClients(t *testing.T) {
	s, _ := serve(t)
	cfg := Config{Servers: []string{s.Addr().String()}, Keys: keys(t, keyB), Connect: patience}
	_, err := Open(cfg)
	require.ErrorIs(t, err, ErrRefused)
	cfg.Keys, cfg.Protection = keys(t, keyA), wire.ProtectEncrypt
	_, err = Open(cfg)
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorIs(t, err, wire.ErrProtection)
}

// What the cable flips is a miss, wherever it is; what a medium flips is one too, and the
// server hears of it. Never are they data.
func TestFlippedBits(t *testing.T) {
	s, engine := serve(t)
	data := noise(newRand(t), 100<<10)
	mustPut(t, dial(t, one(s)), "key", data)
	for at := int64(400); at < 101<<10; at += 7001 {
		c, r := relayed(t, s, 500*time.Millisecond)
		back(t, c)
		r.flip.Store(at)
		got, err := c.Get([]byte("key"))
		require.NoError(t, err)
		require.Nil(t, got, at)
		require.Eventually(t, func() bool { return c.counts.Broken.Load() == 1 }, 3*time.Second, time.Millisecond, "%d: %+v", at, &c.counts)
	}
	c := dial(t, one(s))
	mustGet(t, c, "key", data)
	engine.Spoil("key")
	got, err := c.Get([]byte("key"))
	require.NoError(t, err)
	require.Nil(t, got)
	require.EqualValues(t, 1, c.counts.BadTags.Load())
	require.Eventually(t, func() bool { _, _, bads := engine.Counts(); return bads == 1 }, patience, time.Millisecond)
	found, err := c.Exists([][]byte{[]byte("key")})
	require.NoError(t, err)
	require.False(t, found[0])
	require.EqualValues(t, 1, s.Counters().BadReads.Load())
}

// WF1: what a client has sent once does nothing when another one sends it again.
func TestReplay(t *testing.T) {
	s, engine := serve(t)
	c, r := relayed(t, s, 20*time.Second)
	mustPut(t, c, "key", []byte("data"))
	n, err := c.Delete([][]byte{[]byte("key")})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	r.mu.Lock()
	sent := bytes.Clone(r.record.Bytes())
	r.mu.Unlock()
	nc, err := net.Dial("tcp", s.Addr().String())
	require.NoError(t, err)
	defer nc.Close()
	_, _ = nc.Write(sent)
	_ = nc.SetReadDeadline(time.Now().Add(patience))
	_, _ = io.Copy(io.Discard, nc)
	require.Eventually(t, func() bool { return s.Refusals().Refused(wire.ErrReplay) == 1 }, patience, time.Millisecond)
	require.EqualValues(t, 1, s.Counters().Requests(message.Put))
	open, _, _ := engine.Counts()
	require.Zero(t, open)
}

// A client that is closed completes everything, with an error: what runs and what is queued.
func TestCloseCompletes(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Contexts = 1 })
	c, r := relayed(t, s, time.Hour)
	mustPut(t, c, "key", []byte("data"))
	r.stopped.Store(true)
	id, err := c.Submit(Request{Op: message.Get, Keys: [][]byte{[]byte("key")}})
	require.NoError(t, err)
	for range 4 {
		_, err := c.Submit(Request{Op: message.Get, Keys: [][]byte{[]byte("key")}})
		require.NoError(t, err)
	}
	_, err = c.Wait(id, time.Now().Add(10*time.Millisecond))
	require.ErrorIs(t, err, ErrDeadline)
	require.NoError(t, c.Close())
	done := c.Drain(nil)
	require.Len(t, done, 5)
	for _, d := range done {
		require.ErrorIs(t, d.Err, ErrClosed)
	}
	_, err = c.Submit(Request{Op: message.Get, Keys: [][]byte{[]byte("key")}})
	require.ErrorIs(t, err, ErrClosed)
	_, err = c.Get([]byte("key"))
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, c.Close())
	r.close()
	s.Close()
	open, _, _ := engine.Counts()
	require.Zero(t, open)
}

// A full server and one with small segments say so at once, and nothing else.
func TestFullServer(t *testing.T) {
	s, engine := serve(t)
	engine.Most, engine.Room = 1000, 1500
	c := dial(t, one(s))
	mustPut(t, c, "a", make([]byte, 1000))
	for key, want := range map[string]message.Status{"b": message.Full, "c": message.TooLarge} {
		ok, err := c.Put([]byte(key), make([]byte, map[message.Status]int{message.Full: 999, message.TooLarge: 1001}[want]), nil)
		require.NoError(t, err)
		require.False(t, ok)
		require.EqualValues(t, 1, c.counts.Replies(want), want)
	}
	mustGet(t, c, "a", make([]byte, 1000))
}

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
	require.NoError(t, c.List([]byte("block 1"), func(key []byte) bool { listed[string(key)] = true; return true }))
	require.Len(t, listed, 111)
	require.NoError(t, c.Flush(patience))
	require.Len(t, c.Stats(), 3)
	a.Close()
	require.Eventually(t, func() bool { up, _ := c.Up(); return up == 2 }, patience, time.Millisecond)
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
		done, err := c.Wait(id, time.Now().Add(patience))
		require.NoError(t, err)
		require.True(t, done.OK[0])
	}
	require.Empty(t, c.Drain(nil))
	mustGet(t, c, "key", []byte("data"))
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
	deadline := time.Now().Add(patience)
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
		leases, err := c.Lookup([][]byte{[]byte("none"), []byte("key")}, 0)
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

// What a medium flips is found by the reader of a lease, too.
func TestSpoiledLease(t *testing.T) {
	c, _, engine := pair(t, wire.ProtectDigest)
	mustPut(t, c, "key", make([]byte, 2<<20))
	leases, err := c.Lookup([][]byte{[]byte("key")}, 0)
	require.NoError(t, err)
	engine.Spoil("key")
	ok, err := leases[0].Read([][]byte{make([]byte, 2<<20)})
	require.NoError(t, err)
	require.False(t, ok)
	require.EqualValues(t, 1, c.counts.BadTags.Load())
	require.Eventually(t, func() bool { _, _, bads := engine.Counts(); return bads == 1 }, patience, time.Millisecond)
	leases[0].Release()
}
