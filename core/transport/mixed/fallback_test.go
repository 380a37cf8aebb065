package mixed

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// deadEnd is a carrier that connects to everybody and, if it is cut, leads to
// nobody.
type deadEnd struct {
	transport.Transport
	cut bool
}

func (d *deadEnd) Name() string { return "deadend" }

func (d *deadEnd) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	e, err := d.Transport.NewEndpoint(spec)
	if err != nil || !d.cut {
		return e, err
	}
	return cutEndpoint{e}, nil
}

type cutEndpoint struct{ transport.Endpoint }

var errCut = errors.New("the cable is cut")

func (cutEndpoint) PostSend([]transport.SendRequest) (int, error) { return 0, errCut }

// withDeadEnd gives ranks a carrier that is preferred to sockets; that of rank
// 0 is cut.
func withDeadEnd(rank int, c *Config) {
	open := c.Carriers[0].Open
	c.Carriers = append([]Carrier{{Setting: RDMA, Open: func(turn int) (transport.Transport, error) {
		t, err := open(turn)
		return &deadEnd{Transport: t, cut: rank == 0}, err
	}}}, c.Carriers...)
}

// TestCarrierLeadsNowhere: a carrier that both sides have may not connect
// them. Both then take the next one, and say why; other pairs keep it.
func TestCarrierLeadsNowhere(t *testing.T) {
	g := newTroupe(t, []string{"a", "b", "c", "c"}, withDeadEnd)
	want := [][]string{
		{"self", "tcp", "tcp", "tcp"}, {"tcp", "self", "deadend", "deadend"},
		{"tcp", "deadend", "self", "shm"}, {"tcp", "deadend", "shm", "self"},
	}
	for r, d := range g.domains {
		for to, p := range d.Paths() {
			require.Equal(t, want[r][to], p.Carrier, "%d to %d: %+v", r, to, p)
			require.Equal(t, p.Carrier == "tcp", strings.Contains(p.Why, errCut.Error()), "%+v", p)
		}
	}
	g.exchange("round")
}

// TestOnlyCarrierLeadsNowhere: where there is no other one, connecting fails
// and both sides say why.
func TestOnlyCarrierLeadsNowhere(t *testing.T) {
	keys := wire.GenerateKeyring()
	listeners := make([]*Listener, 2)
	for r := range listeners {
		c := testConfig(keys, r, 2, string(rune('a'+r)))
		withDeadEnd(r, &c)
		c.Setting = RDMA
		var err error
		listeners[r], err = Open(c)
		require.NoError(t, err)
	}
	all, errs := metadataOf(listeners), make([]error, 2)
	var wg sync.WaitGroup
	for r, l := range listeners {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, errs[r] = l.Connect(all, patience)
		}()
	}
	wg.Wait()
	for r, err := range errs {
		require.ErrorContains(t, err, "cable is cut", "rank %d", r)
	}
}
