package client

import (
	"bytes"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/wire"
)

// Where descriptors or memory are used up for a while, at either side, blocks come by TCP for as long, which is said
// once; then they are read in place. shm is refused meanwhile.
func TestShortageDoesNotLatch(t *testing.T) {
	srv, _ := shared(t, "", 8<<20)
	data := noise(newRand(t), 100_000)
	mustPut(t, dial(t, one(srv)), "key", data)
	for call, err := range map[string]syscall.Errno{
		"socket": syscall.EMFILE, "accept4": syscall.ENFILE, "recvmsg": syscall.EMFILE, "mmap": syscall.ENOMEM,
		"open": syscall.EMFILE, "socketpair": syscall.ENFILE, // at the server
	} {
		stop := sys.FailCall(call, err)
		var said warned
		c := dial(t, one(srv), quickly, func(c *Config) { c.Warn = said.add })
		before, lookErr := c.Lookup([][]byte{[]byte("key")}, 0, 0)
		require.NoError(t, lookErr)
		require.Equal(t, "tcp", carrier(c), call)
		mustGet(t, c, "key", data)
		_, refused := Open(Config{Servers: c.cfg.Servers, Namespace: here, Keys: c.cfg.Keys, Carrier: CarrierSHM, Connect: testTimeout})
		require.ErrorIs(t, refused, ErrRefused, call)
		time.Sleep(50 * time.Millisecond) // it is tried again and again
		stop()
		require.Eventually(t, func() bool { return carrier(c) == "shm" }, testTimeout, time.Millisecond, call)
		mustGet(t, c, "key", data)
		leases, lookErr := c.Lookup([][]byte{[]byte("key")}, 0, 0)
		require.NoError(t, lookErr)
		place, ok := leases[0].Place()
		require.True(t, ok, "the block is where the client reads by itself")
		require.NoError(t, place.FD.Close())
		leases[0].Release()
		now, _ := c.peers[0].live()
		require.Equal(t, "unix", now.nc.RemoteAddr().Network(), "requests go another way, too")
		mustRead(t, before[0], data)
		require.True(t, before[0].End(), "the lease of the connection before")
		require.Zero(t, c.counts.Latched.Load()+c.counts.Broken.Load(), call)
		require.Len(t, said.all(), 1)
		require.Contains(t, said.all()[0], "for now")
		require.NoError(t, c.Close())
	}
}

func mustRead(t *testing.T, l *Lease, want []byte) {
	t.Helper()
	room := make([]byte, len(want))
	ok, err := l.Read([][]byte{room})
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, want, room)
}

// While requests go over to the socket that has come with the arena none is lost, and the connection before ends behind its leases.
func TestGoingOverLosesNothing(t *testing.T) {
	srv, _ := shared(t, "", 8<<20, func(c *server.Config) { c.Hold = time.Millisecond })
	stop := sys.FailCall("mmap", syscall.ENOMEM)
	c := dial(t, one(srv), quickly)
	data := noise(newRand(t), 100_000)
	mustPut(t, c, "key", data)
	first := c.peers[0].link
	var ended atomic.Bool
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for !ended.Load() {
				if got, err := c.Get([]byte("key")); err != nil || !bytes.Equal(got, data) {
					t.Errorf("%v, %d bytes", err, len(got))
					return
				}
			}
		})
	}
	stop()
	require.Eventually(t, func() bool { return first.cause() != nil }, testTimeout, time.Millisecond)
	ended.Store(true)
	readers.Wait()
	require.ErrorIs(t, first.cause(), errLeft)
	require.Eventually(t, func() bool { return srv.Stats().Clients == 1 }, testTimeout, time.Millisecond)
	require.Equal(t, "shm", carrier(c))
	require.Zero(t, c.counts.Broken.Load()+c.counts.Unreachable.Load()+c.counts.Misses.Load())
	now, _ := c.peers[0].live()
	now.fail(errHung)
	require.Eventually(t, func() bool { return c.counts.Broken.Load() == 1 }, testTimeout, time.Millisecond)
	back(t, c)
	mustGet(t, c, "key", data)
}

