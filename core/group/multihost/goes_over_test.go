package multihost

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
)

// brittle is a carrier that makes no connection any more when it is told to, though its
// device is well.
type brittle struct {
	transport.Transport
	broken atomic.Bool
	none   bool // no endpoint is left
	first  atomic.Pointer[brittleEndpoint]
	last   atomic.Pointer[brittleEndpoint]
}

func (*brittle) Name() string { return "brittle" }

func (b *brittle) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	if b.none {
		return nil, errCut
	}
	e, err := b.Transport.NewEndpoint(spec)
	if err != nil {
		return nil, err
	}
	made := &brittleEndpoint{e, b}
	b.first.CompareAndSwap(nil, made)
	b.last.Store(made)
	return made, nil
}

type brittleEndpoint struct {
	transport.Endpoint
	of *brittle
}

func (e *brittleEndpoint) Connect(address []byte, deadline time.Time) error {
	if e.of.broken.Load() {
		return errCut
	}
	return e.Endpoint.Connect(address, deadline)
}

// shatter breaks the present connection, and keeps others from coming.
func (b *brittle) shatter() {
	b.broken.Store(true)
	_ = b.last.Load().Retire()
}

// brittlePair is two ranks that prefer a brittle carrier.
type brittlePair struct {
	*troupe
	devices [2]*brittle

	mu       sync.Mutex
	fellBack [2][]Path
}

func newBrittlePair(t *testing.T, setting Setting, reconnectFor time.Duration) *brittlePair {
	p := &brittlePair{}
	p.troupe = newTroupe(t, []string{"a", "b"}, func(rank int, c *Config) {
		open := c.Carriers[0].Open
		c.Setting, c.Bound, c.ReconnectFor = setting, time.Hour, reconnectFor // a rank that starves is not gone
		c.FellBack = func(path Path) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.fellBack[rank] = append(p.fellBack[rank], path)
		}
		c.Carriers = append([]Carrier{{Setting: RDMA, Open: func(turn int) (transport.Transport, error) {
			tr, err := open(turn)
			p.devices[rank] = &brittle{Transport: tr}
			return p.devices[rank], err
		}}}, c.Carriers...)
	})
	return p
}

// stream sends so many messages from one rank to the other, and says when half have come.
func (g *troupe) stream(from, num int, half func()) {
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for n := range num {
			send(g.t, g.domains[from], 1-from, fmt.Sprint("message ", n))
		}
	}()
	for n := range num {
		if got := receive(g.t, g.domains[1-from], from); got != fmt.Sprint("message ", n) {
			g.t.Errorf("message %d is %q", n, got)
			break
		}
		if n == num/2 {
			half()
		}
	}
	wg.Wait()
}

// TestGoesOverInUse: a link whose carrier fails for good in the middle goes on over the
// next one, without a lost message; both sides are told once; the pair keeps the other
// carrier in later rendezvous, though the better one works again; a fresh process tries it.
func TestGoesOverInUse(t *testing.T) {
	side := rand.IntN(2)
	t.Logf("rank %d", side)
	g := newBrittlePair(t, Auto, 6*time.Second)
	require.Equal(t, "brittle", g.domains[0].Paths()[1].Carrier)
	g.stream(side, 200, g.devices[side].shatter)
	g.onTCP()
	g.exchange("both ways")
	g.devices[side].broken.Store(false)
	for epoch := membership.Epoch(2); epoch < 4; epoch++ {
		g.meetAgain(epoch)
		g.onTCP()
		require.Contains(t, g.domains[side].Paths()[1-side].Why, "brittle failed in use: ")
	}
	g.mu.Lock()
	for r, fellBack := range g.fellBack {
		require.Len(t, fellBack, 1, "rank %d", r)
		require.Equal(t, "tcp", fellBack[0].Carrier)
		require.True(t, fellBack[0].FellBack)
		require.Equal(t, 1-r, fellBack[0].Rank)
		require.Contains(t, fellBack[0].Why, "brittle failed in use: ")
	}
	g.mu.Unlock()

	require.True(t, membership.Leave(g.domains[1].Members(), 3, 1))
	require.NoError(t, g.domains[1].Close())
	g.domains[1] = nil
	changes, joined, err := g.reconnect(rankset.Of(0), map[int]string{1: "c"})
	require.NoError(t, err)
	g.begin(4, changes, joined)
	require.Equal(t, "brittle", g.domains[0].Paths()[1].Carrier)
	require.False(t, g.domains[0].Paths()[1].FellBack)
}

// TestNamedCarrierDoesNotGoOver: a link over a carrier that was asked for by name fails
// with it.
func TestNamedCarrierDoesNotGoOver(t *testing.T) {
	g := newBrittlePair(t, RDMA, time.Second)
	g.exchange("first")
	g.devices[0].shatter()
	for r, d := range g.domains {
		eventually(t, "the link's end", func() bool { return d.links.LinkOf(1-r).Err() != nil })
		require.Equal(t, "brittle", d.Paths()[1-r].Carrier)
	}
	require.Empty(t, g.fellBack[0])
	require.Empty(t, g.fellBack[1])
}
