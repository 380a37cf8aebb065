package cuda_test

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/cudaring"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/telemetry"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/tcp"
	"github.com/moewire/moewire/core/wire"
)

// hosts is a group of ranks on pretended hosts, over sockets.
type hosts struct {
	t         *testing.T
	cfg       cuda.Config
	emu       *cudatest.Driver
	devs      []*device.Device
	listeners []*multihost.Listener
	ranks     []*rank
}

// hostsConfig is a rank's way into such a group. Rings are so small that most
// operations need several messages.
func hostsConfig(d *device.Device, keys *wire.Keyring, local shm.Config, of string, rings bool) multihost.Config {
	at := netip.MustParseAddrPort("127.0.0.1:0")
	cfg := multihost.Config{
		Shm: local, Keys: keys, Listen: at, Host: of[local.Rank : local.Rank+1],
		Carriers: []multihost.Carrier{{Setting: multihost.TCP, Open: func(int) (transport.Transport, error) {
			return tcp.Open(tcp.Config{Listen: []netip.AddrPort{at}, Keyring: keys})
		}}},
		Link:  link.Config{RingBytes: 1 << 12, NumMessages: 4},
		Bound: time.Hour, ReconnectFor: time.Hour, // a starved rank is not dead
		Words:   []int64{layout.WaitsFor(), layout.Beat(), layout.Quiesced(), layout.Record() + telemetry.LeftOffset()},
		Moments: []int64{layout.Since()},
	}
	if rings {
		cfg.Rings = func(carrier transport.Transport, n int64) (domain.Segment, error) {
			return cudaring.For(d, carrier).Make(n)
		}
	}
	return cfg
}

// openHosts listens for ranks on the hosts that the letters name. Without rings
// their messages lie where the device does not see them.
func openHosts(t *testing.T, of string, rings bool) *hosts {
	return openHostsAs(t, of, rings, configOf(t, len(of)))
}

func openHostsAs(t *testing.T, of string, rings bool, as cuda.Config) *hosts {
	h := &hosts{t: t, emu: cudatest.Open(t), cfg: as}
	h.emu.Schedule(testenv.Seed(t), 16, 8+len(of)*len(of))
	params, err := as.Params(ep.Standing{})
	require.NoError(t, err)
	keys := wire.GenerateKeyring()
	for r := range len(of) {
		d, err := openDevice(t, h.emu)
		require.NoError(t, err)
		h.devs = append(h.devs, d)
		cfg := hostsConfig(d, keys, shm.Config{
			Rank: r, NumRanks: len(of), ControlBytes: layout.ControlBytes, ABIVersion: 1, Params: params,
		}, of, rings)
		l, err := multihost.Open(cfg)
		require.NoError(t, err)
		h.listeners = append(h.listeners, l)
	}
	return h
}

// meet connects the ranks' domains.
func (h *hosts) meet() (doms []domain.Domain) {
	var all [][]byte
	for _, l := range h.listeners {
		all = append(all, l.Metadata())
	}
	doms, errs := make([]domain.Domain, len(all)), make([]error, len(all))
	var together sync.WaitGroup
	for r, l := range h.listeners {
		together.Go(func() { doms[r], errs[r] = l.Connect(all, connectIn) })
	}
	together.Wait()
	for _, err := range errs {
		require.NoError(h.t, err)
	}
	return doms
}

// newHosts makes connected buffers.
func newHosts(t *testing.T, of string) *hosts {
	return newHostsOver(t, of, func(dom domain.Domain) domain.Domain { return dom })
}

// newHostsOver has buffers use something else in place of their domains.
func newHostsOver(t *testing.T, of string, over func(domain.Domain) domain.Domain) *hosts {
	return openHosts(t, of, true).connect(over)
}

// connect makes the buffers of hosts, and connects them.
func (h *hosts) connect(over func(domain.Domain) domain.Domain) *hosts {
	t := h.t
	for r, dom := range h.meet() {
		h.ranks = append(h.ranks, newRankOn(t, h.devs[r], h.emu, over(dom), h.cfg))
	}
	t.Cleanup(func() { closeAll(h.ranks) })
	errs := make([]error, len(h.ranks))
	var together sync.WaitGroup
	for r, one := range h.ranks {
		together.Go(func() { errs[r] = one.Connect(connectIn) })
	}
	together.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	return h
}

// TestHosts: dispatch and combine of ranks of which some are on other hosts, over
// sockets, by kernels and proxies.
func TestHosts(t *testing.T) {
	for _, of := range []string{"ab", "aab", "aabb"} {
		t.Run(of, func(t *testing.T) {
			h := newHosts(t, of)
			rng := rand.New(rand.NewPCG(testenv.Seed(t), 3))
			for range 5 {
				var all []*op
				for _, r := range h.ranks {
					all = append(all, newOp(r, rng))
				}
				for _, o := range all {
					o.run()
				}
				for _, o := range all {
					o.r.sync()
					require.NoError(t, o.r.Err())
					o.check()
				}
				for _, r := range h.ranks {
					r.used = 256 // but active
				}
			}
			for r, one := range h.ranks {
				for other := range of {
					require.Equal(t, of[r] != of[other], one.Path(other) == "messages")
				}
			}
		})
	}
}

// TestHostsNeedRings: messages that the device does not see are refused, by name.
func TestHostsNeedRings(t *testing.T) {
	h := openHosts(t, "ab", false)
	for r, dom := range h.meet() {
		_, err := cuda.New(dom, h.devs[r], configOf(t, 2))
		require.ErrorIs(t, err, ep.ErrInvalid)
		require.ErrorContains(t, err, "is on another host")
		require.NoError(t, dom.Close())
		require.NoError(t, h.devs[r].Close())
	}
}

// TestHostsInstallAgain: an Install that comes after one that has failed late changes
// links that no proxy looks at.
func TestHostsInstallAgain(t *testing.T) {
	r := newHosts(t, "ab").ranks[0]
	require.True(t, r.ProxyRuns())
	_, err := r.Prepare()
	require.NoError(t, err)
	members := r.dom.Members()
	next := membership.Members(members.Load()).Epoch() + 1
	require.True(t, membership.Install(members, next+1, r.dom.Present()))
	for range 2 {
		runs := true
		err := r.Install(next, 0, func() error {
			runs = r.ProxyRuns()
			return nil
		}, connectIn)
		require.ErrorIs(t, err, ep.ErrFenced)
		require.False(t, runs)
		require.True(t, r.ProxyRuns(), "it has failed late")
	}
}
