package sweep

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// pass lets time pass, and what the sweeper did meanwhile be seen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestSweeper: what is left over is swept until nothing is, again when more comes, and
// not after Stop. No goroutine stays, which the bubble would notice.
func TestSweeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left, calls atomic.Int32
		left.Store(3)
		s := New("test", time.Second, func() bool { calls.Add(1); return left.Add(-1) <= 0 })
		s.Begin()
		s.Begin()
		synctest.Wait()
		require.Zero(t, calls.Load())
		pass(10*time.Second + 1)
		require.EqualValues(t, 3, calls.Load(), "nothing is left")
		left.Store(100)
		s.Begin()
		pass(2*time.Second + 1)
		require.EqualValues(t, 5, calls.Load())
		s.Stop()
		s.Stop()
		s.Begin()
		pass(10 * time.Second)
		require.EqualValues(t, 5, calls.Load())
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
		pass(10 * time.Second)
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
			pass(10 * time.Second)
			require.Equal(t, want, calls)
		}
		s.Stop()
	})
}
