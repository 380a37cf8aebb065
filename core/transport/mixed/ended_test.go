package mixed

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
)

// TestToldOfADeath: a rank speaks for ranks of its own host, and for no others.
func TestToldOfADeath(t *testing.T) {
	g := newTroupe(t, []string{"a", "a", "b", "c"}, nil)
	tell := func(from int, ranks uint64) {
		b := binary.LittleEndian.AppendUint64([]byte{kindEnded}, ranks)
		require.True(t, g.domains[from].now.Load().view.controls.Load().Send(3, b))
	}
	dead := func(rank int) bool { return errors.Is(g.domains[3].Process(rank).Lost(), transport.ErrDead) }
	tell(2, 0b0011)                                                                             // of another host
	tell(1, 1<<1)                                                                               // itself
	tell(1, 1<<3)                                                                               // the one that is told
	tell(1, 1<<60)                                                                              // no rank
	tell(1, 1<<2)                                                                               // of another host
	require.True(t, g.domains[1].now.Load().view.controls.Load().Send(3, []byte{kindEnded, 1})) // cut off
	time.Sleep(100 * time.Millisecond)
	for rank := range 3 {
		require.False(t, dead(rank), "rank %d", rank)
	}
	tell(1, 1<<0)
	eventually(t, "rank 0 is dead", func() bool { return dead(0) })
	require.False(t, dead(1))
	require.True(t, g.domains[3].Process(0).Dying())
}
