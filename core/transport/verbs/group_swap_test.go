package verbs

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
)

// takingTurns is a group with two open ports, of which the first is usable.
func takingTurns(t *testing.T) (*fakeLib, *Group) {
	f := newFakes(t, 2)
	g := f.group(Config{})
	f.unplug(0)
	groupEvents(g)
	require.Equal(t, "fake1/1", groupEndpoint(t, g).Device())
	f.plug(0)
	f.unplug(1)
	groupEvents(g)
	require.Equal(t, "fake0/1", g.Device())
	return f, g
}

// swap makes the second port come before the first one goes.
func (f *fakeLib) swap() {
	f.plug(1)
	f.unplug(0)
}

// swapHalf is swap of which only what the first port says was read.
func swapHalf(f *fakeLib, g *Group) {
	f.swap()
	g.members[0].tr.Load().takeEvents()
}

// TestPortsSwap: one port comes and then the other goes, so one is usable all the time.
// No report says that none is, in whatever order the reports of the two are read, and a
// caller that wants an endpoint gets one.
func TestPortsSwap(t *testing.T) {
	t.Run("both are read", func(t *testing.T) {
		f, g := takingTurns(t)
		f.swap()
		kinds := groupEvents(g)
		require.NotContains(t, kinds, transport.EventDeviceDown)
		require.Contains(t, kinds, transport.EventDeviceUp)
		require.Equal(t, "fake1/1", groupEndpoint(t, g).Device())
	})
	t.Run("one is not due", func(t *testing.T) {
		f, g := takingTurns(t)
		f.swap()
		g.members[1].tr.Load().events.every = time.Hour
		require.NotContains(t, dueEvents(g), transport.EventDeviceDown)
		require.Equal(t, "fake1/1", groupEndpoint(t, g).Device())
	})
	t.Run("back while they are read", func(t *testing.T) {
		f, g := takingTurns(t)
		f.swap()
		f.swapBackOnce()
		require.NotContains(t, groupEvents(g), transport.EventDeviceDown)
		require.Equal(t, "fake0/1", groupEndpoint(t, g).Device())
	})
	t.Run("endpoint", func(t *testing.T) {
		f, g := takingTurns(t)
		swapHalf(f, g)
		require.Equal(t, "fake1/1", groupEndpoint(t, g).Device())
		require.NotContains(t, groupEvents(g), transport.EventDeviceDown)
	})
	t.Run("endpoint, back while they are read", func(t *testing.T) {
		f, g := takingTurns(t)
		swapHalf(f, g)
		f.swapBackOnce()
		require.Equal(t, "fake0/1", groupEndpoint(t, g).Device())
		require.NotContains(t, groupEvents(g), transport.EventDeviceDown)
	})
}

// swapBackOnce is the opposite of swap, as soon as the first port was read and
// before the second one is.
func (f *fakeLib) swapBackOnce() {
	f.devices[0].emptied = func() {
		f.devices[0].emptied = nil
		f.plug(0)
		f.unplug(1)
	}
}

// TestAllPortsGo: that all ports are down is said at once when all are open, though no
// caller wants an endpoint.
func TestAllPortsGo(t *testing.T) {
	f, g := takingTurns(t)
	f.plug(1)
	groupEvents(g)
	f.unplug(1)
	require.NotContains(t, groupEvents(g), transport.EventDeviceDown)
	f.unplug(0)
	require.Contains(t, groupEvents(g), transport.EventDeviceDown)
	require.Empty(t, groupEvents(g))
}

// TestPortThatFlickers: as long as ports change while they are read, no report says that
// none is usable; a caller that wants an endpoint is told to come again.
func TestPortThatFlickers(t *testing.T) {
	f, g := takingTurns(t)
	flickers := 0
	f.devices[0].emptied = func() {
		flickers++
		f.raiseOn(1, portUp) // but it is not active any more
		f.raiseOn(1, portDown)
	}
	f.unplug(0)
	require.NotContains(t, groupEvents(g), transport.EventDeviceDown)
	_, err := g.NewEndpoint(oneEach)
	require.ErrorIs(t, err, transport.ErrNoResource)
	require.Less(t, flickers, 100, "it comes to an end")
	require.NotContains(t, groupEvents(g), transport.EventDeviceDown)
	f.devices[0].emptied = nil
	_, err = g.NewEndpoint(oneEach)
	require.ErrorIs(t, err, transport.ErrNoResource)
	require.Contains(t, groupEvents(g), transport.EventDeviceDown, "now none is usable")
}

// TestReadForAnEndpoint: when NewEndpoint has read reports it ends a Wait: the goroutine
// that sleeps there does not see any more that there was something.
func TestReadForAnEndpoint(t *testing.T) {
	f, g := takingTurns(t)
	rung := func() bool {
		ready, err := g.members[0].tr.Load().wait.poller.Wait(0)
		require.NoError(t, err)
		return ready&(1<<tokenBell) != 0
	}
	for rung() {
		require.NoError(t, g.Wait(0))
	}
	swapHalf(f, g)
	require.False(t, rung())
	groupEndpoint(t, g)
	require.True(t, rung())
	require.Contains(t, groupEvents(g), transport.EventDeviceUp)
}

// TestLinkOutlivesSwaps: a link over ports that take turns never fails.
func TestLinkOutlivesSwaps(t *testing.T) {
	for i := range testenv.NumSeeds(t, 5) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 0))
			f := newFakes(t, 4)
			f.moves = true
			ends := pairOnPorts(t, f)
			f.unplug(0)
			ends[0].on(t, "fake1/1") // both are open now
			for round := range 6 {
				from, to := 1-round%2, round%2
				talk(t, rng, ends, 20, func() { f.plug(to); f.unplug(from) })
				ends[0].on(t, fmt.Sprintf("fake%d/1", to))
			}
		})
	}
}
