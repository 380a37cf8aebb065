package verbs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/verbs"
)

// awaitEvent waits for an event of a kind, and lets EventOther pass, and the
// failures of endpoints.
func awaitEvent(t *testing.T, tr *verbs.Transport, kind transport.EventKind) transport.Event {
	t.Helper()
	var found transport.Event
	eventually(t, "an event", func() bool {
		var events [1]transport.Event
		for tr.PollEvents(events[:]) == 1 {
			t.Logf("%+v", events[0])
			if events[0].Kind == kind {
				found = events[0]
				return true
			}
			require.Contains(t, []transport.EventKind{transport.EventOther, transport.EventEndpointFailed}, events[0].Kind)
		}
		require.NoError(t, tr.Wait(time.Second))
		return false
	})
	return found
}

// TestES15PortGoesDownAndUp unplugs the network, as it were.
func TestES15PortGoesDownAndUp(t *testing.T) {
	tr := open(t, verbs.Config{Device: otherDevice})
	a, b := newEndpoint(t, tr), newEndpoint(t, tr)
	command(t, "ip", "link", "set", otherNet, "down")
	defer command(t, "ip", "link", "set", otherNet, "up")
	down := awaitEvent(t, tr, transport.EventDeviceDown)
	require.Contains(t, down.Detail, "port is down")
	require.Equal(t, transport.StateError, a.State())
	require.Equal(t, transport.StateError, b.State())
	_, err := tr.NewEndpoint(spec)
	require.ErrorIs(t, err, transport.ErrNoResource)
	require.ErrorContains(t, err, "is down")
	_, err = verbs.New(verbs.Config{Device: otherDevice})
	require.ErrorIs(t, err, transport.ErrNotSupported)
	require.ErrorContains(t, err, "no active port")

	command(t, "ip", "link", "set", otherNet, "up")
	awaitEvent(t, tr, transport.EventDeviceUp)
	c, d := newEndpoint(t, tr), newEndpoint(t, tr)
	require.NoError(t, c.Connect(d.Local(), time.Now().Add(testTimeout)))
	require.NoError(t, d.Connect(c.Local(), time.Now().Add(testTimeout)))
	_, err = d.PostRecv([]transport.RecvRequest{{ID: 1}})
	require.NoError(t, err)
	_, err = c.PostSend([]transport.SendRequest{{ID: 2, Op: transport.OpSend}})
	require.NoError(t, err)
	var done [2]transport.Completion
	for n := 0; n < 2; {
		k, err := tr.Poll(done[n:])
		require.NoError(t, err)
		n += k
	}
	require.Equal(t, transport.StatusOK, done[0].Status)
	require.Equal(t, transport.StatusOK, done[1].Status)
	finish(t, tr, a, b, c, d)
	require.NoError(t, tr.Close())
}
