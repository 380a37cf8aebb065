package multihost

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
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

// stalled is a carrier that posts nothing before it may.
type stalled struct {
	*fragile
	once       sync.Once
	asked, may chan struct{}
}

func (s *stalled) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	e, err := s.fragile.NewEndpoint(spec)
	return &stalledEndpoint{e, s}, err
}

type stalledEndpoint struct {
	transport.Endpoint
	of *stalled
}

func (e *stalledEndpoint) PostSend(r []transport.SendRequest) (int, error) {
	e.of.once.Do(func() { close(e.of.asked) })
	<-e.of.may
	return e.Endpoint.PostSend(r)
}

// TestGoesOverWhileOthersTry: a device may fail while a rank waits for others to say
// whether bytes arrive. Its links go over to the other carrier, those that worked and
// those of which only this side knows that they do.
func TestGoesOverWhileOthersTry(t *testing.T) {
	var first atomic.Pointer[fragile]
	last := &stalled{fragile: &fragile{}, asked: make(chan struct{}), may: make(chan struct{})}
	goesOver := make(chan struct{})
	go func() {
		defer close(last.may)
		<-last.asked
		time.Sleep(100 * time.Millisecond) // then the other two ranks have tried all they can
		first.Load().raise(transport.EventDeviceDown)
		select {
		case <-goesOver:
		case <-time.After(2 * time.Second):
		}
	}()
	g := newTroupe(t, []string{"a", "b", "c"}, func(rank int, c *Config) {
		open := c.Carriers[0].Open
		c.Bound = testTimeout // a rank that starves is not gone
		c.Carriers = []Carrier{
			{Setting: RDMA, Open: func(turn int) (transport.Transport, error) {
				tr, err := open(turn)
				if rank == 2 {
					last.Transport = tr
					return last, err
				}
				f := &fragile{Transport: tr}
				if rank == 0 {
					first.Store(f)
				}
				return f, err
			}},
			{Setting: TCP, Open: func(turn int) (transport.Transport, error) {
				tr, err := open(turn)
				return &made{Transport: tr, made: func() {
					if rank == 1 {
						close(goesOver)
					}
				}}, err
			}},
		}
	})
	g.exchange("over both")
	for r := 1; r < 3; r++ {
		require.Equal(t, "tcp", g.domains[r].Paths()[0].Carrier)
		require.Equal(t, "fragile", g.domains[r].Paths()[3-r].Carrier)
	}
}

// renamed is a carrier with a second name. A call of Name lets something else happen, or
// begin, before it returns the name that was right until then.
type renamed struct {
	transport.Transport
	meanwhile func()
	other     atomic.Bool
}

func (r *renamed) Name() string {
	name := "first"
	if r.other.Load() {
		name = "other"
	}
	if f := r.meanwhile; f != nil {
		r.meanwhile = nil
		r.other.Store(true)
		done := make(chan struct{})
		go func() { defer close(done); f() }()
		select {
		case <-done:
		case <-time.After(100 * time.Millisecond): // it waits for the caller
		}
	}
	return name
}

// TestGoesOverWhileExplained: a link goes over to another carrier while the rendezvous looks
// at how the rank is reached, or the rendezvous looks while the link tells. Paths has the
// other carrier, and the reason once.
func TestGoesOverWhileExplained(t *testing.T) {
	keys := wire.GenerateKeyring()
	for name, wentOverFirst := range map[string]bool{"explained first": false, "told first": true} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(keys, 0, 2, "a")
			tr, err := cfg.Carriers[0].Open(0)
			require.NoError(t, err)
			carrier := &renamed{Transport: tr}
			poller := link.NewPoller(carrier, func() {})
			defer poller.Close()
			l, err := link.NewLink(poller, 1, 1, cfg.Link, newPrivate)
			require.NoError(t, err)
			defer l.Close(time.Now().Add(testTimeout))
			r := &participants{infos: make([]Info, 2), present: rankset.Upto(2), local: rankset.Of(0), why: []string{"", "another host"}}
			v := &view{cfg: &cfg, participants: r, carriers: &carriers{cfg: &cfg}, paths: &pathTable{all: r.explain()}}
			g := &remoteRendezvous{v: v, carriers: v.carriers, links: []*link.Link{nil, l}}
			g.own[1], g.names[1] = []string{"first", "other"}, []string{"first", "other"}

			var both sync.WaitGroup
			both.Add(2)
			explain := func() { defer both.Done(); g.explain(1, "") }
			tell := func() { defer both.Done(); v.wentOver(1, l, "first", errCut) }
			carrier.other.Store(wentOverFirst)
			if carrier.meanwhile = tell; wentOverFirst {
				carrier.meanwhile = explain
				tell()
			} else {
				explain()
			}
			if f := carrier.meanwhile; f != nil { // the first did not ask
				carrier.meanwhile = nil
				f()
			}
			both.Wait()
			want := Path{Rank: 1, Carrier: "other", Device: tr.Device(), FellBack: true, Why: "another host; first failed in use: " + errCut.Error()}
			require.Equal(t, want, v.paths.list()[1])
		})
	}
}
