package tcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
)

// quietTransport is one without a standby, and with a waiter that spins long.
func quietTransport(t *testing.T) *Transport {
	p := newPair(t, nil)
	t.Cleanup(p.close)
	tr := p.tr[0]
	tr.standby.Enter()
	t.Cleanup(tr.standby.Leave)
	require.NoError(t, tr.Wait(0)) // what opening has left
	tr.waiter.spinFor = time.Minute
	return tr
}

// TestSpin: it ends at whatever a sleep would end at, and after its time.
func TestSpin(t *testing.T) {
	tr := quietTransport(t)
	require.False(t, tr.spin(&tr.waiter, time.Now().Add(-2*time.Minute), -1), "after its time")
	require.False(t, tr.spin(&tr.waiter, time.Now(), 0), "no time at all")

	tr.woken.Store(true)
	require.True(t, tr.spin(&tr.waiter, time.Now(), -1), "there is news")
	tr.woken.Store(false)

	bell, err := sys.NewEvent()
	require.NoError(t, err)
	defer bell.Close()
	require.NoError(t, tr.poller.AddLevel(bell, 0))
	require.False(t, tr.poller.IsReady())
	require.NoError(t, sys.Signal(bell))
	require.True(t, tr.spin(&tr.waiter, time.Now(), -1), "a socket is ready")
	require.NoError(t, tr.poller.Remove(bell))
}

// TestSpinsOnlyAfterAShortWait: a transport where nothing happens sleeps at once.
func TestSpinsOnlyAfterAShortWait(t *testing.T) {
	tr := quietTransport(t)
	s := &tr.waiter
	s.spins = false
	ended, asleep := make(chan error), make(chan struct{})
	go func() {
		var err error
		for seen := false; !seen && err == nil; { // it may end early, by a signal
			s.spins = false
			err = tr.sleep(s, time.Minute)
			select {
			case <-asleep:
				seen = true
			default:
			}
		}
		ended <- err
	}()
	require.Eventually(t, s.asleep.Load, 30*time.Second, time.Millisecond)
	close(asleep)
	s.ring()
	require.NoError(t, <-ended)
	require.True(t, s.spins, "it was short")

	s.spinFor = time.Millisecond
	require.NoError(t, tr.sleep(s, 5*time.Millisecond))
	require.False(t, s.spins, "it was long")
}
