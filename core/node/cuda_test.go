package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/shm"
)

const (
	pushes = "cuCtxPushCurrent_v2"
	soon   = time.Minute

	outOfMemory = 2 // one of the driver's error codes
)

var localKeys = []byte("1 " + strings.Repeat("5e17", 16))

// configOnCUDA is that of one of several ranks on the emulated device.
func configOnCUDA(t *testing.T, rank, ranks int) Config {
	n, err := layout.SizeHint(layout.Shape{MaxTokens: 4, Hidden: 128, NumExperts: int64(ranks), NumRanks: int64(ranks)}, 2)
	require.NoError(t, err)
	return Config{
		Rank: rank, NumRanks: ranks, Config: ep.Config{NumBytes: n}, Hosts: Hosts{Listen: "127.0.0.1", Keys: localKeys},
		CUDA: &CUDA{Driver: cudatest.Build{}.Library(t), Code: []byte("kernels\x00")},
	}
}

// newOnCUDA makes such a rank, not connected.
func newOnCUDA(t *testing.T, rank, ranks int, change func(*Config)) *Buffer {
	cfg := configOnCUDA(t, rank, ranks)
	change(&cfg)
	b, err := New(cfg)
	require.NoError(t, err)
	return b
}

func onDevice(b *Buffer) *onCUDA { return b.engine.(*onCUDA) }

// caller is what a caller of a buffer owns: two streams and memory.
type caller struct {
	b       *Buffer
	streams [2]uint64
	memory  uint64
}

func newCaller(t *testing.T, emu *cudatest.Driver, b *Buffer) *caller {
	c := &caller{b: b}
	require.NoError(t, onDevice(b).dev.Do(func() error {
		for i := range c.streams {
			s, err := emu.StreamCreate(0)
			if err != nil {
				return err
			}
			c.streams[i] = uint64(s)
		}
		p, err := emu.MemAlloc(1 << 20)
		c.memory = uint64(p)
		return err
	}))
	return c
}

// end destroys one of the streams, once it is idle, and the memory together with the last
// stream.
func (c *caller) end(t *testing.T, emu *cudatest.Driver, stream int) {
	s := c.streams[stream]
	c.streams[stream] = 0
	require.NoError(t, onDevice(c.b).dev.Do(func() error {
		err := errors.Join(with(emu.StreamSynchronize, s), with(emu.StreamDestroy, s))
		if c.streams == [2]uint64{} {
			err = errors.Join(err, with(emu.MemFree, c.memory))
		}
		return err
	}))
}

// with calls a driver function that takes one handle.
func with[T ~uint64 | ~uintptr](f func(T) error, handle uint64) error { return f(T(handle)) }

// dispatch and combine have no tokens.
func (c *caller) dispatch(t *testing.T, stream int, until ep.Phase) (Handle, Operation) {
	var res Result
	o, err := c.b.Dispatch(&ep.DispatchArgs{
		Hidden: 128, TopK: 1, MaxTokens: 4, NumExperts: 1, Timeout: -1, Device: &ep.DeviceDispatch{Stream: c.streams[stream]},
	}, &res, until, -1)
	require.NoError(t, err)
	return res.Handle, o
}

func (c *caller) combine(t *testing.T, h Handle, stream int, until ep.Phase) Operation {
	o, err := c.b.Combine(h, &ep.CombineArgs{
		TopK: 1, Timeout: -1, Device: &ep.DeviceCombine{X: c.memory, Stream: c.streams[stream]},
	}, until, -1)
	require.NoError(t, err)
	return o
}

func connected(t *testing.T) (*Buffer, *cudatest.Driver) {
	emu := cudatest.Emulate(t)
	b := newOnCUDA(t, 0, 1, func(*Config) {})
	require.NoError(t, b.Connect([][]byte{b.Metadata()}, soon))
	return b, emu
}

func (b *Buffer) combineX(h Handle) error {
	_, err := b.CombineBuffer(h, Stream{}, -1)
	return err
}

// TestReleasedHandleHasNoCombineBuffer: this holds for every way of releasing it.
func TestReleasedHandleHasNoCombineBuffer(t *testing.T) {
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	first, _ := c.dispatch(t, 0, ep.PhaseDone)
	require.NoError(t, b.combineX(first))
	require.NoError(t, b.Release(first, Stream{}))
	require.ErrorIs(t, b.combineX(first), ep.ErrStaleHandle)
	second, _ := c.dispatch(t, 0, ep.PhaseDone)
	c.combine(t, second, 0, ep.PhaseDone)
	require.NoError(t, b.combineX(second))
	c.dispatch(t, 0, ep.PhaseDone)
	require.ErrorIs(t, b.combineX(second), ep.ErrStaleHandle)
	c.end(t, emu, 0)
	c.end(t, emu, 1)
	require.NoError(t, b.Close())
}

// TestReleaseFollowsTheLatestCall: without its own stream a release goes to the stream
// that used the handle last. The stream of the dispatch may be far ahead, or gone.
func TestReleaseFollowsTheLatestCall(t *testing.T) {
	b, emu := connected(t)
	c := newCaller(t, emu, b)
	handle, _ := c.dispatch(t, 0, ep.PhaseDone)
	c.end(t, emu, 0)
	c.combine(t, handle, 1, ep.PhaseDone)
	require.NoError(t, b.Release(handle, Stream{}))
	c.end(t, emu, 1)
	require.NoError(t, onDevice(b).buffer.Load().Err())
	require.NoError(t, b.Close())
}

