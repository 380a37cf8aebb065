package multihost

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/tcp"
)

// withRelays puts a relay before each rank's sockets.
func withRelays(t testing.TB, num int) (relays []*testenv.Relay, change func(rank int, c *Config)) {
	for range num {
		relays = append(relays, testenv.NewRelay(t))
	}
	var mu sync.Mutex // one after the other, to tell which rank has which port
	return relays, func(rank int, c *Config) {
		c.Bound, c.ReconnectFor = time.Hour, time.Hour // a rank that starves is not gone
		c.Carriers = []Carrier{{Setting: TCP, Open: func(int) (transport.Transport, error) {
			mu.Lock()
			defer mu.Unlock()
			before := testenv.Listening(t)
			tr, err := tcp.Open(tcp.Config{
				Listen: []netip.AddrPort{loopback}, Keyring: c.Keys, Advertise: []netip.AddrPort{relays[rank].Addr()},
			})
			for port := range testenv.Listening(t) {
				if !before[port] {
					relays[rank].PassTo(netip.AddrPortFrom(loopback.Addr(), port))
				}
			}
			return tr, err
		}}}
	}
}

func (g *troupe) reconnects() (n uint64) {
	for _, d := range g.domains {
		for _, f := range d.RemoteRanks() {
			n += f.Reconnects
		}
	}
	return n
}

// TestLinksReconnected: data connections that are reset in the middle of frames are
// reconnected. No rank is taken for dying, every message arrives once, in its order, and
// an update goes on as ever.
func TestLinksReconnected(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	relays, change := withRelays(t, 3)
	g := newTroupe(t, []string{"a", "b", "c"}, change)
	for i, r := range relays {
		r.Reset(seed+uint64(i), 32<<10, 128<<10)
		r.Cut() // the present ones have no end
	}
	var wg sync.WaitGroup
	const num = 150
	text := func(from, n int) string { return fmt.Sprintf("%d of %d%*d", n, from, 100+n*31%6000, n) }
	for r, d := range g.domains {
		wg.Add(1)
		go func() { // Remote is for one goroutine at a time
			defer wg.Done()
			var sent, received [3]int
			for left := 2 * 2 * num; left > 0; {
				for to := range d.Remote().Ranks().All() {
					if m := text(r, sent[to]); sent[to] < num {
						if b, err := d.Remote().Reserve(to, int64(len(m))); err == nil {
							copy(b, m)
							if err := d.Remote().Post(to, int64(len(m))); err != nil {
								t.Error(err)
								return
							}
							sent[to]++
							left--
						}
					}
					if m := d.Remote().Next(to); m != nil {
						if string(m) != text(to, received[to]) {
							t.Errorf("rank %d: message %d of %d is another one", r, received[to], to)
							return
						}
						d.Remote().Release(to)
						received[to]++
						left--
					}
					if d.Process(to).Dying() {
						t.Errorf("rank %d: %d is dying: %v", r, to, d.WhyNot(to))
						return
					}
				}
				ticket := d.PrepareSleep()
				d.Sleep(ticket, testTimeout/1000)
			}
		}()
	}
	wg.Wait()
	for _, r := range relays {
		r.Reset(0, 0, 0)
		r.Cut()
	}
	require.NotZero(t, g.reconnects())
	for r, d := range g.domains {
		for to := range d.Remote().Ranks().All() {
			eventually(t, "up again", func() bool { return g.remoteOf(r, to).State == LinkUp })
		}
		require.Equal(t, rankset.Upto(3), ranksOf(d.Members().Load()))
	}
	g.exchange("after it")
	changes, joined, err := g.reconnect(rankset.Upto(3), nil)
	require.NoError(t, err)
	g.begin(2, changes, joined)
	g.exchange("in the next epoch")
}

// TestRefusalIsSaidAgain: that a link is not reconnected may find no room among
// what is said to a rank. It comes with a later heartbeat.
func TestRefusalIsSaidAgain(t *testing.T) {
	g := newTroupe(t, []string{"a", "b"}, func(_ int, c *Config) { c.Bound, c.ReconnectFor = time.Hour, time.Hour })
	l, controls := g.domains[0].links.LinkOf(1), g.domains[0].now.Load().view.controls.Load()
	var refused atomic.Int64
	l.Reconnect(link.Reconnecting{Within: time.Hour, Send: func(message []byte) bool {
		return refused.Add(1) > 3 && controls.Send(1, append([]byte{kindReconnect}, message...))
	}})
	l.Break(errOut)
	eventually(t, "the other side's end", func() bool { return g.domains[1].links.LinkOf(0).Err() != nil })
}

// TestOutIsNotReconnected: the link to a rank that was taken out stays down.
func TestOutIsNotReconnected(t *testing.T) {
	g := newTroupe(t, []string{"a", "b", "c"}, nil)
	old := g.domains[0].links.LinkOf(2)
	require.True(t, membership.Leave(g.domains[2].Members(), 1, 2))
	eventually(t, "the link's end", func() bool { return old.Err() != nil })
	eventually(t, "and on the other side", func() bool { return g.domains[2].links.LinkOf(0).Err() != nil })
	require.Zero(t, g.reconnects())
}
