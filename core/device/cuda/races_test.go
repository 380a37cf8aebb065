package cuda

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/internal/testenv"
)

// TestNothingRaces: in a sequence of operations whose ranks hear of one another
// by the kernels' words alone, all accesses are ordered by them.
func TestNothingRaces(t *testing.T) {
	emu := emulate(t)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 19))
	emu.watch(t)
	unsynchronised(t, emu, rng)
	races := emu.races()
	require.Empty(t, races)
}

// unsynchronised runs operations of two ranks, of each kind. The host waits at
// the end only.
func unsynchronised(t *testing.T, emu *emulator, rng *rand.Rand) {
	emu.order(rng.Uint64(), 32, 8)
	s := layout.Shape{MaxTokens: 12, Hidden: 64, NumExperts: 4, NumRanks: 2}
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	g := newGroup(t, 2, 2, slabs.SizeBytes)
	g.fewest = 10 // more than blocks
	for _, m := range g.ranks {
		m.threads = threads{plan: 8, row: 8, wait: 8}
	}
	o := g.random(rng, s, 2, 0, 0)
	for i, slot := range []int{0, 0, 1, 1, 0, 1, 0} { // a slot at once again, or two in turn
		for r := range g.ranks {
			g.step(o, r, i, slot)
		}
	}
	g.sync()
	for r, m := range g.ranks {
		require.Zero(t, m.report().Error)
		o.checkIdentity(t, r)
	}
}

// step is the i-th operation of rank r: some are combined again, some released.
func (g *group) step(o *op, r, i, slot int) {
	m := g.ranks[r]
	o.calls[r].Stats, _ = tensor[int64](m, 2)
	g.identity(o, r, slot)
	if i%3 == 1 {
		g.identityAgain(o, r, slot)
	}
	if i%4 == 3 {
		c := o.calls[r].Call
		c.Slot = slot
		require.NoError(g.t, m.Release(&c))
	}
}

// TestEveryOrderIsNeeded leaves each use of ordering without its effect, one at
// a time: something races then, in every order of turns.
func TestEveryOrderIsNeeded(t *testing.T) {
	emu := emulate(t)
	seed := testenv.Seed(t)
	emu.watch(t)
	t.Run("all", func(t *testing.T) {
		unsynchronised(t, emu, rand.New(rand.NewPCG(seed, 23)))
		require.Empty(t, emu.races())
	})
	for _, use := range emu.uses() {
		t.Run(use, func(t *testing.T) {
			emu.leaveOut(use)
			unsynchronised(t, emu, rand.New(rand.NewPCG(seed, 29)))
			found := emu.races()
			require.NotEmpty(t, found)
			first, _, _ := strings.Cut(found, "\n")
			t.Log(first)
		})
	}
}
