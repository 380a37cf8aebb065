package tcp

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// holder keeps a kernel's notices back.
type holder struct {
	p    *pair
	held atomic.Bool
}

// newHolder makes a pair that sends without copies. Its first side hears no
// notice before release.
func newHolder(t *testing.T, sizeBytes int) *holder {
	h := &holder{p: newPair(t, func(_ int, c *Config) { c.ZeroCopy, c.ZeroCopyBytes = ZeroCopyOn, 1 })}
	h.held.Store(true)
	h.p.tr[0].nextNotice = func(fd *sys.FD, n *sys.Notices) (sys.Notice, bool) {
		if h.held.Load() {
			return sys.Notice{}, false
		}
		return n.Next(fd)
	}
	h.p.memory(sizeBytes, transport.AccessWrite)
	h.p.connect(4, 4)
	if !h.p.ep[0].(*endpoint).conns[0].pin.on {
		h.p.close()
		testenv.Lacking(t, "zerocopy", "the kernel has no SO_ZEROCOPY")
	}
	return h
}

func (h *holder) release() {
	h.held.Store(false)
	ep := h.p.ep[0].(*endpoint)
	ep.io.Lock()
	for _, c := range append(ep.leaving, ep.conns...) {
		c.noticed.Store(true)
	}
	ep.io.Unlock()
	ep.t.schedule(ep)
}

func (h *holder) write(id uint64) {
	p := h.p
	p.send(0, transport.SendRequest{ID: id, Op: transport.OpWrite, Local: whole(p.mems[0]), Remote: p.mems[1].Remote()})
}

// carriedOut waits until the peer has said so of n requests.
func (h *holder) carriedOut(n uint64) {
	ep := h.p.ep[0].(*endpoint)
	h.p.until("acknowledgement", func() bool {
		ep.mu.Lock()
		defer ep.mu.Unlock()
		return ep.out.acked == n
	})
	for range 10 {
		h.p.turn()
	}
}

// TestCO4KernelStillReads: a request is not complete while the kernel may read its
// memory, even with all of its bytes at the peer.
func TestCO4KernelStillReads(t *testing.T) {
	h := newHolder(t, 700_000)
	p := h.p
	fillRandom(p.mems[0].Bytes(), 1)
	h.write(1)
	h.carriedOut(1)
	require.Equal(t, p.mems[0].Bytes(), p.mems[1].Bytes())
	require.Empty(t, p.got[0])
	require.ErrorIs(t, p.mems[0].Close(), transport.ErrBusy)
	h.release()
	require.Equal(t, transport.StatusOK, p.one(0).Status)
	require.NotZero(t, p.tr[0].counters.Pinned.Load())
	require.NotZero(t, p.tr[0].counters.PinnedCopied.Load(), "over the loopback device")
	p.close()
}

// TestCO4KernelStillReadsAfterTheEnd: the same when the endpoint ends. What was
// posted behind waits, too, because completions come in order.
func TestCO4KernelStillReadsAfterTheEnd(t *testing.T) {
	before := sys.Stats().OpenFDs
	h := newHolder(t, 700_000)
	p := h.p
	h.write(1)
	h.carriedOut(1)
	require.NoError(t, p.ep[0].Retire())
	h.write(2)
	for range 10 {
		p.turn()
	}
	require.Empty(t, p.got[0])
	require.ErrorIs(t, p.ep[0].Close(), transport.ErrBusy)
	h.release()
	for id, c := range p.take(0, 2) {
		require.EqualValues(t, id+1, c.ID)
		require.Equal(t, transport.StatusFlushed, c.Status)
	}
	p.close()
	require.Equal(t, before, sys.Stats().OpenFDs)
}

// TestRetireTakesPinnedBytesBack: the kernel releases what waits to be sent to
// a peer that reads nothing.
func TestRetireTakesPinnedBytesBack(t *testing.T) {
	x := newImpostorOf(t, Config{ZeroCopy: ZeroCopyOn, ZeroCopyBytes: 1, UnresponsiveTimeout: time.Hour})
	mem, free := mapped(t, 64<<20)
	defer free()
	big, err := x.tr.Register(mem, transport.AccessRead)
	require.NoError(t, err)
	_, err = x.ep.PostSend([]transport.SendRequest{
		{ID: 1, Op: transport.OpWrite, Local: whole(big), Remote: transport.RemoteRegion{SizeBytes: 1 << 30}},
	})
	require.NoError(t, err)
	full := func() bool {
		x.poll()
		x.ep.io.Lock()
		defer x.ep.io.Unlock()
		c := x.ep.conns[0]
		return !c.writable.Load() && (c.pin.first != c.pin.next || !c.pin.allowed)
	}
	require.Eventually(t, full, soon, time.Millisecond)
	require.NoError(t, x.ep.Retire())
	var done []transport.Completion
	require.Eventually(t, func() bool {
		got, _ := x.poll()
		done = append(done, got...)
		return len(done) == 3
	}, soon, time.Millisecond)
	require.NoError(t, big.Close())
	x.close()
}

