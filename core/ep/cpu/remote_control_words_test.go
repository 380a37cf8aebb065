package cpu

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRaise: a word of a remote rank never goes back.
func TestRaise(t *testing.T) {
	var w atomic.Uint64
	for _, c := range [][2]uint64{{5, 5}, {3, 5}, {5, 5}, {9, 9}, {0, 9}} {
		raise(&w, c[0])
		require.Equal(t, c[1], w.Load())
	}
}
