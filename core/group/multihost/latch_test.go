package multihost

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
)

// fragile is a carrier with a device that fails when it is told to.
type fragile struct {
	transport.Transport
	event atomic.Uint32 // the next one
}

func (*fragile) Name() string { return "fragile" }

func (f *fragile) PollEvents(events []transport.Event) int {
	if k := transport.EventKind(f.event.Swap(0)); k != 0 {
		events[0] = transport.Event{Kind: k, Detail: "somebody pulled it out"}
		return 1
	}
	return f.Transport.PollEvents(events)
}

func (f *fragile) raise(k transport.EventKind) {
	f.event.Store(uint32(k))
	f.Wake()
}

// withFragile gives ranks a carrier that is preferred to sockets.
func withFragile(setting Setting, devices *[2]*fragile) func(rank int, c *Config) {
	return func(rank int, c *Config) {
		c.Setting = setting
		open := c.Carriers[0].Open
		c.Carriers = append([]Carrier{{Setting: RDMA, Open: func(turn int) (transport.Transport, error) {
			t, err := open(turn)
			devices[rank] = &fragile{Transport: t}
			return devices[rank], err
		}}}, c.Carriers...)
	}
}

func (g *troupe) meetAgain(epoch membership.Epoch) {
	changes, joined, err := g.reconnect(rankset.Of(0, 1), nil)
	require.NoError(g.t, err)
	g.begin(epoch, changes, joined)
	g.exchange("epoch")
}

// TestTP1: auto goes over to the next carrier when a device has failed, in use, once and
// for good, and says why; the last carrier stays. Of two ranks it is enough that one has
// lost its device.
func TestTP1(t *testing.T) {
	var devices [2]*fragile
	g := newTroupe(t, []string{"a", "b"}, withFragile(Auto, &devices))
	require.Equal(t, "fragile", g.domains[0].Paths()[1].Carrier)
	g.exchange("first")
	g.meetAgain(2)
	require.Equal(t, "fragile", g.domains[0].Paths()[1].Carrier, "nothing has failed")

	devices[0].raise(transport.EventDeviceDown)
	g.onTCP()
	g.exchange("in use")
	for epoch := membership.Epoch(3); epoch < 6; epoch++ {
		g.meetAgain(epoch)
		g.onTCP()
		require.Contains(t, g.domains[0].Paths()[1].Why, "fragile: device is down: somebody pulled it out, and it is not used any more")
		devices[0].raise(transport.EventDeviceUp)
	}
	require.NoError(t, g.domains[0].links.LinkOf(1).Err())
}

// onTCP: two ranks reach each other by sockets, as a fallback, and both say so.
func (g *troupe) onTCP() {
	for r, d := range g.domains {
		eventually(g.t, "over tcp", func() bool { return d.Paths()[1-r].Carrier == "tcp" })
		require.True(g.t, d.Paths()[1-r].FellBack)
		eventually(g.t, "up", func() bool { return g.remoteOf(r, 1-r).State == LinkUp })
		require.Equal(g.t, "tcp", g.remoteOf(r, 1-r).Carrier)
		carrier, _ := d.links.LinkOf(1 - r).Carrier()
		require.Equal(g.t, "tcp", carrier)
	}
}

// TestTP1RDMA: a setting that names its carrier never leaves it.
func TestTP1RDMA(t *testing.T) {
	var devices [2]*fragile
	g := newTroupe(t, []string{"a", "b"}, withFragile(RDMA, &devices))
	devices[0].raise(transport.EventDeviceDown)
	eventually(t, "the link's end", func() bool { return g.domains[0].links.LinkOf(1).Err() != nil })
	devices[0].raise(transport.EventDeviceUp)
	g.meetAgain(2)
	require.Equal(t, "fragile", g.domains[0].Paths()[1].Carrier)
}
