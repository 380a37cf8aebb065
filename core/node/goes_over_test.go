package node

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/telemetry"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/tcp"
)

// mortal is a carrier that passes for RDMA, until its device fails.
type mortal struct {
	transport.Transport
	dies atomic.Bool
}

func (*mortal) Name() string { return "verbs" }

func (m *mortal) PollEvents(events []transport.Event) int {
	if m.dies.Swap(false) {
		events[0] = transport.Event{Kind: transport.EventDeviceDown, Detail: "it was pulled out"}
		return 1
	}
	return m.Transport.PollEvents(events)
}

// TestGoesOverInUse: a device that fails in use costs no rank. Both sides go on over
// sockets, show that, and have one event of it each.
func TestGoesOverInUse(t *testing.T) {
	pair, devices := newPair(t), [2]*mortal{}
	for r, b := range pair {
		b.open.Carriers[0].Open = func(int) (transport.Transport, error) {
			listen := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}
			sockets, err := tcp.Open(tcp.Config{Listen: listen, Keyring: b.open.Keys})
			devices[r] = &mortal{Transport: sockets}
			return devices[r], err
		}
	}
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	exchangeOne(t, pair)
	devices[0].dies.Store(true)
	devices[0].Wake()
	for r, b := range pair {
		var events []telemetry.Event
		require.Eventually(t, func() bool { events, _ = b.engine.core().Events(0); return len(events) > 0 }, soon, time.Millisecond)
		require.Len(t, events, 1)
		require.Equal(t, telemetry.FellBack, events[0].Kind)
		require.Equal(t, 1-r, events[0].Rank)
		require.Contains(t, events[0].Why, "verbs failed in use: ")
		paths, err := b.Paths()
		require.NoError(t, err)
		require.Equal(t, "tcp", paths[1-r].Carrier)
		require.True(t, paths[1-r].FellBack)
		s, err := b.Stats()
		require.NoError(t, err)
		require.Equal(t, "tcp", s.Remote.Links[0].Carrier)
		require.EqualValues(t, 1, s.Remote.Links[0].Reconnects)
	}
	exchangeOne(t, pair)
	require.NoError(t, pair[0].Close())
	require.NoError(t, pair[1].Close())
}
