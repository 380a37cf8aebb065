package membership

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/rankset"
)

// TestInstallBehindAWildWord: ranks that the group does not have, of another epoch, are taken out
// of the word. An update would look for a word without them, and swap it for ever.
func TestInstallBehindAWildWord(t *testing.T) {
	for name, wild := range map[string]uint64{
		"earlier": 1<<EpochShift | (1<<EpochShift - 1), "far behind": (MaxEpoch-100)<<EpochShift | (1<<EpochShift - 1),
	} {
		t.Run(name, func(t *testing.T) {
			var word atomic.Uint64
			g := NewGuard(func() Word { return &word }, rankset.Upto(3))
			g.Begin(2, rankset.Upto(3))
			word.Store(wild)
			require.Equal(t, wild&^((1<<EpochShift-1)&^0b111), g.Load())
			require.EqualValues(t, 1, g.Repaired())
			require.True(t, Install(g, 3, rankset.Of(0, 1)))
			require.EqualValues(t, 3<<EpochShift|0b011, word.Load())
		})
	}
}

// TestGuardOfNoEpoch: a rank that has begun none leaves the word as it is, also of epoch 0.
func TestGuardOfNoEpoch(t *testing.T) {
	var word atomic.Uint64
	g := NewGuard(func() Word { return &word }, rankset.Upto(3))
	word.Store(0b101)
	require.EqualValues(t, 0b101, g.Load())
	require.EqualValues(t, 0b101, word.Load())
	require.Zero(t, g.Repaired())
}
