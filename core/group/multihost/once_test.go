package multihost

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// TestTP1Once: with auto, a device that does not work is tried once, whatever the
// number of remote ranks, and sockets are used from then on. With tcp no device is
// opened, and with rdma no socket carries anything.
func TestTP1Once(t *testing.T) {
	for setting, want := range map[Setting]struct{ devices, sockets int32 }{
		Auto: {4, 4}, TCP: {0, 4}, RDMA: {4, 0},
	} {
		t.Run(setting.String(), func(t *testing.T) {
			var devices, sockets atomic.Int32
			keys, listeners := wire.GenerateKeyring(), make([]*Listener, 4)
			for r, host := range []string{"a", "b", "c", "d"} {
				cfg := testConfig(keys, r, 4, host)
				cfg.Setting = setting
				open := cfg.Carriers[0].Open
				cfg.Carriers = []Carrier{
					{Setting: RDMA, Open: func(turn int) (transport.Transport, error) {
						devices.Add(1)
						return nil, errors.New("there is no device")
					}},
					{Setting: TCP, Open: func(turn int) (transport.Transport, error) { sockets.Add(1); return open(turn) }},
				}
				var err error
				listeners[r], err = Open(cfg)
				require.NoError(t, err)
				defer listeners[r].Close()
			}
			g := &troupe{t: t, domains: make([]*Domain, 4)}
			err := errors.Join(g.connect(listeners)...)
			defer g.close()
			require.Equal(t, want.sockets, sockets.Load(), "sockets")
			if setting == RDMA { // the first one to find out ends the rendezvous
				require.NotZero(t, devices.Load(), "devices")
				require.ErrorContains(t, err, "no carrier works for transport rdma")
				return
			}
			require.NoError(t, err)
			for r, d := range g.domains {
				for to, p := range d.Paths() {
					require.True(t, r == to || p.Carrier == "tcp", "%d to %d: %+v", r, to, p)
				}
			}
			for _, d := range g.domains {
				_, _, err := d.carriers.open(0) // as each change of the members does
				require.NoError(t, err)
			}
			require.Equal(t, want.devices, devices.Load(), "devices")
			require.Equal(t, want.sockets, sockets.Load(), "sockets")
			g.exchange("over sockets")
		})
	}
}