// A link that has taken the place of another one and ends takes that one with it.
func TestBothEnd(t *testing.T) {
	srv, _ := shared(t, "", 8<<20)
	stop := sys.FailCall("mmap", syscall.ENOMEM)
	c := dial(t, one(srv), quickly)
	mustPut(t, c, "key", []byte("data"))
	first := c.peers[0].link
	stop()
	require.Eventually(t, func() bool { return carrier(c) == "shm" }, testTimeout, time.Millisecond)
	require.NoError(t, first.cause())
	now, _ := c.peers[0].live()
	now.fail(errHung)
	require.Eventually(t, func() bool { return c.counts.Broken.Load() == 1 }, testTimeout, time.Millisecond)
	require.ErrorIs(t, first.cause(), errHung)
	back(t, c)
	mustGet(t, c, "key", []byte("data"))
}

// What turns out to be no shortage latches then. A client that is closed waits for nothing of it.
func TestShortageBecomesFailure(t *testing.T) {
	srv, _ := shared(t, "", 8<<20)
	before := sys.Stats()
	stop := sys.FailCall("mmap", syscall.ENOMEM)
	var said warned
	c := dial(t, one(srv), quickly, func(c *Config) { c.Warn = said.add })
	slow := dial(t, one(srv), func(c *Config) { c.ProbeMax = time.Hour })
	stop()
	stop = sys.FailCall("mmap", errors.New("broken"))
	require.Eventually(t, func() bool { return c.counts.Latched.Load() == 1 }, testTimeout, time.Millisecond)
	stop()
	require.Len(t, said.all(), 2)
	require.Contains(t, said.all()[1], "from now on")
	require.Equal(t, "tcp", carrier(c))
	require.NoError(t, c.Close())
	require.NoError(t, slow.Close())
	require.Equal(t, before.Mappings, sys.Stats().Mappings)
}

// A client that is closed waits for no arena that a server has promised and does not send, neither over a link that is being made nor
// over one that runs.
func TestCloseDoesNotWaitForArenas(t *testing.T) {
	ring := keys(t, keyA)
	for _, runs := range []bool{false, true} {
		again := time.Hour
		if runs {
			again = time.Millisecond
		}
		shared := message.Shared{ArenaBytes: 1 << 20, HoldUs: 1}
		promised := make(chan struct{})
		first := true
		s := &liar{keys: ring}
		s.heard = func(head wire.Head) bool {
			switch {
			case head.Code != message.Share:
			case first: // the client is opened by then
				first = false
				s.head = wire.Head{Code: message.Share, Reply: true, Refused: true, Status: uint16(message.WouldBlock)}
			default:
				s.head, s.payload = wire.Head{Code: message.Share, Reply: true}, shared.Append(nil)
				close(promised)
			}
			return true
		}
		c, err := Open(Config{Servers: []string{"liar"}, Keys: ring, Dial: s.dial, Connect: time.Hour, Timeout: time.Hour, ProbeMin: time.Millisecond, ProbeMax: again})
		require.NoError(t, err)
		if !runs {
			c.peers[0].link.fail(errHung)
		}
		<-promised
		begun := time.Now()
		require.NoError(t, c.Close())
		require.Less(t, time.Since(begun), testTimeout)
	}
}

// failing are faults of calls by name, while stop was not called.
func failing(faults map[string]error) (stop func()) {
	return sys.InjectFaults(func(call string) error { return faults[call] })
}

// onDisk is a folder of a file system with a disk. Elsewhere no read waits, and none is made as if it could.
func onDisk(t *testing.T) string {
	t.Helper()
	path := t.TempDir()
	fd, err := sys.OpenFile(filepath.Join(path, "probe"))
	require.NoError(t, err)
	defer func() { require.NoError(t, fd.Close()) }()
	noDisk, err := sys.HasNoDisk(fd)
	require.NoError(t, err)
	if noDisk {
		testenv.Lacking(t, "disk", "the temporary folder is in memory")
	}
	return path
}

// bothFailing is a disk that client and server cannot read but for the headers of a block, which the server reads twice.
func bothFailing() (stop func()) {
	var headers atomic.Int32
	return sys.InjectFaults(func(call string) error {
		if call == "preadv2" || call == "pread" && headers.Add(1) > 2 {
			return syscall.EIO
		}
		return nil
	})
}

