package cuda

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// TestHostsNothingRaces: all accesses of ranks that reach one another by messages
// are ordered: combines again, releases, two operations under way, a slot at once
// again. Some may share a host. (What the proxy and its links move is not watched.)
func TestHostsNothingRaces(t *testing.T) {
	testenv.InAll(t)
	emu := emulate(t)
	emu.Watch(t)
	seed := testenv.Seed(t)
	for name, flags := range watchedForms {
		for i, hostOf := range [][]int{{0, 1}, {0, 0, 1}} {
			if !testenv.Long(t) && (seed+uint64(i))%2 != 0 {
				continue
			}
			t.Run(fmt.Sprint(name, hostOf), func(t *testing.T) {
				rng := rngOf(seed, 37, flags, i)
				emu.Schedule(rng.Uint64(), 32, 8+len(hostOf)*len(hostOf))
				g, o := tight(t, rng, hostOf, flags)
				for n, i := range []int{0, 1, 2, 4, 7} { // without the one that leaves a rank out
					for r := range g.ranks {
						g.step(o, r, i, []int{0, 0, 1, 1, 0}[n])
					}
				}
				for range 4 - len(hostOf) { // three take longer
					for r := range g.ranks {
						g.twoAtOnce(o, r)
					}
				}
				for r, m := range g.ranks {
					g.releaseUncombined(m, &o.calls[r])
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
}

// releaseUncombined is an operation that is not combined.
func (g *group) releaseUncombined(m *member, c *Dispatch) {
	require.NoError(g.t, m.Send(c))
	require.NoError(g.t, m.Receive(c))
	require.NoError(g.t, m.SendRest(&c.Call))
	require.NoError(g.t, m.Release(&c.Call))
}
