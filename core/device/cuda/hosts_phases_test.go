package cuda

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/internal/testenv"
)

// phase is one of an operation's in a slot.
type phase struct {
	slot    int
	combine bool
}

// firstPhases draws the order of first phases, which is that of all ranks.
func firstPhases(rng *rand.Rand, ops int) (all []phase) {
	var done [2]int // phases of each slot
	for done[0]+done[1] < 4*ops {
		slot := rng.IntN(2)
		if done[slot] == 2*ops {
			slot = 1 - slot
		}
		all = append(all, phase{slot, done[slot]%2 == 1})
		done[slot]++
	}
	return all
}

// play launches a rank's phases: the second ones when it likes, before the next first
// one of the slot.
func (g *group) play(o *op, r int, rng *rand.Rand, firsts []phase) {
	m := g.ranks[r]
	s, err := layout.Of(o.shape)
	require.NoError(g.t, err)
	var open []phase
	call := func(p phase, split bool) (*Dispatch, *Combine) {
		d := o.calls[r]
		d.Slot, d.Ticket, d.Split = p.slot, uint64(p.slot), split
		c := o.combine(r, m.Slab(p.slot)+uint64(s.RowsOff))
		c.Slot, c.Ticket, c.Split = p.slot, uint64(p.slot), split
		return &d, c
	}
	second := func(i int) {
		d, c := call(open[i], true)
		if open[i].combine {
			require.NoError(g.t, m.Reduce(c))
		} else {
			require.NoError(g.t, m.Receive(d))
		}
		open = slices.Delete(open, i, i+1)
	}
	for _, p := range firsts {
		if i := slices.IndexFunc(open, func(q phase) bool { return q.slot == p.slot }); i >= 0 {
			second(i)
		}
		split := rng.IntN(3) > 0
		d, c := call(p, split)
		if p.combine {
			require.NoError(g.t, m.Publish(c))
		} else {
			require.NoError(g.t, m.Send(d))
		}
		open = append(open, p)
		if !split {
			second(len(open) - 1)
		}
		for len(open) > 0 && rng.IntN(2) == 0 {
			second(rng.IntN(len(open)))
		}
	}
	for len(open) > 0 {
		second(rng.IntN(len(open)))
	}
}

// TestHostsPhasesInAnyOrder: ranks launch first phases in one order, second ones in
// an order of their own, some at once; rings hold less than one operation.
func TestHostsPhasesInAnyOrder(t *testing.T) {
	emu, seed := driver(t), testenv.Seed(t)
	for name, flags := range watchedForms {
		for i, hostOf := range [][]int{{0, 1}, {0, 1, 2}} {
			for n := range 4 {
				if testing.Short() && n > 0 {
					continue
				}
				rng := rngOf(seed, 63, flags, i, n)
				emu.Schedule(rng.Uint64(), 16, 6+len(hostOf)*len(hostOf))
				t.Run(fmt.Sprint(name, hostOf), func(t *testing.T) {
					g, o, _ := narrow(t, rng, hostOf, flags)
					firsts := firstPhases(rng, 2)
					for r := range g.ranks {
						g.play(o, r, rng, firsts)
					}
					g.allEnded("all phases")
					for r, m := range g.ranks {
						require.Zero(t, g.left(m))
						o.checkIdentity(t, r)
					}
				})
			}
		}
	}
}

// TestHostsPhasesInACircle: of three ranks each is in another operation's second phase,
// and has left something of the one that another is in. In one of them two ranks have
// nothing for one another: a rank with nothing to say there sends what is left all the
// same, as long as it waits for the third.
func TestHostsPhasesInACircle(t *testing.T) {
	emu, seed := driver(t), testenv.Seed(t)
	for n := range 4 {
		rng := rngOf(seed, 66, protocol.Flags(n))
		emu.Schedule(rng.Uint64(), 16, 16)
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			g, o, slabs := narrowWith(t, rng, []int{0, 1, 2}, 0, 3)
			g.keeps = true
			apart := g.random(rng, o.shape, 2, 0, 0)
			for r := range 2 { // ranks 0 and 1 have rows for rank 2 alone, which has experts 4 and 5
				for i := range apart.ids[r] {
					apart.ids[r][i] = 4 + int64(i%2)
				}
			}
			g.begin(t, apart, slabs)
			for r := range g.ranks {
				g.firstOfThree(o, apart, r)
			}
			g.allEnded("first phases")
			for _, slots := range [3][3]int{{1, 0, 2}, {2, 1, 1}, {0, 2, 0}} { // by turn and rank
				for r, slot := range slots {
					g.secondOf(o, apart, r, slot)
				}
			}
			g.allEnded("all phases")
			for r, m := range g.ranks {
				require.Zero(t, g.left(m))
				apart.checkSums(t, r)
			}
		})
	}
}
