package client

import (
	"bytes"
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

const testTimeout = 30 * time.Second

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
	require.Eventually(t, func() bool { up, _ := c.Up(); return up == len(c.peers) }, testTimeout, time.Millisecond)
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
	require.Eventually(t, func() bool { up, _ := c.Up(); return up == 0 }, testTimeout, time.Millisecond)
	before := c.counts.Late.Load()
	for i := range 1000 {
		got, err := c.Get(fmt.Appendf(nil, "%d", i))
		require.NoError(t, err)
		require.Nil(t, got)
	}
	require.EqualValues(t, 1000, c.counts.Unreachable.Load(), "none of them has waited")
	require.Equal(t, before, c.counts.Late.Load())
	r.stopped.Store(false)
	back(t, c)
	mustGet(t, c, "key", []byte("data"))
}

// A link that has ended is none, before its keeper has seen to it: a caller that finds the server up after a miss can use it.
func TestEndedLinkIsNotUp(t *testing.T) {
	s, _ := serve(t)
	c := dial(t, one(s))
	l := c.peers[0].link
	l.writing.Lock() // its keeper waits
	defer l.writing.Unlock()
	l.fail(errHung)
	up, why := c.Up()
	require.Zero(t, up)
	require.Len(t, why, 1)
	require.ErrorIs(t, why[0], errHung)
	require.Empty(t, c.Carriers())
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
		require.Eventually(t, func() bool { s, err = server.Listen(cfg); return err == nil }, testTimeout, time.Millisecond)
		t.Cleanup(s.Close)
		before := hits.Load()
		require.Eventually(t, func() bool { return hits.Load() > before+3 }, testTimeout, time.Millisecond)
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
	cfg := Config{Servers: []string{s.Addr().String()}, Keys: keys(t, keyB), Connect: testTimeout}
	_, err := Open(cfg)
	require.ErrorIs(t, err, ErrRefused)
	cfg.Keys, cfg.Protection = keys(t, keyA), wire.ProtectEncrypt
	_, err = Open(cfg)
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorIs(t, err, wire.ErrProtection)
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
	_ = nc.SetReadDeadline(time.Now().Add(testTimeout))
	_, _ = io.Copy(io.Discard, nc)
	require.Eventually(t, func() bool { return s.Refusals().Refused(wire.ErrReplay) == 1 }, testTimeout, time.Millisecond)
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
