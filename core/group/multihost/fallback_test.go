package multihost

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// deadEnd is a carrier that leads nowhere if it is cut in one of these ways.
type deadEnd struct {
	transport.Transport
	cut cut
}

type cut int

const (
	whole cut = iota
	noEndpoint
	noConnection
	noArrival
)

func (d *deadEnd) Name() string { return "deadend" }

func (d *deadEnd) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	if d.cut == noEndpoint {
		return nil, errCut
	}
	e, err := d.Transport.NewEndpoint(spec)
	if err != nil || d.cut == whole {
		return e, err
	}
	return &cutEndpoint{e, d.cut}, nil
}

type cutEndpoint struct {
	transport.Endpoint
	cut cut
}

var errCut = errors.New("the cable is cut")

func (e *cutEndpoint) Connect(address []byte, deadline time.Time) error {
	err := e.Endpoint.Connect(address, deadline) // these are sockets, where the peer waits for it
	if e.cut == noConnection {
		return errors.Join(err, errCut)
	}
	return err
}

func (e *cutEndpoint) PostSend(r []transport.SendRequest) (int, error) {
	if e.cut == noArrival {
		return 0, errCut
	}
	return e.Endpoint.PostSend(r)
}

// withDeadEnd gives ranks a carrier that is preferred to sockets; that of some
// is cut.
func withDeadEnd(cuts ...cut) func(rank int, c *Config) {
	return func(rank int, c *Config) {
		open := c.Carriers[0].Open
		c.Carriers = append([]Carrier{{Setting: RDMA, Open: func(turn int) (transport.Transport, error) {
			t, err := open(turn)
			d := &deadEnd{Transport: t}
			if rank < len(cuts) {
				d.cut = cuts[rank]
			}
			return d, err
		}}}, c.Carriers...)
	}
}

// TestCarrierLeadsNowhere: a carrier that both sides have may not connect
// them. Both then take the next one, and say why; other pairs keep it.
func TestCarrierLeadsNowhere(t *testing.T) {
	for name, cuts := range map[string][]cut{
		"no endpoint": {noEndpoint}, "no connection": {noConnection},
		"nobody connects": {noConnection, noConnection, noConnection, noConnection},
		"nothing arrives": {noArrival}, "all kinds": {noEndpoint, noConnection, noArrival, noEndpoint},
	} {
		t.Run(name, func(t *testing.T) {
			g := newTroupe(t, []string{"a", "b", "c", "c"}, withDeadEnd(cuts...))
			want := [][]string{
				{"self", "tcp", "tcp", "tcp"}, {"tcp", "self", "deadend", "deadend"},
				{"tcp", "deadend", "self", "shm"}, {"tcp", "deadend", "shm", "self"},
			}
			if len(cuts) > 1 {
				want = [][]string{
					{"self", "tcp", "tcp", "tcp"}, {"tcp", "self", "tcp", "tcp"},
					{"tcp", "tcp", "self", "shm"}, {"tcp", "tcp", "shm", "self"},
				}
			}
			for r, d := range g.domains {
				for to, p := range d.Paths() {
					require.Equal(t, want[r][to], p.Carrier, "%d to %d: %+v", r, to, p)
					require.Equal(t, p.Carrier == "tcp", strings.Contains(p.Why, errCut.Error()), "%+v", p)
				}
			}
			g.exchange("round")
		})
	}
}

// TestPairStaysFallenBack: a pair that fell back keeps its carrier, also when the better
// one would work again, so that links do not flap; with a fresh process it is tried.
func TestPairStaysFallenBack(t *testing.T) {
	var devices [2]*deadEnd
	g := newTroupe(t, []string{"a", "b"}, func(rank int, c *Config) {
		withDeadEnd(noArrival)(rank, c)
		open := c.Carriers[0].Open
		c.Carriers[0].Open = func(turn int) (transport.Transport, error) {
			tr, err := open(turn)
			devices[rank] = tr.(*deadEnd)
			return tr, err
		}
	})
	expect := func(carrier string) {
		t.Helper()
		for r, d := range g.domains {
			p := d.Paths()[1-r]
			require.Equal(t, carrier, p.Carrier)
			require.Equal(t, carrier == "tcp", p.FellBack, "%+v", p)
			require.Equal(t, carrier == "tcp", strings.Contains(p.Why, errCut.Error()), "%+v", p)
		}
	}
	expect("tcp")
	devices[0].cut = whole
	for epoch := membership.Epoch(2); epoch < 4; epoch++ {
		g.meetAgain(epoch)
		expect("tcp")
	}
	require.True(t, membership.Leave(g.domains[1].Members(), 3, 1))
	require.NoError(t, g.domains[1].Close())
	g.domains[1] = nil
	changes, joined, err := g.reconnect(rankset.Of(0), map[int]string{1: "c"})
	require.NoError(t, err)
	g.begin(4, changes, joined)
	devices[0].cut = whole
	g.exchange("fresh")
	require.Equal(t, "deadend", g.domains[0].Paths()[1].Carrier)
}

// TestPairAndDeviceFellBack: where a pair fell back, and later its device failed as a
// whole, both reasons are told.
func TestPairAndDeviceFellBack(t *testing.T) {
	g := newTroupe(t, []string{"a", "b"}, withDeadEnd(noArrival))
	c := g.domains[0].carriers
	c.mu.Lock()
	c.latched, c.failed = 1, append(c.failed, "the device is gone")
	c.mu.Unlock()
	g.meetAgain(2)
	why := g.domains[0].Paths()[1].Why
	require.Contains(t, why, errCut.Error())
	require.Contains(t, why, "the device is gone")
}

// TestOnlyCarrierLeadsNowhere: where there is no other one, connecting fails
// and both sides say why.
func TestOnlyCarrierLeadsNowhere(t *testing.T) {
	for name, cuts := range map[string][]cut{
		"no endpoint": {noEndpoint}, "no connection": {noConnection}, "nothing arrives": {noArrival},
	} {
		t.Run(name, func(t *testing.T) { testOnlyCarrier(t, withDeadEnd(cuts...)) })
	}
}

func testOnlyCarrier(t *testing.T, with func(rank int, c *Config)) {
	keys := wire.GenerateKeyring()
	listeners := make([]*Listener, 2)
	for r := range listeners {
		c := testConfig(keys, r, 2, string(rune('a'+r)))
		with(r, &c)
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
			_, errs[r] = l.Connect(all, testTimeout)
		}()
	}
	wg.Wait()
	for r, err := range errs {
		require.ErrorContains(t, err, "cable is cut", "rank %d", r)
	}
}
