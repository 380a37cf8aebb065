package cuda

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/protocol"
)

var moreForms = []protocol.Flags{0, protocol.FlagOrdered, protocol.FlagFlat | protocol.FlagOrdered}

// TestMore: every rank learns whether a rank that counts has more, whichever form the
// operation has, and nothing of the operation before it in the slot.
func TestMore(t *testing.T) {
	for _, flags := range moreForms {
		t.Run(fmt.Sprintf("flags=%#x", flags), func(t *testing.T) {
			g, o, _ := smallIn(t, 3, flags)
			for _, who := range []uint64{0b111, 0, 0b010, 0b101, 0} {
				require.Equal(t, []bool{who != 0, who != 0, who != 0}, g.peersHaveMore(o, who), "%b", who)
			}
		})
	}
}

// TestMoreOfALeftOutRank: a rank that is left out does not count, but learns of the
// others all the same: by the words of an owner that opens late.
func TestMoreOfALeftOutRank(t *testing.T) {
	g, o, _ := smallIn(t, 3, 0)
	g.peersHaveMore(o, 0b111)
	for _, r := range []int{0, 1} {
		o.active[r][2] = 0
	}
	require.Equal(t, []bool{false, false, true}, g.peersHaveMore(o, 0b100))
	for _, r := range []int{0, 1} {
		require.Equal(t, []int32{1, 1, 0}, o.active[r])
	}
	require.Equal(t, []bool{true, true, true}, g.peersHaveMore(o, 0b001))
	require.Equal(t, []bool{false, false, false}, g.peersHaveMore(o, 0))
}

// peersHaveMore runs a dispatch, releases it, and says what each rank heard.
func (g *group) peersHaveMore(o *op, who uint64) (heard []bool) {
	words := make([][]int32, len(g.ranks))
	for r, m := range g.ranks {
		c := &o.calls[r]
		c.PeersHaveMore, words[r] = tensor[int32](m, 1)
		words[r][0] = 7
		c.Flags = o.flags | protocol.Flags(who>>r&1)*protocol.FlagHasMore
		require.NoError(g.t, m.Send(c))
	}
	for r, m := range g.ranks {
		require.NoError(g.t, m.Receive(&o.calls[r]))
		require.NoError(g.t, m.Release(&o.calls[r].Call))
	}
	g.sync()
	for r, m := range g.ranks {
		require.Zero(g.t, m.report().Error)
		require.Contains(g.t, []int32{0, 1}, words[r][0])
		heard = append(heard, words[r][0] == 1)
	}
	return heard
}

// TestHostsMore: with ranks of other hosts messages say so: in order, those with
// counts.
func TestHostsMore(t *testing.T) {
	for _, flags := range moreForms {
		t.Run(fmt.Sprintf("flags=%#x", flags), func(t *testing.T) {
			g, o, _, _ := smallHostsIn(t, 2, flags)
			for _, who := range []uint64{0b11, 0, 0b01, 0b10, 0} {
				require.Equal(t, []bool{who != 0, who != 0}, g.peersHaveMore(o, who), "%b", who)
			}
		})
	}
}
