package cpu_test

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device"
	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/tcp"
	"github.com/moewire/moewire/core/wire"
)

// newHostsWorld is a rank per entry, of the host that it names: shared memory
// within one, sockets between two.
func newHostsWorld(t *testing.T, hosts []string) *world {
	return newHostsWorldOf(t, hosts, ep.Config{NumBytes: 16 << 20})
}

func newHostsWorldOf(t *testing.T, hosts []string, cfg ep.Config) *world {
	w := connectHosts(t, hosts, cfg, kernels.NewReference, func(*multihost.Config) {})
	t.Cleanup(func() { w.each(func(r int) error { return w.bufs[r].Close() }) })
	return w
}

// connectHosts is newHostsWorldOf with such kernels, and a group that is edited. The caller closes
// the buffers.
func connectHosts(t testing.TB, hosts []string, cfg ep.Config, kern func() device.Kernels, edit func(*multihost.Config)) *world {
	params, err := cpu.Params(cfg, ep.Standing{})
	require.NoError(t, err)
	keys, at := wire.GenerateKeyring(), netip.MustParseAddrPort("127.0.0.1:0")
	listeners, all := make([]*multihost.Listener, len(hosts)), make([][]byte, len(hosts))
	for r, host := range hosts {
		group := multihost.Config{
			Shm: shm.Config{Rank: r, NumRanks: len(hosts), ControlBytes: layout.ControlBytes, ABIVersion: 1, Params: params},
			Carriers: []multihost.Carrier{{Setting: multihost.TCP, Open: func(int) (transport.Transport, error) {
				return tcp.Open(tcp.Config{Listen: []netip.AddrPort{at}, Keyring: keys})
			}}},
			Keys: keys, Listen: at, Host: host, Link: processLink, Bound: time.Hour, ReconnectFor: time.Hour,
			Words: []int64{layout.WaitsFor(), layout.Beat(), layout.Quiesced()}, Moments: []int64{layout.Since()},
		}
		edit(&group)
		listeners[r], err = multihost.Open(group)
		require.NoError(t, err)
		all[r] = listeners[r].Metadata()
	}
	w := &world{t: t, doms: make([]domain.Domain, len(hosts)), bufs: make([]*cpu.Buffer, len(hosts)), numBytes: cfg.NumBytes}
	w.each(func(r int) error {
		dom, err := listeners[r].Connect(all, processTimeout)
		if err == nil {
			w.doms[r] = dom
			w.bufs[r], err = cpu.New(dom, kern(), cfg)
		}
		return err
	})
	return w
}

var carriersOfHosts = map[string][]string{"shm": {"a", "a", "a"}, "tcp": {"a", "b", "c"}, "both": {"a", "a", "b"}}

// shortOf makes every call that makes a descriptor, or maps or grows memory, fail.
func shortOf(errno syscall.Errno) (stop func()) {
	return sys.InjectFaults(func(call string) error {
		if (call == "mmap" || call == "mremap") && errno != syscall.ENOMEM {
			return nil // takes no descriptor, and no space
		}
		return errno
	})
}

// TestFirstOperationsNeedNothing: a buffer of a given size has all that its operations
// need once it is made. From its first use on, no slot needs a descriptor or memory,
// over any carrier: a process that has none left goes on. (Only the
// slabs of ranks of its own host are mapped at their first use, which takes address
// space.)
func TestFirstOperationsNeedNothing(t *testing.T) {
	for carrier, hosts := range carriersOfHosts {
		for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC} {
			if errno == syscall.ENOMEM && carrier != "tcp" {
				continue
			}
			t.Run(fmt.Sprint(carrier, " ", errno), func(t *testing.T) {
				w := newHostsWorld(t, hosts)
				stop := shortOf(errno)
				defer stop()
				r := seeded(t)
				for range 5 { // more than there are slots
					s := randomShape(r, len(hosts))
					ins := inputs(r, s, uniform)
					w.each(func(rank int) error { return w.roundTrip(rank, s, ins) })
				}
			})
		}
	}
}
