package sweep

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSweeper: what is left over is swept until nothing is, again when more comes, and
// not after Stop. No goroutine stays, which the bubble would notice.
func TestSweeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left, calls := 3, 0
		s := New("test", time.Second, func() bool { calls++; left--; return left <= 0 })
		s.Begin()
		s.Begin()
		synctest.Wait()
		require.Zero(t, calls)
		time.Sleep(10*time.Second + 1)
		require.Equal(t, 3, calls, "nothing is left")
		left = 100
		s.Begin()
		time.Sleep(2*time.Second + 1)
		require.Equal(t, 5, calls)
		s.Stop()
		s.Stop()
		s.Begin()
		time.Sleep(10 * time.Second)
		require.Equal(t, 5, calls)
	})
}

// TestLeftOverMeanwhile: what is left over while clean looks is not forgotten.
func TestLeftOverMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		var s *Sweeper
		s = New("test", time.Second, func() bool {
			if calls++; calls == 1 {
				s.Begin()
			}
			return true
		})
		s.Begin()
		time.Sleep(10 * time.Second)
		require.Equal(t, 2, calls)
		s.Stop()
	})
}

// TestPanic: a sweep that panics is the last one, until more is left over.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		s := New("test", time.Second, func() bool {
			if calls++; calls == 1 {
				panic("a mistake")
			}
			return true
		})
		for want := 1; want <= 2; want++ {
			s.Begin()
			time.Sleep(10 * time.Second)
			require.Equal(t, want, calls)
		}
		s.Stop()
	})
}
