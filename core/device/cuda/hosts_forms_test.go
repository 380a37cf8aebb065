package cuda

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport/fake"
)

// TestHostsForms runs every form on groups of which each
// rank is on a host of its own.
func TestHostsForms(t *testing.T) {
	emu, seed := driver(t), testenv.Seed(t)
	for i, f := range forms {
		if f.ranks == 1 || testing.Short() && i%4 != 0 {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			emu.Schedule(rng.Uint64(), 32, 6+f.ranks*f.ranks)
			f.ready = func(g *group) {
				g.putOnHosts(fake.New(fake.Config{Seed: seed}), mailing{
					hostOf: hosts(f.ranks, 1), ringBytes: 1 << 16, messageBytes: 1 << 14, length: 64,
				})
			}
			f.run(t, rng)
		})
	}
}

// smallHosts is small with each rank on a host of its own.
func smallHosts(t *testing.T, ranks int) (*group, *op, *layout.Slab, []*office) {
	return smallHostsIn(t, ranks, 0)
}

// TestHostsAreApart: remote ranks get messages, and nothing of theirs is in a
// shadow but outputs.
func TestHostsAreApart(t *testing.T) {
	g, o, slabs, offices := smallHosts(t, 2)
	g.exchange(g.rng, o, slabs)
	for _, office := range offices {
		office.proxy.Stop()
		require.GreaterOrEqual(t, office.proxy.Stats().Sent, uint64(1))
		require.NoError(t, office.proxy.Err())
	}
	if onDevice() {
		return // its memory is not the host's to read
	}
	for r, m := range g.ranks {
		shadow := m.remote.shadows[1-r].Address() + uint64(slabOff)
		for _, b := range region(shadow, slabs.Rows()) {
			require.Zero(t, b)
		}
	}
}