// TestKernelKeepsNoMoreInPlace: then bytes are copied.
func TestKernelKeepsNoMoreInPlace(t *testing.T) {
	h := newHolder(t, 3<<20)
	h.held.Store(false)
	p, calls := h.p, 0
	p.tr[0].sendPinned = func(fd *sys.FD, v *sys.Vector) (int, error) {
		if calls++; calls%2 == 0 {
			return 0, sys.ErrNoBuffers
		}
		return sys.SendPinned(fd, v)
	}
	fillRandom(p.mems[0].Bytes(), 2)
	h.write(1)
	require.Equal(t, transport.StatusOK, p.one(0).Status)
	require.Equal(t, p.mems[0].Bytes(), p.mems[1].Bytes())
	require.NotZero(t, p.tr[0].counters.NotPinned.Load())
	p.close()
}

// TestTooManyPinned: the table of calls is bounded; what comes behind is copied.
func TestTooManyPinned(t *testing.T) {
	h := newHolder(t, 3<<20)
	p := h.p
	pin := &p.ep[0].(*endpoint).conns[0].pin
	p.tr[0].sendPinned = func(fd *sys.FD, v *sys.Vector) (int, error) {
		pin.next += numPinned - 1 // as if so many had been sent before
		for i := range pin.calls {
			pin.calls[i] = 1
		}
		p.ep[0].(*endpoint).out.ops[0].pins = numPinned - 1
		return sys.SendPinned(fd, v)
	}
	h.write(1)
	h.carriedOut(1)
	require.EqualValues(t, 1, p.tr[0].counters.Pinned.Load())
	require.NotZero(t, p.tr[0].counters.NotPinned.Load())
	require.Equal(t, p.mems[0].Bytes(), p.mems[1].Bytes())
	for call := range uint32(numPinned - 1) {
		p.ep[0].(*endpoint).mu.Lock()
		p.ep[0].(*endpoint).conns[0].unpin(call)
		p.ep[0].(*endpoint).mu.Unlock()
	}
	p.tr[0].nextNotice = func(fd *sys.FD, n *sys.Notices) (sys.Notice, bool) {
		notice, ok := n.Next(fd) // the numbers are the kernel's
		return sys.Notice{First: numPinned - 1, Last: numPinned - 1, Copied: notice.Copied}, ok
	}
	h.release()
	require.Equal(t, transport.StatusOK, p.one(0).Status)
	p.close()
}

func TestBrokenWhilePinned(t *testing.T) {
	h := newHolder(t, 3<<20)
	p, calls := h.p, 0
	p.tr[0].sendPinned = func(fd *sys.FD, v *sys.Vector) (int, error) {
		if calls++; calls == 3 {
			return 0, errors.New("cable cut")
		}
		return sys.SendPinned(fd, v)
	}
	h.write(1)
	p.until("end", func() bool { return p.ep[0].State() == transport.StateError })
	require.Empty(t, p.got[0])
	h.release()
	require.Equal(t, transport.StatusUnreachable, p.one(0).Status)
	p.close()
}

// TestAutoStops: the default does nothing over the loopback device, and stops
// where the kernel copies all the same.
func TestAutoStops(t *testing.T) {
	p := newPair(t, nil)
	p.memory(1<<20, transport.AccessWrite)
	p.connect(4, 4)
	require.False(t, p.ep[0].(*endpoint).conns[0].pin.allowed)
	p.close()

	h := newHolder(t, 1<<20)
	h.held.Store(false)
	pin := &h.p.ep[0].(*endpoint).conns[0].pin
	pin.auto = true // as with a peer on another host
	h.write(1)
	require.Equal(t, transport.StatusOK, h.p.one(0).Status)
	require.False(t, pin.on)
	was := h.p.tr[0].counters.Pinned.Load()
	require.NotZero(t, was)
	h.write(2)
	require.Equal(t, transport.StatusOK, h.p.one(0).Status)
	require.Equal(t, was, h.p.tr[0].counters.Pinned.Load())
	h.p.close()
}

// TestOffCopies also under encryption, where what is sent is a copy anyway.
func TestOffCopies(t *testing.T) {
	for _, c := range []Config{
		{ZeroCopy: ZeroCopyOff, ZeroCopyBytes: 1},
		{ZeroCopy: ZeroCopyOn, ZeroCopyBytes: 1, Protection: wire.ProtectEncrypt},
		{ZeroCopy: ZeroCopyOn, ZeroCopyBytes: 2 << 20},
	} {
		p := newPair(t, func(_ int, to *Config) { c.Keyring = to.Keyring; *to = c })
		p.memory(1<<20, transport.AccessWrite)
		p.connect(4, 4)
		p.send(0, transport.SendRequest{Op: transport.OpWrite, Local: whole(p.mems[0]), Remote: p.mems[1].Remote()})
		require.Equal(t, transport.StatusOK, p.one(0).Status)
		require.Zero(t, p.tr[0].counters.Pinned.Load())
		p.close()
	}
}
