package protocol

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFits: at the edges, and where sums would wrap.
func TestFits(t *testing.T) {
	for _, c := range []struct {
		begin, n, capacity uint64
		want               bool
	}{
		{0, 0, 0, true}, {0, 1, 0, false}, {0, 8, 8, true}, {1, 8, 8, false}, {8, 0, 8, true}, {9, 0, 8, false},
		{math.MaxUint64, 1, 8, false}, {math.MaxUint64 - 3, 4, 8, false}, {math.MaxUint64 - 7, 8, 8, false},
		{math.MaxUint64 - 1, 4, 8, false}, {1 << 63, 1, 8, false}, {1 << 32, 1, 1 << 31, false},
		{4, math.MaxUint64, 8, false}, {math.MaxUint64, math.MaxUint64, math.MaxUint64, false},
	} {
		require.Equal(t, c.want, Fits(c.begin, c.n, c.capacity), "%+v", c)
	}
}

// TestSealed: a sealed word with any one bit or two bits changed is none.
func TestSealed(t *testing.T) {
	for _, op := range []uint64{0, 1, 2, 7, 1000, 1<<43 - 1} {
		for _, source := range []int{0, 1, MaxRanks - 1} {
			word := Sealed(op, source)
			require.True(t, IsFor(word, op))
			require.True(t, IsSealed(word, source))
			require.False(t, IsSealed(word, source^1))
			for i := range 64 {
				require.False(t, IsSealed(word^1<<i, source), "op %d, source %d, bit %d", op, source, i)
			}
		}
	}
	require.True(t, IsSealed(0, 3))
}
