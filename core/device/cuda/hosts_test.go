package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/fifo"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/proxy"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// office is one rank's way to ranks of other hosts.
type office struct {
	m       *member
	g       *group
	proxy   *proxy.Proxy
	carrier *link.Poller
	set     *link.Set
	links   []*link.Link
	host    []*HostMemory
	box     Mailbox
}

// mailing is what the messages of a group are bound to.
type mailing struct {
	hostOf       []int // by rank
	ringBytes    int64
	messageBytes int64
	length       int // descriptors
}

func (o *office) alloc(n uint64) *HostMemory {
	h, err := o.g.d.AllocHost(n)
	require.NoError(o.g.t, err)
	o.host = append(o.host, h)
	return h
}

// putOnHosts puts the ranks of a group on hosts: no kernel of one host touches
// memory of another one.
func (g *group) putOnHosts(net *fake.Network, c mailing) (all []*office) {
	for r := range g.ranks {
		all = append(all, g.openOffice(net.Transport(), r, c))
	}
	g.offices = all
	var dials []func() error // no offer is made while a link connects
	for r, o := range all {
		for peer, l := range o.links {
			if l == nil {
				continue
			}
			offer := all[peer].links[r].Offer()
			dials = append(dials, func() error { return l.Connect(offer, time.Now().Add(remoteFor)) })
		}
	}
	failed := make(chan error)
	for _, dial := range dials {
		go func() { failed <- dial() }()
	}
	for range dials {
		require.NoError(g.t, <-failed)
	}
	for _, o := range all {
		o.set.Put(o.links)
		var err error
		o.box.Next, err = o.proxy.Start(o.set)
		require.NoError(g.t, err)
		require.NoError(g.t, o.m.SetMailbox(o.box))
	}
	return all
}

func (g *group) openOffice(carrier transport.Transport, rank int, c mailing) *office {
	o := &office{m: g.ranks[rank], g: g, links: make([]*link.Link, len(g.ranks))}
	words, mail := o.alloc(uint64(fifo.Words(c.length))*8), o.alloc(uint64(proxy.MailWords(len(g.ranks)))*8)
	q, err := fifo.New(words.Words(), c.length)
	require.NoError(g.t, err)
	o.proxy, err = proxy.New(proxy.Config{NumRanks: len(g.ranks), Queue: q, Mail: mail.Words(), LeaseBytes: c.messageBytes})
	require.NoError(g.t, err)
	o.carrier = link.NewPoller(carrier, o.proxy.Ring)
	o.box = Mailbox{Words: words.Address(), Length: c.length, Mail: mail.Address(), MessageBytes: min(c.messageBytes, c.ringBytes/2)}
	cfg := link.Config{RingBytes: c.ringBytes, NumMessages: 3}
	memory := func(n int64) (domain.Segment, error) { return hostRing{m: o.alloc(uint64(n))}, nil }
	for peer := range g.ranks {
		if c.hostOf[peer] == c.hostOf[rank] {
			continue
		}
		before := len(o.host)
		o.links[peer], err = link.NewLink(o.carrier, peer, rand.Uint32(), cfg, memory)
		require.NoError(g.t, err)
		o.box.Ranks = o.box.Ranks.With(peer)
		o.box.Receive[peer], o.box.Send[peer] = o.host[before].Address(), o.host[before+1].Address()
	}
	o.set = link.NewSet(cfg, memory, func(int) error { return domain.ErrExited }, 0)
	g.t.Cleanup(o.close)
	return o
}

func (o *office) close() {
	o.proxy.Stop()
	for _, l := range o.links {
		if l != nil {
			require.NoError(o.g.t, l.Close(time.Now().Add(remoteFor)))
		}
	}
	require.NoError(o.g.t, o.carrier.Close())
	for _, h := range o.host {
		require.NoError(o.g.t, h.Close())
	}
}

// uneven is a network that keeps no order.
func uneven(seed uint64) *fake.Network {
	net := fake.New(fake.Config{Seed: seed})
	net.Inject(fake.Fault{Point: fake.AtWire, Chance: 0.3, MaxDelay: 100 * time.Microsecond})
	net.Inject(fake.Fault{Point: fake.AtComplete, Chance: 0.3, MaxDelay: 100 * time.Microsecond})
	return net
}

func hosts(ranks, each int) (of []int) {
	for r := range ranks {
		of = append(of, r/each)
	}
	return of
}

// TestHostsExchange: rows and sums of ranks that are on several hosts are those
// of plain loops, and bit for bit what the CPU's kernels make, also with messages
// that hold few rows.
func TestHostsExchange(t *testing.T) {
	emu, seed := driver(t), testenv.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 31))
	for _, c := range []struct{ ranks, each int }{{2, 1}, {4, 2}, {3, 1}} {
		for _, fp8 := range []bool{false, true} {
			for _, tiny := range []bool{false, true} {
				if testing.Short() && tiny == fp8 {
					continue
				}
				t.Run(fmt.Sprintf("ranks=%d/each=%d/fp8=%v/tiny=%v", c.ranks, c.each, fp8, tiny), func(t *testing.T) {
					emu.Schedule(rng.Uint64(), 32, 8+c.ranks*c.ranks)
					s := layout.Shape{MaxTokens: 20, Hidden: 256, NumExperts: int64(2 * c.ranks), NumRanks: int64(c.ranks), RowType: rowTypeOf(fp8)}
					slabs, err := layout.Of(s)
					require.NoError(t, err)
					g := newGroup(t, c.ranks, 2, slabs.SizeBytes)
					flags, m := protocol.Flags(0), mailing{hostOf: hosts(c.ranks, c.each), ringBytes: 1 << 17, messageBytes: 1 << 16, length: 16}
					if fp8 {
						flags = protocol.FlagFP8
					}
					if tiny {
						m.ringBytes, m.messageBytes = 1<<12, 2048
					}
					g.putOnHosts(uneven(rng.Uint64()), m)
					for i := range 4 {
						g.exchange(rng, g.random(rng, s, 3, flags, i%2), &slabs)
					}
				})
			}
		}
	}
}
