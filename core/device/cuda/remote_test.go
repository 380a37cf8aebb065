package cuda

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/device/cuda/fifo"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/proxy"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// exchangeArgs is emulator_exchange_args.
type exchangeArgs struct {
	common                         common
	words, next, num               uint64
	mail, remote, messageBytes     uint64
	send, receive, rounds, peer, o uint64
}

// hostRing is a ring in pinned host memory.
type hostRing struct {
	domain.Segment
	m *HostMemory
}

func (r hostRing) Bytes(off, n int64) []byte { return r.m.Bytes()[off : off+n : off+n] }
func (r hostRing) Release()                  {}

// remoteMember is one of two ranks that reach one another by messages of kernels.
type remoteMember struct {
	*member
	g       *group
	carrier *link.Poller
	link    *link.Link
	set     *link.Set
	proxy   atomic.Pointer[proxy.Proxy]
	host    []*HostMemory
	next    []uint64
	out     []uint64
	args    exchangeArgs
	f       libcuda.Function
}

const (
	remoteLength = 4
	remoteRing   = 1 << 12
	remoteFor    = 30 * time.Second
)

func (m *remoteMember) alloc(t *testing.T, n uint64) *HostMemory {
	h, err := m.g.d.AllocHost(n)
	require.NoError(t, err)
	m.host = append(m.host, h)
	return h
}

// newRemote makes the ranks of a group remote to one another: no kernel of one
// touches memory of the other.
func newRemote(t *testing.T, emu *cudatest.Driver, net *fake.Network) (all [2]*remoteMember) {
	slab, err := layout.Of(layout.Shape{MaxTokens: 1, Hidden: 128, NumExperts: 2, NumRanks: 2})
	require.NoError(t, err)
	g := newGroup(t, 2, 1, slab.SizeBytes)
	for r := range all {
		all[r] = &remoteMember{member: g.ranks[r], g: g}
		all[r].open(t, emu, net.Transport(), r)
	}
	offers, failed := [2][]byte{all[0].link.Offer(), all[1].link.Offer()}, make(chan error, 1)
	go func() { failed <- all[0].link.Connect(offers[1], time.Now().Add(remoteFor)) }()
	require.NoError(t, all[1].link.Connect(offers[0], time.Now().Add(remoteFor)))
	require.NoError(t, <-failed)
	all[0].set.Put([]*link.Link{nil, all[0].link})
	all[1].set.Put([]*link.Link{all[1].link})
	for _, m := range all {
		m.next[0], err = m.proxy.Load().Start(m.set)
		require.NoError(t, err)
	}
	return all
}

func (m *remoteMember) open(t *testing.T, emu *cudatest.Driver, carrier transport.Transport, rank int) {
	words, mail := m.alloc(t, uint64(fifo.Words(remoteLength))*8), m.alloc(t, uint64(proxy.MailWords(2))*8)
	q, err := fifo.New(words.Words(), remoteLength)
	require.NoError(t, err)
	p, err := proxy.New(proxy.Config{NumRanks: 2, Queue: q, Mail: mail.Words(), LeaseBytes: 512})
	require.NoError(t, err)
	m.proxy.Store(p)
	m.carrier = link.NewPoller(carrier, p.Ring)
	var rings []uint64
	memory := func(n int64) (domain.Segment, error) {
		h := m.alloc(t, uint64(n))
		rings = append(rings, h.Address())
		return hostRing{m: h}, nil
	}
	cfg := link.Config{RingBytes: remoteRing, NumMessages: 3}
	m.link, err = link.NewLink(m.carrier, 1-rank, rand.Uint32(), cfg, memory)
	require.NoError(t, err)
	m.set = link.NewSet(cfg, memory, func(int) error { return domain.ErrExited }, 0)
	m.args = exchangeArgs{
		common: m.base, words: words.Address(), num: remoteLength, mail: mail.Address(),
		receive: rings[0], send: rings[1], peer: uint64(1 - rank),
	}
	m.args.common.TimeoutNs = -1
	m.args.next, m.next = tensor[uint64](m.member, 1)
	m.args.remote, _ = tensor[uint64](m.member, 8)
	m.args.o, m.out = tensor[uint64](m.member, 3)
	m.g.must(func() error { m.f, err = emu.ModuleFunction(m.g.d.modules[0], "emulator_exchange"); return err })
	t.Cleanup(func() {
		p.Stop()
		require.NoError(t, m.link.Close(time.Now().Add(remoteFor)))
		require.NoError(t, m.carrier.Close())
		for _, h := range m.host {
			require.NoError(t, h.Close())
		}
	})
}

func (m *remoteMember) launch(rounds uint64) {
	m.args.rounds = rounds
	m.g.must(func() error {
		grid := libcuda.Grid{Blocks: 1, Threads: 8}
		return m.calls.Launch(m.f, grid, m.stream, unsafe.Pointer(&m.args), unsafe.Sizeof(m.args))
	})
	m.proxy.Load().Ring()
}

// TestKernelsExchange: kernels of two ranks send one another messages through
// their proxies, over a carrier that keeps no order: all come, whole, in turn,
// in several launches.
func TestKernelsExchange(t *testing.T) {
	emu, seed := emulate(t), testenv.Seed(t)
	emu.Schedule(seed, 64, 4)
	net := fake.New(fake.Config{Seed: seed})
	net.Inject(fake.Fault{Point: fake.AtWire, Chance: 0.3, MaxDelay: 100 * time.Microsecond})
	net.Inject(fake.Fault{Point: fake.AtComplete, Chance: 0.3, MaxDelay: 100 * time.Microsecond})
	all := newRemote(t, emu, net)
	for range 3 {
		for _, m := range all {
			m.launch(7)
		}
		all[0].g.sync()
		for _, m := range all {
			require.Zero(t, m.report().Error, "%v", m.Failure())
			require.Equal(t, []uint64{7, 7, 0}, m.out)
			clear(m.out)
		}
	}
	for _, m := range all {
		m.proxy.Load().Stop()
		require.Equal(t, proxy.Stats{Sent: 21, Released: 21}, m.proxy.Load().Stats())
		require.NoError(t, m.proxy.Load().Err())
	}
}

// TestKernelsLoseAPeer: a kernel that waits for a message, or for room, goes on
// when the group takes that rank out, and when its own proxy ends.
func TestKernelsLoseAPeer(t *testing.T) {
	emu := emulate(t)
	emu.Schedule(testenv.Seed(t), 64, 4)
	for name, c := range map[string]struct {
		act  func(m *remoteMember)
		kind FailureKind
	}{
		"out":  {func(m *remoteMember) { m.link.Break(errors.New("lost")); m.SetMembers(1<<protocol.EpochShift | 1) }, 0},
		"over": {func(m *remoteMember) { m.proxy.Load().Stop() }, FailedProxy},
	} {
		t.Run(name, func(t *testing.T) {
			all := newRemote(t, emu, fake.New(fake.Config{Seed: 1}))
			m := all[0]
			m.launch(5) // the other one does nothing
			eventually(t, "it has sent one", func() bool { return m.proxy.Load().Stats().Sent == 1 })
			c.act(m)
			m.g.sync()
			require.Equal(t, c.kind, m.Failure().Kind)
			require.Equal(t, []uint64{1, 0, 0}, m.out)
		})
	}
}
