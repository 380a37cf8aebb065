package cudaring_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/cudaring"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// TestRings: each carrier has rings of its kind, and the device's end waits for them.
func TestRings(t *testing.T) {
	_, dev := open(t)
	s := cudaring.Of(dev)
	host, device := fake.New(fake.Config{Manual: true}).Transport(), &nic{}
	require.Empty(t, s.Where("fake"))
	var all []domain.Segment
	for _, carrier := range []transport.Transport{host, device, host} {
		r, err := s.Make(carrier, 4096)
		require.NoError(t, err)
		all = append(all, r)
	}
	require.Equal(t, "pinned host memory: fake registers no device memory", s.Where("fake"))
	require.Equal(t, "memory of the device", s.Where("nic"))
	require.NotNil(t, all[0].Bytes(0, 8))
	require.Nil(t, all[1].Bytes(0, 8))
	require.ErrorIs(t, s.Close(), cudaring.ErrInUse)
	require.ErrorContains(t, s.Close(), "the memory of 3 rings")
	for _, r := range all {
		r.Release()
	}
	require.NoError(t, s.Close())
	_, err := s.Make(host, 0)
	require.ErrorContains(t, err, "a ring of 0 bytes")
	require.NoError(t, s.Close())
}

// TestRingsOfAnotherCarrier: one of the same name is asked again what it can.
func TestRingsOfAnotherCarrier(t *testing.T) {
	_, dev := open(t)
	s := cudaring.Of(dev)
	for _, n := range []*nic{{why: libcuda.ErrNotSupported}, {}} {
		r, err := s.Make(n, 4096)
		require.NoError(t, err)
		require.Equal(t, n.why == nil, r.Bytes(0, 8) == nil)
		r.Release()
	}
	require.NoError(t, s.Close())
}

const (
	pushes    = "cuCtxPushCurrent_v2"
	frees     = "cuMemFreeHost"
	describes = "cuMemGetHandleForAddressRange"
)

// TestRingsAreFreedLater: not when their link is done with them, at an unknown time, but
// when the device is known to do nothing.
func TestRingsAreFreedLater(t *testing.T) {
	drv, dev := open(t)
	s := cudaring.Of(dev)
	old, err := s.Make(fake.New(fake.Config{Manual: true}).Transport(), 4096)
	require.NoError(t, err)
	before := drv.Calls(frees)
	old.Release()
	require.Equal(t, before, drv.Calls(frees))
	used, err := s.Make(fake.New(fake.Config{Manual: true}).Transport(), 4096)
	require.NoError(t, err)
	require.NoError(t, s.Free())
	require.Equal(t, before+1, drv.Calls(frees))
	used.Word(8).Store(1)
	require.ErrorIs(t, s.Close(), cudaring.ErrInUse)
	used.Release()
	require.Equal(t, before+2, drv.Calls(frees))
	require.NoError(t, s.Close())
}

// TestRingsThatWereNotFreed: what could not be freed is freed at the next call; what
// the driver has refused to free it says once.
func TestRingsThatWereNotFreed(t *testing.T) {
	drv, dev := open(t)
	s := cudaring.Of(dev)
	for _, carrier := range []transport.Transport{fake.New(fake.Config{Manual: true}).Transport(), &nic{}} {
		r, err := s.Make(carrier, 4096)
		require.NoError(t, err)
		r.Release()
		drv.FailAfter(pushes, 0, libcuda.ErrOutOfMemory)
		require.ErrorIs(t, s.Free(), libcuda.ErrOutOfMemory)
		require.NoError(t, s.Free())
	}
	r, err := s.Make(fake.New(fake.Config{Manual: true}).Transport(), 4096)
	require.NoError(t, err)
	memory := uintptr(r.(*cudaring.Ring).Address()) // the emulator's device sees it at the same place
	drv.FailAfter(frees, 0, libcuda.ErrOutOfMemory)
	r.Release()
	require.ErrorIs(t, s.Close(), libcuda.ErrOutOfMemory)
	require.NoError(t, s.Close())
	require.NoError(t, dev.Do(func() error { return drv.HostFree(memory) }))
}

// TestRingsRefusedLate: what the driver refuses to free after Close is said by the next
// one.
func TestRingsRefusedLate(t *testing.T) {
	drv, dev := open(t)
	s := cudaring.Of(dev)
	r, err := s.Make(fake.New(fake.Config{Manual: true}).Transport(), 4096)
	require.NoError(t, err)
	memory := uintptr(r.(*cudaring.Ring).Address())
	require.ErrorIs(t, s.Close(), cudaring.ErrInUse)
	drv.FailAfter(frees, 0, libcuda.ErrOutOfMemory)
	r.Release()
	require.ErrorIs(t, s.Close(), libcuda.ErrOutOfMemory)
	require.NoError(t, s.Close())
	require.NoError(t, dev.Do(func() error { return drv.HostFree(memory) }))
}

// TestRingsThatWereNotMade: what was allocated for a ring that could not be made, or to
// try whether one can be, and could not be freed at once, is freed at the next call.
func TestRingsThatWereNotMade(t *testing.T) {
	drv, dev := open(t)
	for name, tried := range map[string]bool{"made": true, "tried": false} {
		unfreed := 0
		for n, more := 0, true; more; n++ {
			s, carrier := cudaring.Of(dev), &nic{}
			if tried { // and so it is not tried again
				r, err := s.Make(carrier, 4096)
				require.NoError(t, err)
				r.Release()
				require.NoError(t, s.Free())
			}
			before := drv.Calls(pushes)
			drv.FailAfter(describes, 0, libcuda.ErrOutOfMemory)
			drv.FailAfter(pushes, n, libcuda.ErrOutOfMemory)
			r, err := s.Make(carrier, 4096)
			if s.Left() > 0 {
				unfreed++
			}
			if err == nil {
				r.Release()
			}
			more = drv.Calls(pushes) > before+n
			drv.FailAfter(pushes, 1<<30, libcuda.ErrOutOfMemory)
			drv.FailAfter(describes, 1<<30, libcuda.ErrOutOfMemory)
			require.NoError(t, s.Close())
			require.Zero(t, s.Left())
		}
		require.Positive(t, unfreed, name)
	}
}
