package multihost

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
)

// outstanding is a carrier with endpoints that have completions outstanding for as long
// as it says so.
type outstanding struct {
	transport.Transport
	busy *atomic.Bool
}

type outstandingEndpoint struct {
	transport.Endpoint
	busy *atomic.Bool
}

func (o *outstanding) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	ep, err := o.Transport.NewEndpoint(spec)
	return outstandingEndpoint{ep, o.busy}, err
}

func (e outstandingEndpoint) Close() error {
	if e.busy.Load() {
		return transport.ErrBusy
	}
	return e.Endpoint.Close()
}

// withOutstanding lets no side wait for what is outstanding.
func withOutstanding(t *testing.T) (g *troupe, busy *atomic.Bool) {
	busy = new(atomic.Bool)
	g = newTroupe(t, []string{"a", "b"}, func(_ int, c *Config) {
		open := c.Carriers[0].Open
		c.Carriers[0].Open = func(turn int) (transport.Transport, error) {
			t, err := open(turn)
			return &outstanding{t, busy}, err
		}
	})
	for _, d := range g.domains {
		d.drain = 0
	}
	return g, busy
}

// numLeftover waits for a sweep that runs: it has the list meanwhile.
func (d *Domain) numLeftover() int {
	d.sweeping.Lock()
	defer d.sweeping.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.leftover)
}

// TestLinksThatDoNotDrain: links of a change that is given up, of a rendezvous
// that fails and of one that was replaced are closed later, when they await
// something at the end of their time: at a rendezvous, and at Close.
func TestLinksThatDoNotDrain(t *testing.T) {
	newTroupe(t, []string{"a", "b"}, nil).close()
	before := holdings()
	g, busy := withOutstanding(t)
	changes, _, err := g.reconnect(rankset.Of(0, 1), nil)
	require.NoError(t, err)
	busy.Store(true)
	for r, c := range changes {
		c.Abort()
		require.Equal(t, 1, g.domains[r].numLeftover(), "of a change")
	}
	changes, joined, err := g.reconnect(rankset.Of(0, 1), nil)
	require.NoError(t, err)
	g.begin(2, changes, joined)
	for _, d := range g.domains {
		eventually(t, "of what was replaced", func() bool { return d.numLeftover() == 2 })
	}
	busy.Store(false)
	changes, joined, err = g.reconnect(rankset.Of(0, 1), nil) // sweeps
	require.NoError(t, err)
	for _, d := range g.domains {
		require.Less(t, d.numLeftover(), 2, "a rendezvous sweeps")
		eventually(t, "all closed", func() bool { // what is flushed last may come behind the rendezvous
			return d.sweep() == 0
		})
	}
	busy.Store(true)
	g.begin(3, changes, joined)
	for _, d := range g.domains {
		eventually(t, "of what was replaced", func() bool { return d.numLeftover() == 1 })
	}
	busy.Store(false)
	g.close()
	require.Equal(t, before, holdings())
}

// TestLeftoversAreSwept: no rendezvous is needed for what has come to rest.
func TestLeftoversAreSwept(t *testing.T) {
	g, busy := withOutstanding(t)
	for _, d := range g.domains {
		d.sweeper.Every = time.Millisecond
	}
	busy.Store(true)
	changes, _, err := g.reconnect(rankset.Upto(2), nil)
	require.NoError(t, err)
	for r, c := range changes {
		c.Abort()
		d := g.domains[r]
		for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
			require.Equal(t, 1, d.numLeftover(), "it is busy")
		}
	}
	busy.Store(false)
	for _, d := range g.domains {
		eventually(t, "swept", func() bool { return d.numLeftover() == 0 })
	}
	busy.Store(true)
	changes, _, err = g.reconnect(rankset.Upto(2), nil)
	require.NoError(t, err)
	for _, c := range changes {
		c.Abort()
	}
	busy.Store(false)
	g.close() // ends a sweep that is under way
}

// TestBoundOfLeftovers: a device that never ends what it was given does not
// cost the rings of any number of rendezvous.
func TestBoundOfLeftovers(t *testing.T) {
	g, busy := withOutstanding(t)
	busy.Store(true)
	for n := range maxLeftovers {
		changes, _, err := g.reconnect(rankset.Of(0, 1), nil)
		require.NoError(t, err)
		for r, c := range changes {
			c.Abort()
			require.Equal(t, n+1, g.domains[r].numLeftover())
		}
	}
	_, _, err := g.reconnect(rankset.Of(0, 1), nil)
	require.ErrorContains(t, err, "links of 4 earlier rendezvous still have outstanding completions, at most 3 may")
	require.Equal(t, maxLeftovers, g.domains[0].numLeftover())
	g.exchange("still")
	busy.Store(false)
	changes, joined, err := g.reconnect(rankset.Of(0, 1), nil)
	require.NoError(t, err)
	g.begin(2, changes, joined)
}

// TestCrashedControls: a rank that cannot hear of any change any more, because
// a mistake has ended what its changes come from, leaves by itself.
func TestCrashedControls(t *testing.T) {
	g := newTroupe(t, []string{"a", "a", "b"}, nil)
	g.everySet(rankset.Upto(3), rankset.Upto(3))
	v := g.domains[0].now.Load().view
	v.mu.Lock()
	v.agreement = nil // the next tick panics
	v.mu.Unlock()
	g.everySet(rankset.Of(0, 1), rankset.Of(1, 2))
}
