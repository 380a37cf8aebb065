package cpu

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSetOffsetAgainstCancel: a source that takes its rows back while the owner
// gives them a place has no place afterwards, in either order.
func TestSetOffsetAgainstCancel(t *testing.T) {
	var word atomic.Uint64
	for range 20000 {
		word.Store(5)
		started, done := make(chan struct{}), make(chan struct{})
		go func() {
			close(started)
			word.Store(0)
			close(done)
		}()
		<-started
		rows := setOffset(&word, 7)
		<-done
		require.Contains(t, []uint64{0, 5}, rows)
		require.Zero(t, word.Load()&(1<<32-1), "rows that nobody writes")
	}
}

// TestAssignedRefusesOtherPlaces: an owner's words give a place only if it is for as many
// rows as were announced, and lies inside the block.
func TestAssignedRefusesOtherPlaces(t *testing.T) {
	const capacity, announced = 16, 3
	for _, c := range []struct {
		word uint64
		fits bool
	}{
		{announced, true},
		{(capacity-announced)<<32 | announced, true},
		{(capacity-announced+1)<<32 | announced, false},
		{1<<63 | announced, false},
		{announced + 1, false},
		{0, false},
	} {
		require.Equal(t, c.fits, fitsOffset(c.word, announced, capacity), "%#x", c.word)
	}
}
