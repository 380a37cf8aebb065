package proxy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNaps(t *testing.T) {
	for _, c := range []struct{ idle, most, want time.Duration }{
		{0, time.Millisecond, 20 * time.Microsecond},
		{160 * time.Microsecond, time.Millisecond, 20 * time.Microsecond},
		{400 * time.Microsecond, time.Millisecond, 50 * time.Microsecond},
		{8 * time.Millisecond, time.Millisecond, time.Millisecond},
		{time.Hour, time.Millisecond, time.Millisecond},
		{time.Hour, 5 * time.Microsecond, 5 * time.Microsecond},
	} {
		require.Equal(t, c.want, napAfter(c.idle, c.most), "after %v, at most %v", c.idle, c.most)
	}
}

// TestNapsAreFewAndShort follows the looks of a proxy that nothing comes to: each
// is late by an eighth of the time before it at most, and a second takes some
// thousand.
func TestNapsAreFewAndShort(t *testing.T) {
	looks := 0
	for idle := time.Duration(0); idle < time.Second; looks++ {
		nap := napAfter(idle, defaultNap)
		require.LessOrEqual(t, nap, max(firstNap, idle/8))
		idle += nap
	}
	require.Less(t, looks, 1200)
}

// TestWhoEndsASleep: without them it would take an hour.
func TestWhoEndsASleep(t *testing.T) {
	p, timer := &Proxy{bell: make(chan struct{}, 1)}, time.NewTimer(time.Hour)
	for _, wake := range []func(){p.Ring, func() { p.Settle() }} {
		wake()
		wake() // of which one is enough
		require.True(t, p.sleep(timer, time.Hour))
		require.False(t, p.sleep(timer, time.Nanosecond))
	}
}
