package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// TestHostsNothingRaces: all accesses of ranks that reach one another by messages
// are ordered: combines again, releases, two operations under way, a slot at once
// again. (What the proxy and its links move is not watched.)
func TestHostsNothingRaces(t *testing.T) {
	emu := emulate(t)
	emu.Watch(t)
	seed := testenv.Seed(t)
	for name, flags := range watchedForms {
		t.Run(name, func(t *testing.T) {
			rng := rngOf(seed, 37, flags)
			emu.Order(rng.Uint64(), 32, 12)
			g, o := tight(t, rng, []int{0, 1}, flags)
			for n, i := range []int{0, 1, 2, 4, 7} { // without the one that leaves a rank out
				for r := range g.ranks {
					g.step(o, r, i, []int{0, 0, 1, 1, 0}[n])
				}
			}
			for range 2 {
				for r := range g.ranks {
					g.twoAtOnce(o, r)
				}
			}
			g.sync()
			for r, m := range g.ranks {
				require.Zero(t, m.report().Error, "%v", m.Failure())
				o.checkIdentity(t, r)
			}
			require.Empty(t, emu.Races())
		})
	}
}
