package verbs

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/group/cudaring"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/link"
)

// inDevice is one rank with rings in device memory.
type inDevice struct {
	set   *link.Set
	link  *link.Link
	rings []*cudaring.Ring // receive, send
}

func newInDevice(t *testing.T, tr *Transport, dev *cuda.Device, rank int) *inDevice {
	e, cfg := &inDevice{}, link.Config{RingBytes: 1 << 12, NumMessages: 4}
	maker := cudaring.For(dev, tr)
	require.NoError(t, maker.Why())
	memory := func(n int64) (domain.Segment, error) {
		r, err := maker.Make(n)
		if err == nil {
			e.rings = append(e.rings, r)
		}
		return r, err
	}
	poll := link.NewPoller(tr, func() {})
	var err error
	e.link, err = link.NewLink(poll, 1-rank, rand.Uint32(), cfg, memory)
	require.NoError(t, err)
	e.set = link.NewSet(cfg, memory, func(int) error { return nil }, 0)
	t.Cleanup(func() {
		require.NoError(t, e.link.Close(time.Now().Add(testTimeout)))
		require.NoError(t, poll.Close())
		for _, r := range e.rings {
			require.NoError(t, r.Close())
		}
	})
	return e
}

func soon(t *testing.T, f func() bool) {
	t.Helper()
	for begin := time.Now(); !f(); time.Sleep(50 * time.Microsecond) {
		if time.Since(begin) > testTimeout {
			t.Fatal("it never comes")
		}
	}
}

// TestLinkInDeviceMemory: a link with rings that are dma-bufs of a device carries what a
// kernel writes there, and the processor touches none of it.
func TestLinkInDeviceMemory(t *testing.T) {
	drv := cudatest.Emulate(t)
	dev, err := cuda.Open(drv.Library, 0, drv.Code(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	f := newFakes(t, 2)
	f.moves = true
	var ends [2]*inDevice
	for r := range ends {
		ends[r] = newInDevice(t, f.open(Config{Device: fmt.Sprint("fake", r), SendDepth: 16, RecvDepth: 16}), dev, r)
	}
	require.Len(t, f.dmabufs, 4)
	failed := make(chan error, 1)
	offers := [2][]byte{ends[0].link.Offer(), ends[1].link.Offer()}
	go func() { failed <- ends[0].link.Connect(offers[1], time.Now().Add(testTimeout)) }()
	require.NoError(t, ends[1].link.Connect(offers[0], time.Now().Add(testTimeout)))
	require.NoError(t, <-failed)
	ends[0].set.Put([]*link.Link{nil, ends[0].link})
	ends[1].set.Put([]*link.Link{ends[1].link})
	for i := range 20 { // some times round the ring
		from, to := ends[i%2], ends[1-i%2]
		const n = 900
		off := int64(0)
		soon(t, func() bool {
			var err error
			off, err = from.set.ReserveAt(1-i%2, n)
			return err == nil
		})
		for j := range cudatest.Slice[byte](from.rings[1].Address()+uint64(off), n) {
			cudatest.Slice[byte](from.rings[1].Address()+uint64(off), n)[j] = byte(i + j)
		}
		require.NoError(t, from.set.Post(1-i%2, n))
		at, size := int64(0), int64(0)
		soon(t, func() bool {
			at, size = to.set.NextAt(i % 2)
			return size > 0
		})
		require.EqualValues(t, n, size)
		for j, v := range cudatest.Slice[byte](to.rings[0].Address()+uint64(at), n) {
			if v != byte(i+j) {
				t.Fatalf("byte %d of message %d is %d", j, i, v)
			}
		}
		to.set.Release(i % 2)
	}
}
