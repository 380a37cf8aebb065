package client

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/server"
)

// warned collects warnings.
type warned struct {
	mu    sync.Mutex
	lines []string
}

func (w *warned) add(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, line)
}

func (w *warned) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lines
}

func quickly(c *Config) { c.ProbeMin, c.ProbeMax = 10*time.Millisecond, 20*time.Millisecond }

func carrier(c *Client) string { return c.Carriers()[c.cfg.Servers[0]] }

// Where the set-up of shared memory fails, auto says so once and stays with TCP, and shm refuses.
func TestSetUpFails(t *testing.T) {
	srv, _ := shared(t, "", 8<<20)
	data := noise(newRand(t), 100_000)
	mustPut(t, dial(t, one(srv)), "key", data)
	for _, call := range []string{"socket", "mmap", "accept4"} {
		stop := sys.FailCall(call, errors.New("broken"))
		var said warned
		c := dial(t, one(srv), quickly, func(c *Config) { c.Warn = said.add })
		require.Equal(t, "tcp", carrier(c), call)
		mustGet(t, c, "key", data)
		_, err := Open(Config{Servers: c.cfg.Servers, Namespace: here, Keys: c.cfg.Keys, Carrier: CarrierSHM, Connect: testTimeout})
		require.ErrorIs(t, err, ErrRefused, call)
		require.ErrorContains(t, err, "shared memory")
		stop()
		c.peers[0].link.fail(errHung)
		require.Eventually(t, func() bool { return c.counts.Broken.Load() == 1 }, testTimeout, time.Millisecond)
		back(t, c)
		mustGet(t, c, "key", data)
		require.Equal(t, "tcp", carrier(c), "for as long as the client lives")
		require.Len(t, said.all(), 1)
		require.Contains(t, said.all()[0], c.cfg.Servers[0])
		require.EqualValues(t, 1, c.counts.Latched.Load())
		require.NoError(t, c.Close())
	}
}

// Where an arena that was there cannot be read any more, auto goes on by TCP, and shm makes misses until it is back.
func TestArenaFails(t *testing.T) {
	srv, _ := shared(t, "", 8<<20)
	data := noise(newRand(t), 100_000)
	var said warned
	auto := dial(t, one(srv), func(c *Config) { c.Warn = said.add })
	only := dial(t, one(srv), quickly, by(CarrierSHM))
	mustPut(t, auto, "key", data)
	stop := sys.FailCall("madvise", errors.New("broken"))
	mustGet(t, auto, "key", data)
	got, err := only.Get([]byte("key"))
	require.NoError(t, err)
	require.Nil(t, got)
	stop()
	mustGet(t, auto, "key", data)
	require.Equal(t, "tcp", carrier(auto))
	require.Len(t, said.all(), 1)
	back(t, only)
	require.Eventually(t, func() bool { return carrier(only) == "shm" }, testTimeout, time.Millisecond)
	mustGet(t, only, "key", data)
	require.Zero(t, only.counts.Latched.Load())
}

// A server that has nothing to share, as one of another host, is no failure: auto has TCP, and shm refuses.
func TestNothingToShare(t *testing.T) {
	srv, _ := serve(t)
	var said warned
	c := dial(t, one(srv), func(c *Config) { c.Warn = said.add })
	mustPut(t, c, "key", []byte("data"))
	mustGet(t, c, "key", []byte("data"))
	require.Equal(t, "tcp", carrier(c))
	require.Empty(t, said.all())
	require.Zero(t, c.counts.Latched.Load())
	_, err := Open(Config{Servers: c.cfg.Servers, Keys: c.cfg.Keys, Carrier: CarrierSHM, Connect: testTimeout})
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "on another host")
}

// A server that ends, and is started again, latches nothing.
func TestRestartDoesNotLatch(t *testing.T) {
	for _, how := range []Carrier{CarrierAuto, CarrierSHM} {
		first, _ := shared(t, "", 8<<20)
		address := first.Addr().String()
		c := dial(t, one(first), quickly, by(how))
		mustPut(t, c, "key", []byte("data"))
		first.Close()
		got, err := c.Get([]byte("key"))
		require.NoError(t, err)
		require.Nil(t, got)
		_, _ = shared(t, "", 8<<20, func(c *server.Config) { c.Addr = address })
		back(t, c)
		require.Equal(t, "shm", carrier(c))
		got, err = c.Get([]byte("key"))
		require.NoError(t, err)
		require.Nil(t, got, "what was in the memory of the first")
		other := noise(newRand(t), 100_000)
		mustPut(t, c, "key", other)
		mustGet(t, c, "key", other)
		require.EqualValues(t, 1, c.counts.Bounced.Load(), "the new connection has a bounce buffer of its own")
		require.Zero(t, c.counts.Latched.Load())
	}
}

