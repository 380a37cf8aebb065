package client

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/wire"
)

// Puts go by way of the bounce buffer where there is one, and they are long enough and not longer than it; else they are
// sent. Either way they are there.
func TestPutsBounce(t *testing.T) {
	both(t, func(t *testing.T, p wire.Protection) {
		srv, engine := serve(t, withArena(t), func(c *server.Config) { c.Protection = p })
		engine.Most = 32 << 20
		reader := dial(t, one(srv), by(CarrierTCP), func(c *Config) { c.Protection = p })
		for how, want := range map[Carrier]bool{CarrierAuto: true, CarrierSHM: true, CarrierTCP: false} {
			c, src := dial(t, one(srv), by(how), func(c *Config) { c.Protection = p }), newRand(t)
			for n, size := range []int{
				0, minBounceBytes - 1, minBounceBytes, 1<<20 + 7, message.MaxBounceBytes, message.MaxBounceBytes + 1,
			} {
				key, data := fmt.Sprint(how, n), noise(src, size)
				before := c.counts.Bounced.Load()
				done, err := c.Do(Request{Op: message.Put, Keys: [][]byte{[]byte(key)}, Buffers: [][][]byte{cut(src, data)}})
				require.NoError(t, err)
				require.True(t, done.OK[0], size)
				bounces := want && size >= minBounceBytes && size <= message.MaxBounceBytes
				require.Equal(t, bounces, c.counts.Bounced.Load() == before+1, size)
				mustGet(t, reader, key, data)
			}
			require.NoError(t, c.Close())
		}
	})
}

// More puts than the bounce buffer has room for, of several callers, all end well, and leave the buffer empty.
func TestBounceIsFull(t *testing.T) {
	holds := make(chan struct{})
	srv, engine := serve(t, withArena(t))
	engine.Holds = holds
	c := dial(t, one(srv))
	link := c.peers[0].link
	require.NotNil(t, link.bounce)
	src, callers, blocks := newRand(t), sync.WaitGroup{}, [8][]byte{}
	for n := range blocks {
		blocks[n] = noise(src, 3<<20+n) // five of them
		callers.Go(func() {
			ok, err := c.Put(fmt.Append(nil, n), blocks[n], nil)
			if err != nil || !ok {
				t.Error(n, ok, err)
			}
		})
	}
	require.Eventually(t, func() bool { return c.counts.Bounced.Load() == 5 }, testTimeout, time.Millisecond)
	close(holds)
	callers.Wait()
	reader := dial(t, one(srv), by(CarrierTCP))
	for n, block := range blocks {
		mustGet(t, reader, fmt.Sprint(n), block)
	}
	require.Zero(t, c.counts.Late.Load())
	link.mu.Lock()
	defer link.mu.Unlock()
	_, _, ok := link.bounce.Take(message.MaxBounceBytes)
	require.True(t, ok, "all room was given back")
}

// A client without memory for a bounce buffer, and one with a server that does not map it, send their blocks. Nothing is latched.
func TestNoBounce(t *testing.T) {
	for call, err := range map[string]error{"memfd_create": syscall.EMFILE, "fallocate": syscall.ENOSPC} {
		srv, _ := shared(t, "", 64<<20)
		data := noise(newRand(t), 100_000)
		mustPut(t, dial(t, one(srv)), "first", data) // so that the server has its memory
		stop := sys.FailCall(call, err)
		c := dial(t, one(srv), by(CarrierSHM))
		mustPut(t, c, "key", data)
		stop()
		mustGet(t, c, "key", data)
		require.Zero(t, c.counts.Bounced.Load(), call)
		require.Equal(t, "shm", carrier(c))
		require.NoError(t, c.Close())
	}
}

// A server that has nothing to share, as one of another host, costs a client no bounce buffer.
func TestNoBounceElsewhere(t *testing.T) {
	srv, _ := serve(t)
	var made atomic.Int32
	stop := sys.InjectFaults(func(call string) error {
		if call == "memfd_create" {
			made.Add(1)
		}
		return nil
	})
	defer stop()
	c := dial(t, one(srv))
	mustPut(t, c, "key", []byte("data"))
	require.Equal(t, "tcp", carrier(c))
	require.Zero(t, made.Load())
}

// A put that the server could not copy is refused, and the next ones are sent.
func TestServerCannotCopy(t *testing.T) {
	srv, _ := shared(t, "", 8<<20)
	c, data := dial(t, one(srv)), noise(newRand(t), 100_000)
	stop := sys.FailCall("madvise", errors.New("broken"))
	ok, err := c.Put([]byte("key"), data, nil)
	require.NoError(t, err)
	require.False(t, ok)
	mustPut(t, c, "key", data)
	stop()
	mustPut(t, c, "other", data)
	require.EqualValues(t, 1, c.counts.Bounced.Load())
	mustGet(t, c, "key", data)
	require.Equal(t, "shm", carrier(c))
	require.Zero(t, c.counts.Latched.Load()+c.counts.Broken.Load())
}

// A put that is refused because the disk cannot read the block of its key is no failure of the bounce buffer, nor one that an operator
// hears of as puts that fail.
func TestUnreadableBlockEndsNoBouncing(t *testing.T) {
	srv, _ := shared(t, filepath.Join(t.TempDir(), "blocks"), 8<<20)
	c, data := dial(t, one(srv), by(CarrierSHM)), noise(newRand(t), 100_000)
	mustPut(t, c, "key", data)
	stop := sys.FailCall("pread", syscall.EIO)
	ok, err := c.Put([]byte("key"), data, nil)
	stop()
	require.NoError(t, err)
	require.False(t, ok)
	mustPut(t, c, "other", data)
	require.EqualValues(t, 3, c.counts.Bounced.Load())
	require.EqualValues(t, 1, srv.Counters().Replies(message.Unreadable))
	require.Zero(t, srv.Counters().Replies(message.Failed))
}

// A client that is closed, and one with a server that ends, in the middle of its puts keeps nothing of the bounce buffer, and neither does
// the server.
func TestBounceEnds(t *testing.T) {
	for _, first := range []string{"client", "server"} {
		srv, engine := serve(t, withArena(t))
		before := sys.Stats()
		engine.Holds = make(chan struct{})
		c := dial(t, one(srv))
		data := noise(newRand(t), 1<<20)
		for n := range 8 {
			_, err := c.Submit(Request{Op: message.Put, Keys: [][]byte{fmt.Append(nil, n)}, Buffers: [][][]byte{{data}}})
			require.NoError(t, err)
		}
		require.Eventually(t, func() bool { return c.counts.Bounced.Load() == 8 }, testTimeout, time.Millisecond)
		time.AfterFunc(20*time.Millisecond, func() { close(engine.Holds) })
		if first == "server" {
			srv.Close()
		}
		require.NoError(t, c.Close())
		require.Eventually(t, func() bool { return srv.Stats().Clients == 0 && sys.Stats().Mappings == before.Mappings }, testTimeout, time.Millisecond)
		open, _, _ := engine.Counts()
		require.Zero(t, open)
	}
}
