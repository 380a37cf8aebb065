package verbs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/verbs"
)

// groupPair connects two endpoints of a group and moves bytes between them, with
// the key that the region has on their port.
func groupPair(t *testing.T, g *verbs.Group, region transport.Region, device string) (a, b transport.Endpoint) {
	t.Helper()
	a, b = newEndpoint(t, g), newEndpoint(t, g)
	for _, e := range []transport.Endpoint{a, b} {
		require.Equal(t, device, e.(interface{ Device() string }).Device())
	}
	require.NoError(t, a.Connect(b.Local(), time.Now().Add(testTimeout)))
	require.NoError(t, b.Connect(a.Local(), time.Now().Add(testTimeout)))
	copy(region.Bytes(), device)
	clear(region.Bytes()[100:200])
	_, err := a.PostSend([]transport.SendRequest{{
		ID: 1, Op: transport.OpWrite, Local: []transport.Piece{{Region: region, Bytes: 100}},
		Remote: transport.RemoteFor(region, b), RemoteOff: 100,
	}})
	require.NoError(t, err)
	var done [1]transport.Completion
	eventually(t, "the write ends", func() bool {
		n, err := g.Poll(done[:])
		require.NoError(t, err)
		return n == 1
	})
	require.Equal(t, transport.StatusOK, done[0].Status)
	require.Equal(t, region.Bytes()[:100], region.Bytes()[100:200])
	return a, b
}

// TestGroupFailsOver unplugs the network of one device, as it were: endpoints
// on it fail, others are made on the second one, and again on the first when
// it is back.
func TestGroupFailsOver(t *testing.T) {
	needMachine(t)
	g, err := verbs.NewGroup(verbs.Config{NumEndpoints: 8, Turn: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	region := register(t, g, 4096)
	require.Equal(t, otherDevice+"/1", g.Device(), "the second turn")
	a, b := groupPair(t, g, region, otherDevice+"/1")

	command(t, "ip", "link", "set", otherNet, "down")
	defer command(t, "ip", "link", "set", otherNet, "up")
	var events [8]transport.Event
	eventually(t, "both endpoints have failed", func() bool {
		g.PollEvents(events[:])
		return a.State() == transport.StateError && b.State() == transport.StateError
	})
	c, d := groupPair(t, g, region, device+"/1")
	require.Contains(t, g.Remarks(), otherDevice+"/1 is not usable (1 failures): "+otherDevice+"/1: port is down")

	command(t, "ip", "link", "set", otherNet, "up")
	eventually(t, "the port is back", func() bool {
		g.PollEvents(events[:])
		return g.Device() == otherDevice+"/1"
	})
	e, f := groupPair(t, g, region, otherDevice+"/1")
	require.Equal(t, transport.StateReady, c.State())
	finish(t, g, a, b, c, d, e, f)
}
