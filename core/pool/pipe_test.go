package pool

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// pipe sends over a link that takes one unit per tick and gives a unit's
// context back some ticks later, at most delay; it returns how many units went
// in so many ticks. Time is a count: no machine is too slow for it.
func pipe(t *testing.T, rng *rand.Rand, size, delay, ticks int) (units int) {
	clean := func(int) error { return nil }
	p, err := New(Config[int]{Cap: size, Make: func() (int, error) { return 0, nil }, Clean: clean})
	require.NoError(t, err)
	defer p.Close()
	back := make([][]Lease[int], ticks+delay+1)
	for now := range ticks {
		for _, l := range back[now] {
			require.NoError(t, p.Put(l))
		}
		p.Drain(len(back[now]))
		l, err := p.Get()
		if err != nil {
			require.ErrorIs(t, err, ErrWouldBlock)
			continue
		}
		units++
		at := now + delay - rng.IntN(delay/8+1)
		back[at] = append(back[at], l)
	}
	for _, all := range back[ticks:] {
		for _, l := range all {
			require.NoError(t, p.Put(l))
		}
	}
	return units
}

// TestSC9: a cap of the delay-bandwidth product costs at most 5 % of what goes
// without one; half of it does cost.
func TestSC9(t *testing.T) {
	seed := seedOf(t)
	const ticks = 4000
	for i := range uint64(50) {
		rng := func() *rand.Rand { return rand.New(rand.NewPCG(seed, i)) }
		delay := 8 + int(i)
		free := pipe(t, rng(), ticks, delay, ticks)
		require.Equal(t, ticks, free)
		require.GreaterOrEqual(t, pipe(t, rng(), delay, delay, ticks)*100, 95*free, "delay %d", delay)
		require.Less(t, pipe(t, rng(), delay/2, delay, ticks)*100, 75*free, "delay %d", delay)
	}
}