// A block that the client cannot read where it lies comes from the server, which says what it is; if the server cannot
// read it either it is a miss. The next one is read in place again.
func TestUnreadableBlocks(t *testing.T) {
	storages(t, func(t *testing.T, path string) {
		if path != "" {
			path = filepath.Join(onDisk(t), "blocks")
		}
		for _, how := range []Carrier{CarrierAuto, CarrierSHM} {
			srv, _ := shared(t, path, 8<<20)
			var said warned
			c := dial(t, one(srv), by(how), func(c *Config) { c.Warn = said.add })
			data := noise(newRand(t), 300_000)
			mustPut(t, c, "key", data)
			stop := failing(map[string]error{"madvise": syscall.EFAULT, "preadv2": syscall.EIO})
			mustGet(t, c, "key", data)
			require.EqualValues(t, 1, c.counts.Unreadable.Load())
			leases, err := c.Lookup([][]byte{[]byte("key")}, 0, 0)
			require.NoError(t, err)
			room := make([]byte, len(data))
			ok, err := leases[0].Read([][]byte{room})
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, data, room)
			leases[0].Release()
			stop()
			require.EqualValues(t, 2, c.counts.Unreadable.Load())
			if path != "" {
				stop := bothFailing()
				got, err := c.Get([]byte("key"))
				stop()
				require.NoError(t, err)
				require.Nil(t, got)
				require.EqualValues(t, 1, c.counts.Misses.Load())
			}
			counted := c.counts.Unreadable.Load()
			mustGet(t, c, "key", data)
			require.Equal(t, counted, c.counts.Unreadable.Load())
			require.Equal(t, "shm", carrier(c))
			require.Zero(t, c.counts.Latched.Load()+c.counts.Broken.Load()+c.counts.Moved.Load())
			require.Empty(t, said.all())
			require.NoError(t, c.Close())
			srv.Close()
			if path != "" {
				path = filepath.Join(t.TempDir(), "blocks")
			}
		}
	})
}

// A disk that does not answer holds up no client that reads its file: what is not in the kernel's memory is the
// server's to read, and a get keeps its deadline. What is there is read in place all the while.
func TestHungDisk(t *testing.T) {
	srv, _ := shared(t, filepath.Join(onDisk(t), "blocks"), 8<<20)
	c := dial(t, one(srv), func(c *Config) { c.Timeout = 500 * time.Millisecond })
	cold, warm := noise(newRand(t), 300_000), noise(newRand(t), 100_000)
	mustPut(t, c, "cold", cold)
	mustPut(t, c, "warm", warm)
	stop := failing(map[string]error{"preadv2": sys.ErrAgain})
	mustGet(t, c, "cold", cold)
	require.EqualValues(t, 1, c.counts.NotCached.Load())
	stop()
	answer := make(chan struct{})
	stop = sys.InjectFaults(func(call string) error {
		switch call {
		case "pread":
			<-answer
		case "preadv2":
			return sys.ErrAgain
		}
		return nil
	})
	ended := make(chan Completion, 1)
	go func() {
		done, _ := c.Do(Request{Op: message.Get, Keys: [][]byte{[]byte("cold")}})
		ended <- done
	}()
	select {
	case done := <-ended:
		require.False(t, done.OK[0])
	case <-time.After(testTimeout):
		require.Fail(t, "the get waits for the disk")
	}
	close(answer)
	stop()
	require.Zero(t, c.counts.Latched.Load())
	require.Eventually(t, func() bool { return c.counts.Broken.Load() == 1 }, testTimeout, time.Millisecond)
	back(t, c)
	mustGet(t, c, "cold", cold)
	mustGet(t, c, "warm", warm)
}

// A file system that cannot say whether a read would wait has no arena; one without a disk needs not say.
func TestReadsThatMayWait(t *testing.T) {
	stop := sys.FailCall("preadv2", syscall.EOPNOTSUPP)
	defer stop()
	srv, _ := shared(t, filepath.Join(onDisk(t), "blocks"), 8<<20)
	var said warned
	c := dial(t, one(srv), func(c *Config) { c.Warn = said.add })
	mustPut(t, c, "key", []byte("data"))
	mustGet(t, c, "key", []byte("data"))
	require.Equal(t, "tcp", carrier(c))
	require.Len(t, said.all(), 1)
	require.Contains(t, said.all()[0], "RWF_NOWAIT")
	_, err := Open(Config{Servers: c.cfg.Servers, Keys: c.cfg.Keys, Carrier: CarrierSHM, Connect: testTimeout})
	require.ErrorIs(t, err, ErrRefused)
}
