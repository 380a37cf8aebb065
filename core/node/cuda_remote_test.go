package node

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/transport/fake"
)

// remotePair makes two ranks on the emulated device that treat each other as ranks of
// other hosts, not connected.
func remotePair(t *testing.T) (pair [2]*Buffer) {
	for r := range pair {
		pair[r] = newOnCUDA(t, r, 2, func(c *Config) {
			c.Hosts.Host, c.Hosts.Transport = string('a'+rune(r)), multihost.TCP
		})
	}
	return pair
}

// connectPair connects both.
func connectPair(pair [2]*Buffer, timeout time.Duration) (errs [2]error) {
	all := [][]byte{pair[0].Metadata(), pair[1].Metadata()}
	other := make(chan error, 1)
	go func() { other <- pair[1].Connect(all, timeout) }()
	errs[0] = pair[0].Connect(all, timeout)
	errs[1] = <-other
	return errs
}

func connectedPair(t *testing.T) ([2]*Buffer, *cudatest.Driver) {
	emu := cudatest.Emulate(t)
	pair := remotePair(t)
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	return pair, emu
}

// TestRemotePaths: a rank of another host is reached over its carrier, and the path says
// where the messages lie.
func TestRemotePaths(t *testing.T) {
	pair, _ := connectedPair(t)
	for r, b := range pair {
		paths, err := b.Paths()
		require.NoError(t, err)
		require.Equal(t, "self", paths[r].Carrier)
		remote := paths[1-r]
		require.Equal(t, "tcp", remote.Carrier)
		require.Contains(t, remote.Device, "127.0.0.1:")
		require.Equal(t, "transport is tcp; messages in pinned host memory: tcp registers no device memory", remote.Why)
		s, err := b.remoteStats()
		require.NoError(t, err)
		require.Len(t, s.Links, 1)
		require.Equal(t, "up", s.Links[0].State)
	}
	closePair(t, pair, 0, 1)
}

// closePair closes both in the given order. They leave nothing on the device; the
// emulator checks this at the end.
func closePair(t *testing.T, pair [2]*Buffer, order ...int) {
	for _, r := range order {
		require.NoError(t, pair[r].Close())
		require.Nil(t, onDevice(pair[r]).dev)
	}
}

// TestRemoteCloses: one after the other, in both orders, and both at once.
func TestRemoteCloses(t *testing.T) {
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		pair, _ := connectedPair(t)
		closePair(t, pair, order...)
	}
	pair, _ := connectedPair(t)
	ended := make(chan error, 2)
	for _, b := range pair {
		go func() { ended <- b.Close() }()
	}
	require.NoError(t, errors.Join(<-ended, <-ended))
}

// TestRemoteClosesWhileMemoryIsRetained: only the memory stays. Connections and listeners
// go at once.
func TestRemoteClosesWhileMemoryIsRetained(t *testing.T) {
	before := numSockets(t)
	pair, _ := connectedPair(t)
	require.Greater(t, numSockets(t), before)
	for _, b := range pair {
		onDevice(b).memory.Retain()
		require.NoError(t, b.Close())
		require.NotNil(t, onDevice(b).dev)
	}
	require.Equal(t, before, numSockets(t))
	for _, b := range pair {
		require.NoError(t, onDevice(b).memory.TryRelease())
		require.Nil(t, onDevice(b).dev)
	}
}

// numSockets returns how many sockets this process has open.
func numSockets(t *testing.T) (num int) {
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			num++
		}
	}
	return num
}

// TestRemoteMeetsAgain: an update makes new links, and frees the memory of the old ones.
func TestRemoteMeetsAgain(t *testing.T) {
	pair, _ := connectedPair(t)
	for range 3 {
		for _, b := range pair {
			require.NoError(t, b.Update())
		}
		require.Equal(t, [2]error{}, connectPair(pair, soon))
		ended := make(chan error, 2)
		for _, b := range pair {
			go func() { ended <- b.Install() }()
		}
		require.NoError(t, errors.Join(<-ended, <-ended))
		paths, err := pair[0].Paths()
		require.NoError(t, err)
		require.Contains(t, paths[1].Why, "messages in pinned host memory")
	}
	closePair(t, pair, 1, 0)
}

