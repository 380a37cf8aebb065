package op

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEndsOnce(t *testing.T) {
	boom := errors.New("boom")
	for _, first := range []State{Done, Failed, Cancelled} {
		var o Op
		require.Equal(t, Pending, o.State())
		require.NoError(t, o.Err())
		err := boom
		if first == Done {
			err = nil
		}
		require.True(t, o.End(first, err))
		require.False(t, o.End(Failed, errors.New("late")))
		require.Equal(t, first, o.State())
		require.Equal(t, err, o.Err())
	}
	var o Op
	require.False(t, o.End(Pending, nil), "pending is not an end")
	require.True(t, o.End(Cancelled, nil))
	require.ErrorIs(t, o.Err(), ErrCancelled)
}

// TestRace: of many calls of End one wins, and all see its state and error.
func TestRace(t *testing.T) {
	for range 500 {
		var o Op
		var wg sync.WaitGroup
		won := make([]bool, 4)
		states := []State{Done, Failed, Cancelled, Failed}
		errs := []error{nil, errors.New("a"), errors.New("b"), errors.New("c")}
		for i := range won {
			wg.Add(1)
			go func() {
				defer wg.Done()
				won[i] = o.End(states[i], errs[i])
			}()
		}
		wg.Wait()
		winners := 0
		for i, w := range won {
			if w {
				winners++
				require.Equal(t, states[i], o.State())
				require.Equal(t, errs[i], o.Err())
			}
		}
		require.Equal(t, 1, winners)
	}
}
