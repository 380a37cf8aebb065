package cpu_test

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/tcp"
	"github.com/moewire/moewire/core/wire"
)

// newRelayedWorld is ranks of as many hosts, connected by sockets through a
// relay each.
func newRelayedWorld(t *testing.T, ranks int) (w *world, doms []*multihost.Domain, relays []*testenv.Relay) {
	cfg := ep.Config{NumBytes: 16 << 20}
	params, err := cpu.Params(cfg, ep.Standing{})
	require.NoError(t, err)
	keys, at := wire.GenerateKeyring(), netip.MustParseAddrPort("127.0.0.1:0")
	var mu sync.Mutex // one after the other, to tell which rank has which port
	listeners, all := make([]*multihost.Listener, ranks), make([][]byte, ranks)
	for r := range ranks {
		relay := testenv.NewRelay(t)
		relays = append(relays, relay)
		listeners[r], err = multihost.Open(multihost.Config{
			Shm: shm.Config{Rank: r, NumRanks: ranks, ControlBytes: layout.ControlBytes, ABIVersion: 1, Params: params},
			Carriers: []multihost.Carrier{{Setting: multihost.TCP, Open: func(int) (transport.Transport, error) {
				mu.Lock()
				defer mu.Unlock()
				before := testenv.Listening(t)
				tr, err := tcp.Open(tcp.Config{Listen: []netip.AddrPort{at}, Keyring: keys, Advertise: []netip.AddrPort{relay.Addr()}})
				for port := range testenv.Listening(t) {
					if !before[port] {
						relay.PassTo(netip.AddrPortFrom(at.Addr(), port))
					}
				}
				return tr, err
			}}},
			Keys: keys, Listen: at, Host: string(rune('a' + r)), Link: processLink,
			Bound: time.Hour, ReconnectFor: time.Hour, // a starving rank is not dead
			Words: []int64{layout.WaitsFor(), layout.Beat(), layout.Quiesced()}, Moments: []int64{layout.Since()},
		})
		require.NoError(t, err)
		all[r] = listeners[r].Metadata()
	}
	w = &world{t: t, bufs: make([]*cpu.Buffer, ranks), numBytes: cfg.NumBytes}
	doms = make([]*multihost.Domain, ranks)
	w.each(func(r int) (err error) {
		doms[r], err = listeners[r].Connect(all, processTimeout)
		return err
	})
	for r, d := range doms {
		w.bufs[r], err = cpu.New(d, kernels.NewReference(), cfg)
		require.NoError(t, err)
	}
	t.Cleanup(func() { w.each(func(r int) error { return w.bufs[r].Close() }) })
	return w, doms, relays
}

// TestRemoteLinksBreak: dispatch and combine go on with right results, and no rank
// is missing, while data connections are reset in the middle of what they carry.
func TestRemoteLinksBreak(t *testing.T) {
	before := callTimeout
	callTimeout = processTimeout
	defer func() { callTimeout = before }()
	r := seeded(t)
	w, doms, relays := newRelayedWorld(t, 3)
	for _, relay := range relays {
		relay.Reset(r.Uint64(), 32<<10, 256<<10)
		relay.Cut() // what is there has no end
	}
	for i := range 40 {
		s := randomShape(r, 3)
		ins := inputs(r, s, routings[i%len(routings)])
		w.each(func(rank int) error { return w.roundTrip(rank, s, ins) })
	}
	var reconnects uint64
	for rank, d := range doms {
		require.EqualValues(t, rankset.Upto(3), w.bufs[rank].Members())
		for _, f := range d.RemoteRanks() {
			reconnects += f.Reconnects
			require.Zero(t, f.Dropped)
		}
	}
	require.NotZero(t, reconnects)
	for _, relay := range relays {
		relay.Reset(0, 0, 0)
	}
}