// liar is an engine that says wrong places.
type misplacing struct {
	server.Store
	by atomic.Int64
}

type misplaced struct {
	server.Leased
	by int64
}

func (m *misplaced) Place() int64 { return m.Leased.Place() + m.by }

func (m *misplacing) Acquire(ns store.NS, keys [][]byte, leases []server.Lease) int {
	n := m.Store.Acquire(ns, keys, leases)
	for i := range keys {
		if leases[i].Held() {
			leases[i].Leased = &misplaced{leases[i].Leased, m.by.Load()}
		}
	}
	return n
}

// A block that is not where it was said to be is asked for again, and nothing is said against it. A place out of
// the arena ends the connection.
func TestBlocksThatHaveMoved(t *testing.T) {
	storages(t, func(t *testing.T, path string) {
		wrong := &misplacing{}
		srv, s := shared(t, path, 8<<20, func(c *server.Config) { wrong.Store, c.Store = c.Store, wrong })
		data := noise(newRand(t), 100_000)
		for _, how := range []Carrier{CarrierAuto, CarrierSHM} {
			c := dial(t, one(srv), quickly, by(how))
			mustPut(t, c, "key", data)
			for _, off := range []int64{1, -64, 1 << 20, 200_000} {
				wrong.by.Store(off)
				sent := c.counts.Moved.Load() + c.counts.NotCached.Load() // of a file, what was never written
				mustGet(t, c, "key", data)
				require.Equal(t, sent+1, c.counts.Moved.Load()+c.counts.NotCached.Load())
				leases, err := c.Lookup([][]byte{[]byte("key")}, 0, 0)
				require.NoError(t, err)
				_, ok := leases[0].Place()
				require.False(t, ok, "another block is not to be had")
				room := make([]byte, len(data))
				ok, err = leases[0].Read([][]byte{room})
				require.NoError(t, err)
				require.True(t, ok)
				require.True(t, bytes.Equal(data, room))
				require.True(t, leases[0].End())
				leases[0].Release()
			}
			require.Zero(t, c.counts.Latched.Load()+c.counts.BadTags.Load())
			for broken, off := range []int64{8 << 20, -8 << 20, 1<<63 - 1 - 8<<20} {
				wrong.by.Store(off)
				got, err := c.Get([]byte("key"))
				require.NoError(t, err)
				require.Nil(t, got)
				require.Eventually(t, func() bool { return c.counts.Broken.Load() == uint64(broken+1) }, testTimeout, time.Millisecond)
				wrong.by.Store(0)
				back(t, c)
			}
			mustGet(t, c, "key", data)
		}
		require.Zero(t, s.Stats().Spoiled)
	})
}

// Readers over shared memory while all is evicted again and again: what is got is what was put. Tags are all that
// keeps blocks apart.
func TestSharedEviction(t *testing.T) {
	storages(t, func(t *testing.T, path string) {
		srv, _ := shared(t, path, 8<<20)
		block := func(n int) []byte { return noise(rand.New(rand.NewPCG(uint64(n), 1)), 60_000+n%7*10_000) }
		writer, hits := dial(t, one(srv)), atomic.Int64{}
		var readers sync.WaitGroup
		var last atomic.Int64
		for r := range 3 {
			c := dial(t, one(srv), by(CarrierSHM))
			readers.Go(func() {
				for src := rand.New(rand.NewPCG(uint64(r), 2)); last.Load() < 400; {
					n := max(0, int(last.Load())-src.IntN(60))
					got, err := c.Get(fmt.Append(nil, n))
					if err == nil && got != nil {
						hits.Add(1)
						if !bytes.Equal(block(n), got) {
							t.Errorf("block %d is another one", n)
						}
					}
				}
			})
		}
		for n := range 400 {
			_, err := writer.Put(fmt.Append(nil, n), block(n), nil)
			require.NoError(t, err)
			last.Store(int64(n + 1))
		}
		readers.Wait()
		require.Positive(t, hits.Load())
	})
}

