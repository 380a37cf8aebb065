package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/gpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/transport/fake"
	"github.com/moewire/moewire/core/transport/multihost"
	"github.com/moewire/moewire/core/transport/tcp"
	"github.com/moewire/moewire/core/transport/verbs"
	"github.com/moewire/moewire/core/wire"
)

// remotePair makes two ranks on the emulated device that treat each other as ranks of
// other hosts, not connected.
func remotePair(t *testing.T) (pair [2]*buffer) {
	n, err := layout.SizeHint(layout.Shape{MaxTokens: 4, Hidden: 128, NumExperts: 2, NumRanks: 2}, 2)
	require.NoError(t, err)
	keys := wire.GenerateKeyring()
	for r := range pair {
		b := &buffer{onGPU: &onGPU{cfg: gpu.Config{NumBytes: n}, driver: cudatest.Build{}.Library(t), given: []byte("kernels\x00")}}
		params, err := b.params(ep.Standing{})
		require.NoError(t, err)
		b.open = listenerConfig(r, 2, params)
		b.open.Keys, b.open.Host, b.open.Setting = keys, string('a'+rune(r)), multihost.TCP
		b.open.Carriers = carriers(&b.open, tcp.Config{}, verbs.Config{})
		require.NoError(t, b.openGPU())
		b.watch()
		require.NoError(t, b.listen())
		b.id = buffers.add(b)
		pair[r] = b
	}
	return pair
}

// connectPair connects both.
func connectPair(pair [2]*buffer, timeout time.Duration) (errs [2]error) {
	all := [][]byte{pair[0].metadata(), pair[1].metadata()}
	other := make(chan error, 1)
	go func() { other <- pair[1].connect(all, timeout) }()
	errs[0] = pair[0].connect(all, timeout)
	errs[1] = <-other
	return errs
}

func connectedPair(t *testing.T) ([2]*buffer, *cudatest.Driver) {
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
		paths, err := b.paths()
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
func closePair(t *testing.T, pair [2]*buffer, order ...int) {
	for _, r := range order {
		require.Zero(t, mwiBufferClose(pair[r].id))
		require.Nil(t, pair[r].onGPU.dev)
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
		go func() { ended <- b.close() }()
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
		b.onGPU.memory.Retain()
		require.Zero(t, mwiBufferClose(b.id))
		require.NotNil(t, b.onGPU.dev)
	}
	require.Equal(t, before, numSockets(t))
	for _, b := range pair {
		require.NoError(t, b.onGPU.memory.TryRelease())
		require.Nil(t, b.onGPU.dev)
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
			require.NoError(t, b.update())
		}
		require.Equal(t, [2]error{}, connectPair(pair, soon))
		ended := make(chan error, 2)
		for _, b := range pair {
			go func() { ended <- b.install() }()
		}
		require.NoError(t, errors.Join(<-ended, <-ended))
		paths, err := pair[0].paths()
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
		old, err := pair[0].onGPU.rings.Make(fake.New(fake.Config{Manual: true}).Transport(), 4096)
		require.NoError(t, err)
		before := emu.Calls(frees)
		old.Release()
		require.Equal(t, before, emu.Calls(frees))
		require.NoError(t, pair[0].update())
		require.Equal(t, before+1, emu.Calls(frees))
		closePair(t, pair, 0, 1)
	}
}

// TestRemoteRendezvousFails: no other rank comes. The device was opened before. A later
// rendezvous may succeed, and a close releases everything.
func TestRemoteRendezvousFails(t *testing.T) {
	cudatest.Emulate(t)
	pair := remotePair(t)
	all := [][]byte{pair[0].metadata(), pair[1].metadata()}
	require.Error(t, pair[0].connect(all, 50*time.Millisecond))
	require.NoError(t, pair[0].update())
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	closePair(t, pair, 0, 1)

	pair = remotePair(t)
	all = [][]byte{pair[0].metadata(), pair[1].metadata()}
	require.Error(t, pair[0].connect(all, 50*time.Millisecond))
	closePair(t, pair, 1, 0)
}

// TestRemoteCloseWhileConnecting: the close behaves as on one host.
func TestRemoteCloseWhileConnecting(t *testing.T) {
	cudatest.Emulate(t)
	pair := remotePair(t)
	all := [][]byte{pair[0].metadata(), pair[1].metadata()}
	ended := make(chan error, 1)
	go func() { ended <- pair[0].connect(all, time.Hour) }()
	require.Eventually(t, func() bool {
		pair[0].mu.Lock()
		defer pair[0].mu.Unlock()
		return pair[0].rendezvous.stage == stageConnecting
	}, soon, 50*time.Microsecond)
	require.Zero(t, mwiBufferClose(pair[0].id))
	require.ErrorIs(t, <-ended, ep.ErrClosed)
	require.Nil(t, pair[0].onGPU.dev)
	require.Zero(t, mwiBufferClose(pair[1].id))
}

// TestRemoteCloseIsRepeated: a close that fails, at any call of the driver, may be
// repeated. It leaves nothing, not even the memory of messages.
func TestRemoteCloseIsRepeated(t *testing.T) {
	failed := 0
	for n, left := 0, 1; left > 0; n++ {
		pair, emu := connectedPair(t)
		require.Zero(t, mwiBufferClose(pair[1].id))
		before := emu.Calls(pushes)
		emu.FailAfter(pushes, n, outOfMemory)
		status := mwiBufferClose(pair[0].id)
		left = emu.Calls(pushes) - before - n
		emu.FailAfter(pushes, 1<<30, outOfMemory)
		if status != 0 {
			failed++
			require.Zero(t, mwiBufferClose(pair[0].id))
		}
		require.Nil(t, pair[0].onGPU.dev)
	}
	require.Positive(t, failed)
}

// TestCarrierThatDoesNotEnd: such a carrier keeps the device and its memory. A close
// reports this once.
func TestCarrierThatDoesNotEnd(t *testing.T) {
	b, _ := connected(t)
	dev := b.onGPU.dev
	held, err := b.onGPU.rings.Make(fake.New(fake.Config{Manual: true}).Transport(), 4096)
	require.NoError(t, err)
	require.NotZero(t, mwiBufferClose(b.id))
	require.Zero(t, mwiBufferClose(b.id))
	held.Word(8).Store(1) // the carrier may write there
	held.Release()
	require.NoError(t, dev.Close())
}
