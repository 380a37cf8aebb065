package fabric

import (
	"runtime/debug"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport/fake"
)

// withoutBackground has no goroutine poll a fabric but the callers that wait.
func withoutBackground(tb testing.TB, f *Fabric) {
	tb.Helper()
	f.poller.watch.Enter()
	tb.Cleanup(f.poller.watch.Leave)
	f.cfg.Transport.Wake()
	require.Eventually(tb, func() bool { return len(f.poller.free) == 1 }, soon, time.Millisecond)
}

// pair is two connected fabrics, the first without a background, and a region
// of each.
func pair(t *testing.T) (w *world, write Request) {
	w = newWorld(t, testenv.Seed(t), 2, fake.Config{}, nil)
	w.connect(t)
	_, id, _ := memory(t, w.fabs[0], 8)
	_, _, at := memory(t, w.fabs[1], 8)
	withoutBackground(t, w.fabs[0])
	return w, Request{Kind: Write, Peer: 1, Region: id, Bytes: 8, Remote: at}
}

// TestWhoWaitsPolls: no other goroutine is needed, and the right to poll goes on to a
// caller that still waits.
func TestWhoWaitsPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, write := pair(t)
		defer w.close(t)
		f := w.fabs[0]
		done(t, f, post(t, f, write))
		ended := make(chan error)
		refs := make([]op.Ref, 4)
		for i := range refs {
			after := time.Duration(1+i) * time.Second
			delayed := w.net.Inject(fake.Fault{Point: fake.AtWire, MinDelay: after, MaxDelay: after})
			refs[i] = post(t, f, write)
			delayed.Remove()
			go func() {
				_, err := f.WaitReleased(refs[i], inTime())
				ended <- err
			}()
			synctest.Wait()
		}
		for range refs {
			require.NoError(t, <-ended)
		}
		for _, r := range refs {
			require.NoError(t, f.Drop(r))
		}
		require.Len(t, f.poller.free, 1)
	})
}

// TestCancelReachesWhoPolls (CO4): a caller that sleeps in the carrier is told at once
// when another one ends its operation, and so is a caller that waits behind it.
func TestCancelReachesWhoPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, write := pair(t)
		defer w.close(t)
		f := w.fabs[0]
		delayed := w.net.Inject(fake.Fault{Point: fake.AtWire, MinDelay: time.Second, MaxDelay: time.Second})
		refs := []op.Ref{post(t, f, write), post(t, f, write)}
		ended := make(chan op.Result)
		for _, r := range refs {
			go func() {
				res, _ := f.Wait(r, inTime())
				ended <- res
			}()
			synctest.Wait()
		}
		begin := time.Now()
		for _, r := range refs {
			_, err := f.Cancel(r)
			require.NoError(t, err)
			require.Equal(t, op.Cancelled, (<-ended).State)
		}
		require.Zero(t, time.Since(begin))
		delayed.Remove()
		for _, r := range refs {
			failed(t, f, r, op.ErrCancelled)
		}
	})
}

// TestCloseWhileSomebodyPolls (CO9): the poller's operation ends, and it polls no more.
func TestCloseWhileSomebodyPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, write := pair(t)
		f := w.fabs[0]
		w.net.Inject(fake.Fault{Point: fake.AtWire, MinDelay: time.Second, MaxDelay: time.Second})
		ended := make(chan op.Result)
		for range 3 {
			ref := post(t, f, write)
			go func() {
				res, _ := f.WaitReleased(ref, inTime())
				ended <- res
			}()
			synctest.Wait()
		}
		// Time stands still in a bubble after its test has returned: it waits for the
		// close.
		var closing sync.WaitGroup
		closing.Go(func() { w.close(t) })
		for range 3 {
			require.ErrorIs(t, (<-ended).Err, ErrClosed)
		}
		closing.Wait()
	})
}

// TestArrivedAndNotPolled: an immediate that the sender knows has arrived is there for a
// receiver, also when the connection is gone and no caller has polled.
func TestArrivedAndNotPolled(t *testing.T) {
	w, _ := pair(t)
	defer w.close(t)
	f := w.fabs[0]
	_, _, at := memory(t, f, 8)
	done(t, w.fabs[1], post(t, w.fabs[1], Request{Kind: WriteImm, Peer: 0, Remote: at, Imm: 11}))
	f.Disconnect(1)
	gone(t, f)
	require.EqualValues(t, 11, done(t, f, post(t, f, Request{Kind: ReceiveImm, Peer: 1})).Imm)
}

// gone waits until a fabric knows that its connection to peer 1 has ended.
func gone(t *testing.T, f *Fabric) {
	t.Helper()
	p, err := f.peerOf(1)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return p.live.Load() == nil }, soon, time.Millisecond)
}

// TestWaitDoesNotAllocate: of a caller that polls itself.
func TestWaitDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	w := tcpWorld(t, Immediates)
	w.carryAll()
	_, id, _ := memory(t, w.fabs[0], 8)
	_, _, at := memory(t, w.fabs[1], 8)
	w.connect(t)
	f, deadline := w.fabs[0], inTime()
	withoutBackground(t, f)
	one := func() {
		ref, err := f.Post(&Request{Kind: Write, Peer: 1, Region: id, Bytes: 8, Remote: at})
		if err == nil {
			_, err = f.WaitReleased(ref, deadline)
		}
		if err == nil {
			err = f.Drop(ref)
		}
		if err != nil {
			panic(err)
		}
	}
	one()
	require.Zero(t, testing.AllocsPerRun(200, one))
	w.closeFabrics(t)
}