// A leased block stays where it is when it is deleted and all else is evicted; End says so. When the lease's time has
// passed, or the server has ended, it says that, and the memory can be read all the same.
func TestLeasedInPlace(t *testing.T) {
	srv, _ := shared(t, "", 8<<20, func(c *server.Config) { c.Hold = time.Minute })
	c := dial(t, one(srv))
	data := noise(newRand(t), 300_000)
	lease := func(hold time.Duration) (*Lease, []byte) {
		mustPut(t, c, "key", data)
		leases, err := c.Lookup([][]byte{[]byte("key"), []byte("none")}, hold, 0)
		require.NoError(t, err)
		require.Nil(t, leases[1])
		place, ok := leases[0].Place()
		require.True(t, ok)
		require.NoError(t, place.FD.Close())
		there, err := leases[0].view.Bytes(place.Offset, len(data))
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, there))
		return leases[0], there
	}
	l, there := lease(0)
	_, err := c.Delete([][]byte{[]byte("key")})
	require.NoError(t, err)
	for n := range 60 {
		_, err := c.Put(fmt.Append(nil, n), noise(newRand(t), 300_000), nil)
		require.NoError(t, err)
	}
	require.True(t, bytes.Equal(data, there))
	require.True(t, l.End())
	require.False(t, l.End())
	_, ok := l.Place()
	require.False(t, ok)
	l.Release()
	l.Release()

	l, _ = lease(50 * time.Millisecond)
	require.Eventually(t, func() bool { return srv.Counters().Expired.Load() == 1 }, testTimeout, time.Millisecond)
	_, ok = l.Place()
	require.False(t, ok)
	require.False(t, l.End())
	l.Release()

	l, there = lease(0)
	srv.Close()
	require.False(t, l.End())
	require.NoError(t, c.Close())
	require.True(t, bytes.Equal(data, there), "the memory is there, though client and server are not")
	l.Release()
}

// Leases that are never released are no leak of the server's, and none of the arena once they are forgotten.
func TestForgottenLeases(t *testing.T) {
	before := sys.Stats()
	srv, _ := shared(t, "", 8<<20)
	c := dial(t, one(srv))
	mustPut(t, c, "key", noise(newRand(t), 100_000))
	leases, err := c.Lookup([][]byte{[]byte("key")}, 0, 0)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	leases[0].Forget()
	leases[0].Forget()
	require.Eventually(t, func() bool { return srv.Stats().Clients == 0 }, testTimeout, time.Millisecond)
	require.Eventually(t, func() bool { return sys.Stats().Mappings == before.Mappings+1 }, testTimeout, time.Millisecond, "the server's own")
}

// closer is an engine at which a lookup waits for the end of the client.
type closer struct {
	server.Store
	client atomic.Pointer[Client]
}

func (e *closer) Acquire(ns store.NS, keys [][]byte, leases []server.Lease) int {
	if c := e.client.Load(); c != nil {
		go func() { _ = c.Close() }()
		<-c.closing
	}
	return e.Store.Acquire(ns, keys, leases)
}

// A lookup that ends because the client was closed keeps nothing of what it had found at another server.
func TestClosedWhileLookingUp(t *testing.T) {
	first, _ := shared(t, "", 8<<20)
	last := &closer{}
	second, _ := shared(t, "", 8<<20, func(c *server.Config) { last.Store, c.Store = c.Store, last })
	before := sys.Stats().Mappings
	c := dial(t, []*server.Server{first, second})
	var keys [2][]byte
	for n := 0; keys[0] == nil || keys[1] == nil; n++ {
		key := fmt.Append(nil, n)
		keys[c.serverOf(key)] = key
	}
	for _, key := range keys {
		mustPut(t, c, string(key), noise(newRand(t), 100_000))
	}
	last.client.Store(c)
	_, err := c.Lookup(keys[:], 0, 0)
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return sys.Stats().Mappings == before }, testTimeout, time.Millisecond)
}

// The session goes on over the socket that comes with the arena. Where the server has no room for that one it stays
// where it is.
func TestNearerSession(t *testing.T) {
	for clients, network := range map[int]string{1: "tcp", 2: "unix"} {
		srv, _ := shared(t, "", 8<<20, func(c *server.Config) { c.MaxClients = clients })
		c := dial(t, one(srv), by(CarrierSHM))
		require.Equal(t, network, c.peers[0].link.nc.RemoteAddr().Network())
		require.Equal(t, "shm", carrier(c))
		mustPut(t, c, "key", []byte("data"))
		mustGet(t, c, "key", []byte("data"))
		require.Eventually(t, func() bool { return srv.Stats().Clients == 1 }, testTimeout, time.Millisecond)
		require.NoError(t, c.Close())
	}
}