// TestLatestUseOfASlotStays: of two dispatches that threads launch at once, the later one
// has the slot, whichever thread goes on first.
func TestLatestUseOfASlotStays(t *testing.T) {
	g := &onCUDA{}
	g.use(&cuda.Result{Handle: 2, CombineX: 22}, 12)
	g.use(&cuda.Result{Handle: 1, CombineX: 21}, 11)
	g.use(&cuda.Result{Handle: 1, Slot: 1}, 11)
	require.True(t, g.useOf(2, func(s *slotUse) { require.Equal(t, slotUse{handle: 2, stream: 12, combineX: 22}, *s) }))
	g.forget()
	g.use(&cuda.Result{Handle: 1, CombineX: 31}, 13)
	require.True(t, g.useOf(1, func(s *slotUse) { require.Equal(t, slotUse{handle: 1, stream: 13, combineX: 31}, *s) }))
	require.False(t, g.useOf(2, func(*slotUse) {}))
}

// TestCloseIsRepeated: after a close that fails, at any call of the driver, the buffer
// can only be closed again.
func TestCloseIsRepeated(t *testing.T) {
	failed := 0
	for n, left := 0, 1; left > 0; n++ {
		b, emu := connected(t)
		before := emu.Calls(pushes)
		emu.FailAfter(pushes, n, outOfMemory)
		failure := b.Close()
		left = emu.Calls(pushes) - before - n
		emu.FailAfter(pushes, 1<<30, outOfMemory)
		if failure != nil {
			failed++
			for _, call := range []func() error{b.Update, b.Install, b.callError} {
				require.ErrorIs(t, call(), ep.ErrClosed)
			}
			require.NoError(t, b.Close())
		}
		require.NoError(t, b.Close(), "nothing is left to close")
		require.Nil(t, onDevice(b).dev)
	}
	require.Positive(t, failed)
}

// callError returns the error that a call would return now. The core may be gone when only
// the device is left.
func (b *Buffer) callError() error {
	if core := onDevice(b).buffer.Load(); core != nil {
		return core.Err()
	}
	return b.noCore()
}

// TestJoinThatCannotBeUndone: a core that was not connected and could not be freed is
// freed before another core is made.
func TestJoinThatCannotBeUndone(t *testing.T) {
	emu := cudatest.Emulate(t)
	b := newOnCUDA(t, 0, 2, func(*Config) {})
	for n := 0; ; n++ {
		require.Less(t, n, 50)
		before := emu.Calls(pushes)
		require.ErrorContains(t, failToJoin(b), "memory of rank 1: ")
		require.True(t, onDevice(b).buffer.Load() == nil)
		require.NoError(t, b.Update())
		emu.FailAfter(pushes, emu.Calls(pushes)-before-1, outOfMemory)
		err := failToJoin(b)
		emu.FailAfter(pushes, 1<<30, outOfMemory)
		kept := onDevice(b).buffer.Load() != nil // otherwise it made fewer calls of the device this time
		if kept {
			require.ErrorIs(t, err, device.ErrNoMemory)
		}
		require.NoError(t, b.Update())
		require.True(t, onDevice(b).buffer.Load() == nil)
		if kept {
			break
		}
	}
	require.ErrorContains(t, failToJoin(b), "memory of rank 1: ")
	require.NoError(t, b.Close())
}

// TestCloseWhileConnecting: a connect ends when another thread closes the buffer, at any
// point of its work on the device. The close frees what the connect made.
func TestCloseWhileConnecting(t *testing.T) {
	emu := cudatest.Emulate(t)
	for n := range 8 {
		b := newOnCUDA(t, 0, 2, func(*Config) {})
		before := emu.Calls(pushes)
		ended := make(chan error, 1)
		go func() { ended <- joinWith(b, time.Hour, func(*multihost.Domain) error { return nil }) }()
		require.Eventually(t, func() bool { return emu.Calls(pushes) >= before+min(n, 4) }, soon, 50*time.Microsecond)
		require.NoError(t, b.Close())
		require.ErrorIs(t, <-ended, ep.ErrClosed)
		require.Nil(t, onDevice(b).dev)
	}
}

// failToJoin makes rank 1 come to the rendezvous and offer a file that is not a memory
// descriptor.
func failToJoin(b *Buffer) error {
	return joinWith(b, soon, func(dom *multihost.Domain) error {
		_, slab, err := dom.AddSlab(4096)
		if err == nil {
			slab.Word(0).Store(7)
		}
		return err
	})
}

// joinWith makes rank 1 come to the rendezvous and then run a function, while rank 0
// connects.
func joinWith(b *Buffer, timeout time.Duration, then func(*multihost.Domain) error) error {
	params, err := b.engine.params(ep.Standing{})
	if err != nil {
		return err
	}
	theirs := b.open
	theirs.Shm = shm.Config{Rank: 1, NumRanks: 2, ControlBytes: layout.ControlBytes, ABIVersion: ABIVersion, Params: params}
	l, err := multihost.Open(theirs)
	if err != nil {
		return err
	}
	all := [][]byte{b.Metadata(), l.Metadata()}
	other := make(chan error, 1)
	var dom *multihost.Domain
	go func() {
		var err error
		if dom, err = l.Connect(all, soon); err == nil {
			err = then(dom)
		}
		other <- err
	}()
	err = b.Connect(all, timeout)
	if failed := <-other; failed != nil && !errors.Is(err, ep.ErrClosed) { // otherwise rank 1 may have met no rank
		return fmt.Errorf("rank 1: %w", failed)
	}
	if dom != nil {
		if closed := dom.Close(); closed != nil {
			return fmt.Errorf("rank 1: %w", closed)
		}
	}
	return err
}
