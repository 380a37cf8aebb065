package fabric

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport/fake"
)

// TestDisconnect: the callers that wait are told.
func TestDisconnect(t *testing.T) { require.True(t, receiversAreNotified(t, sound)) }

func receiversAreNotified(t *testing.T, m mutant) bool {
	w, err := openWorld(m, testenv.Seed(t), 2, fake.Config{}, nil)
	require.NoError(t, err)
	w.connect(t)
	ref := post(t, w.fabs[0], Request{Kind: ReceiveImm, Peer: 1})
	w.fabs[1].Disconnect(0)
	res, err := w.fabs[0].WaitReleased(ref, waitLimit(m))
	if errors.Is(err, op.ErrTimedOut) {
		return false
	}
	require.NoError(t, err)
	require.ErrorIs(t, res.Err, ErrEnded)
	w.close(t)
	return true
}

// TestClose is CO9: everything ends, its memory is free, and nothing is left:
// no goroutine, no descriptor, no queue pair, no region.
func TestClose(t *testing.T) {
	goroutinesBefore, before := runtime.NumGoroutine(), descriptors(t)
	for _, mode := range []Mode{Immediates, Messages} {
		w := newWorld(t, testenv.Seed(t), 2, fake.Config{Late: fake.LateUntilStatus}, func(c *Config) { c.Mode = mode })
		w.connect(t)
		f := w.fabs[0]
		a, idA, _ := memory(t, f, 64)
		_, _, atB := memory(t, w.fabs[1], 64)
		w.net.Inject(fake.Fault{Point: fake.AtWire, MinDelay: 50 * time.Millisecond, MaxDelay: 50 * time.Millisecond})
		refs := []op.Ref{post(t, f, Request{Kind: Read, Peer: 1, Region: idA, Bytes: 64, Remote: atB})}
		if mode == Messages {
			refs = append(refs, post(t, f, Request{Kind: Recv, Peer: 1, Region: idA, Bytes: 64}))
		} else {
			refs = append(refs, post(t, f, Request{Kind: ReceiveImm, Peer: 1}))
		}
		ended := make(chan error, len(refs))
		for _, r := range refs {
			go func() {
				res, err := f.Wait(r, inTime())
				if err == nil {
					err = res.Err
				}
				ended <- err
			}()
		}
		w.close(t)
		copy(a, make([]byte, 64)) // ours again
		for range refs {
			require.ErrorIs(t, <-ended, ErrClosed)
		}
		for _, r := range refs {
			res, err := f.Look(r)
			require.NoError(t, err)
			require.True(t, res.Released)
		}
		w.net.Scribble()
		require.Equal(t, make([]byte, 64), a)
		require.NoError(t, f.Close(inTime()))
		_, err := f.Post(&Request{Kind: Write, Peer: 1, Remote: atB})
		require.ErrorIs(t, err, ErrClosed)
		_, err = f.Register(a, 0)
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, f.Connect(1, inTime()), ErrClosed)
		require.ErrorIs(t, f.Deliver(1, nil), ErrClosed)
	}
	goroutines(t, goroutinesBefore)
	require.Equal(t, before, descriptors(t))
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}