// TestRemoteMemoryGoesWithTheNextRendezvous: an update frees the memory of messages when
// no work runs on the device, whether there was a rendezvous or not.
func TestRemoteMemoryGoesWithTheNextRendezvous(t *testing.T) {
	const frees = "cuMemFreeHost"
	for _, met := range []bool{false, true} {
		emu := cudatest.Emulate(t)
		pair := remotePair(t)
		if met {
			require.Equal(t, [2]error{}, connectPair(pair, soon))
		}
		old, err := onDevice(pair[0]).rings.Make(fake.New(fake.Config{Manual: true}).Transport(), 4096)
		require.NoError(t, err)
		before := emu.Calls(frees)
		old.Release()
		require.Equal(t, before, emu.Calls(frees))
		require.NoError(t, pair[0].Update())
		require.Equal(t, before+1, emu.Calls(frees))
		closePair(t, pair, 0, 1)
	}
}

// TestRemoteRendezvousFails: no other rank comes. The device was opened before. A later
// rendezvous may succeed, and a close releases everything.
func TestRemoteRendezvousFails(t *testing.T) {
	cudatest.Emulate(t)
	pair := remotePair(t)
	all := [][]byte{pair[0].Metadata(), pair[1].Metadata()}
	require.Error(t, pair[0].Connect(all, 50*time.Millisecond))
	require.NoError(t, pair[0].Update())
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	closePair(t, pair, 0, 1)

	pair = remotePair(t)
	all = [][]byte{pair[0].Metadata(), pair[1].Metadata()}
	require.Error(t, pair[0].Connect(all, 50*time.Millisecond))
	closePair(t, pair, 1, 0)
}

// TestRemoteCloseWhileConnecting: the close behaves as on one host.
func TestRemoteCloseWhileConnecting(t *testing.T) {
	cudatest.Emulate(t)
	pair := remotePair(t)
	all := [][]byte{pair[0].Metadata(), pair[1].Metadata()}
	ended := make(chan error, 1)
	go func() { ended <- pair[0].Connect(all, time.Hour) }()
	require.Eventually(t, func() bool {
		pair[0].mu.Lock()
		defer pair[0].mu.Unlock()
		return pair[0].rendezvous.stage == stageConnecting
	}, soon, 50*time.Microsecond)
	require.NoError(t, pair[0].Close())
	require.ErrorIs(t, <-ended, ep.ErrClosed)
	require.Nil(t, onDevice(pair[0]).dev)
	require.NoError(t, pair[1].Close())
}

// TestRemoteCloseIsRepeated: a close that fails, at any call of the driver, may be
// repeated. It leaves nothing, not even the memory of messages.
func TestRemoteCloseIsRepeated(t *testing.T) {
	failed := 0
	for n, left := 0, 1; left > 0; n++ {
		pair, emu := connectedPair(t)
		require.NoError(t, pair[1].Close())
		before := emu.Calls(pushes)
		emu.FailAfter(pushes, n, outOfMemory)
		failure := pair[0].Close()
		left = emu.Calls(pushes) - before - n
		emu.FailAfter(pushes, 1<<30, outOfMemory)
		if failure != nil {
			failed++
			require.NoError(t, pair[0].Close())
		}
		require.Nil(t, onDevice(pair[0]).dev)
	}
	require.Positive(t, failed)
}

// TestCarrierThatDoesNotEnd: such a carrier keeps the device and its memory. A close
// reports this once.
func TestCarrierThatDoesNotEnd(t *testing.T) {
	b, _ := connected(t)
	dev := onDevice(b).dev
	held, err := onDevice(b).rings.Make(fake.New(fake.Config{Manual: true}).Transport(), 4096)
	require.NoError(t, err)
	require.Error(t, b.Close())
	require.NoError(t, b.Close())
	held.Word(8).Store(1) // the carrier may write there
	held.Release()
	require.NoError(t, dev.Close())
}
