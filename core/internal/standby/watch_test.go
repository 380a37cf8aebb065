package standby

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const every = time.Millisecond

// TestRest: it ends once there was no call for a while, and no caller is inside.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(every)
		timer := time.NewTimer(every)
		ended := make(chan bool)
		rest := func() { ended <- w.Rest(timer) }
		begin := time.Now()
		go rest()
		require.True(t, <-ended)
		require.Equal(t, every, time.Since(begin))

		go rest()
		for range 10 {
			time.Sleep(every / 2)
			w.Call()
		}
		begin = time.Now()
		require.True(t, <-ended)
		require.LessOrEqual(t, time.Since(begin), 2*every)
		require.Positive(t, time.Since(begin))

		w.Enter()
		w.Enter()
		require.True(t, w.IsBusy())
		go rest()
		time.Sleep(time.Hour)
		w.Leave()
		time.Sleep(time.Hour)
		begin = time.Now()
		w.Leave()
		require.True(t, <-ended)
		require.Equal(t, every, time.Since(begin))
		require.EqualValues(t, 12, w.Calls())
	})
}

// TestQuit ends a rest for good, whatever callers do.
func TestQuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, inside := range []bool{false, true} {
			w := New(every)
			if inside {
				w.Enter()
			}
			ended := make(chan bool)
			go func() { ended <- w.Rest(time.NewTimer(every)) }()
			if synctest.Wait(); inside {
				time.Sleep(time.Hour)
			}
			require.False(t, w.Quits())
			w.Quit()
			w.Quit()
			require.False(t, <-ended)
			require.True(t, w.Quits())
			require.False(t, w.Rest(time.NewTimer(every)))
		}
	})
}
