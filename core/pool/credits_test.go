package pool

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCredits (SC8) sends grants late, twice, out of order and of another
// epoch, and compares with what the receiver has really freed.
func TestCredits(t *testing.T) {
	seed := seedOf(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for round := range 300 {
		const depth = 8
		var c Credits
		c.Begin(uint64(round), depth)
		sent, freed := uint64(0), uint64(0)
		var onTheWay []uint64
		for range 400 {
			switch rng.IntN(5) {
			case 0, 1:
				n := uint64(rng.IntN(3) + 1)
				if c.Take(n) {
					sent += n
				}
			case 2:
				if freed < sent {
					freed++
					onTheWay = append(onTheWay, freed+depth)
				}
			case 3:
				if len(onTheWay) > 0 { // any, and it may come again
					total := onTheWay[rng.IntN(len(onTheWay))]
					before := c.Left()
					if r := c.Grant(uint64(round), total); r == OldGrant {
						require.Equal(t, before, c.Left())
					}
				}
			case 4:
				before := c.Left()
				require.Equal(t, OtherEpoch, c.Grant(uint64(round)+1, 1<<40))
				require.Equal(t, TooMuch, c.Grant(uint64(round), sent+depth+1+rng.Uint64N(100)))
				require.Equal(t, before, c.Left())
			}
			require.LessOrEqual(t, sent-freed, uint64(depth), "more is out than the receiver has room for")
			require.LessOrEqual(t, c.Left(), uint64(depth))
		}
		require.Equal(t, freed == 0, c.Grant(uint64(round), freed+depth) == OldGrant && c.granted == depth)
		require.Equal(t, depth-(sent-freed), c.Left(), "after the newest grant all is known")
	}
}

// TestCreditsWrap: the sums may pass 2^64.
func TestCreditsWrap(t *testing.T) {
	var c Credits
	c.Begin(1, 4)
	c.granted, c.used = ^uint64(0)-1, ^uint64(0)-3
	require.True(t, c.Take(2))
	require.False(t, c.Take(1))
	require.Equal(t, Fresh, c.Grant(1, 1))
	require.EqualValues(t, 3, c.Left())
	require.Equal(t, OldGrant, c.Grant(1, ^uint64(0)))
}
