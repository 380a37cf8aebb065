package multihost

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// TestTurns: the ranks of one host open their carriers with different turns,
// whatever their numbers, so that they can share out its devices.
func TestTurns(t *testing.T) {
	keys := wire.GenerateKeyring()
	var mu sync.Mutex
	turns := make([]int, 5)
	listeners := make([]*Listener, 5)
	for r, host := range []string{"a", "b", "a", "b", "a"} {
		cfg := testConfig(keys, r, 5, host)
		cfg.Carriers = append([]Carrier{{Setting: RDMA, Open: func(turn int) (transport.Transport, error) {
			mu.Lock()
			defer mu.Unlock()
			turns[r] = turn
			return nil, errors.New("there is no device")
		}}}, cfg.Carriers...)
		var err error
		listeners[r], err = Open(cfg)
		require.NoError(t, err)
		defer listeners[r].Close()
	}
	g := &troupe{t: t, domains: make([]*Domain, 5)}
	require.NoError(t, errors.Join(g.connect(listeners)...))
	defer g.close()
	require.Equal(t, []int{0, 0, 1, 1, 2}, turns)
}

// remarking is a carrier that has something to say of its devices.
type remarking struct{ transport.Transport }

func (remarking) Remarks() string { return "eth1 is not usable (2 failures)" }

func (r remarking) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	e, err := r.Transport.NewEndpoint(spec)
	return onDevice{e}, err
}

type onDevice struct{ transport.Endpoint }

func (onDevice) Device() string { return "eth2" }

// TestRemarksOfCarriers: a carrier of several devices has a say in Paths: which
// one a link is on, and which are not usable.
func TestRemarksOfCarriers(t *testing.T) {
	g := newTroupe(t, []string{"a", "b"}, func(_ int, c *Config) {
		open := c.Carriers[0].Open
		c.Carriers[0].Open = func(turn int) (transport.Transport, error) {
			tr, err := open(turn)
			return remarking{tr}, err
		}
	})
	for r, d := range g.domains {
		p := d.Paths()[1-r]
		require.Equal(t, "eth2", p.Device)
		require.Contains(t, p.Why, "eth1 is not usable (2 failures)")
	}
	g.exchange("round")
}
