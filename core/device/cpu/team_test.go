//go:build cgo

package cpu

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTeamPanics: whichever part panics, run does so too, not before all other
// parts have ended, and the team works on.
func TestTeamPanics(t *testing.T) {
	const parts = 4
	bad, ended := -1, atomic.Int32{}
	team := newTeam(parts, func(part int) {
		if part == bad {
			panic("part of a test")
		}
		ended.Add(1)
	})
	defer team.close()
	for bad = range parts {
		ended.Store(0)
		require.PanicsWithValue(t, "part of a test", func() { team.run(parts) })
		require.EqualValues(t, parts-1, ended.Load())
	}
	bad = -1
	ended.Store(0)
	team.run(parts)
	require.EqualValues(t, parts, ended.Load())
}
