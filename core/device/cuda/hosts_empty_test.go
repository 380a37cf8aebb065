package cuda

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// TestHostsKeepAMessageWithoutRows: a rank that has no rows for a remote one, and finds no room to
// say so, keeps the message until its second phase, also where nothing was left before. All
// threads of the block that keeps it pass the same barriers, which the emulator sees to.
func TestHostsKeepAMessageWithoutRows(t *testing.T) {
	driver(t)
	kept := 0
	for tokens := 1; tokens <= 9; tokens++ { // some of them fill the ring, and leave nothing
		t.Run(fmt.Sprint(tokens), func(t *testing.T) { kept += withoutRows(t, tokens) })
	}
	require.Positive(t, kept)
}

// withoutRows sends the rows of so many tokens and then two messages without rows. It returns
// how many of these were kept where nothing was left before.
func withoutRows(t *testing.T, tokens int) (kept int) {
	emu := driver(t)
	rng := rngOf(testenv.Seed(t), 77, 0)
	emu.Schedule(rng.Uint64(), 64, 10)
	g, o, _ := narrowWith(t, rng, []int{0, 1}, 0, 3)
	for slot := range 3 {
		for i := range o.ids[0] {
			o.ids[0][i] = -1
			if slot == 0 && i%2 == 0 && i < 2*tokens {
				o.ids[0][i] = 2 // of rank 1
			}
		}
		before := g.left(g.ranks[0])
		require.NoError(t, g.ranks[0].Send(o.inSlot(0, slot)))
		g.ended(g.ranks[0], "a first phase")
		if slot > 0 && before == 0 {
			kept += g.left(g.ranks[0])
		}
	}
	for slot := range 3 {
		g.dispatchIn(o, 1, slot)
		require.NoError(t, g.ranks[0].Receive(o.inSlot(0, slot)))
	}
	g.allEnded("the dispatches")
	require.Zero(t, g.left(g.ranks[0]))
	return kept
}
