package multihost

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
)

// made is a carrier that calls made before it makes its first endpoint.
type made struct {
	transport.Transport
	once sync.Once
	made func()
}

func (m *made) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	m.once.Do(m.made)
	return m.Transport.NewEndpoint(spec)
}

// TestGoesOverWhileOthersConnect: a carrier may fail while the rendezvous still runs, for
// the sake of another pair: a link that worked goes over then, too.
func TestGoesOverWhileOthersConnect(t *testing.T) {
	var devices [3]*brittle
	var both sync.WaitGroup
	both.Add(2)
	second := func(rank int) func() { // the round in which rank 2 is reached over tcp
		return func() {
			if rank == 2 {
				return
			}
			both.Done()
			both.Wait()
			if rank == 0 {
				devices[0].broken.Store(true)
				_ = devices[0].first.Load().Retire() // the one to rank 1
			}
		}
	}
	g := newTroupe(t, []string{"a", "b", "c"}, func(rank int, c *Config) {
		open := c.Carriers[0].Open
		c.Bound = testTimeout // a rank that starves is not gone
		c.Carriers = []Carrier{
			{Setting: RDMA, Open: func(turn int) (transport.Transport, error) {
				tr, err := open(turn)
				devices[rank] = &brittle{Transport: tr, none: rank == 2}
				return devices[rank], err
			}},
			{Setting: TCP, Open: func(turn int) (transport.Transport, error) {
				tr, err := open(turn)
				return &made{Transport: tr, made: second(rank)}, err
			}},
		}
	})
	for r := range 2 {
		eventually(t, "over tcp", func() bool { return g.domains[r].Paths()[1-r].Carrier == "tcp" })
		p := g.domains[r].Paths()[1-r]
		require.True(t, p.FellBack)
		require.Regexp(t, "^another host; brittle failed in use: [^;]*$", p.Why, "once")
	}
	g.exchange("over tcp")
}
