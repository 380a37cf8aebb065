package link

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// TestCounts: what a link counts is what its user has done, and what it has
// refused.
func TestCounts(t *testing.T) {
	rng := rand.New(rand.NewPCG(seedOf(t), 0))
	a, b := pair(t, fake.New(fake.Config{Seed: 1}), Config{RingBytes: 1 << 16, NumMessages: 4})
	var want Stats
	for range 200 {
		n := 1 + rng.Int64N(3000)
		_, err := a.Reserve(1, n)
		if err != nil {
			require.ErrorIs(t, err, transport.ErrWouldBlock)
			want.Blocked++
			for left := 0; left == 0; left, _ = a.link.Credits() {
				b.receive(t)
				b.Release(0)
				a.wait()
			}
			continue
		}
		require.NoError(t, a.Post(1, n))
		want.SentMessages, want.SentBytes = want.SentMessages+1, want.SentBytes+uint64(n)
	}
	require.NotZero(t, want.Blocked)
	eventually(t, func() bool {
		if b.Next(0) != nil {
			b.Release(0)
		}
		left, most := a.link.Credits()
		require.Equal(t, 4, most)
		return left == most && b.link.Stats().ReceivedMessages == want.SentMessages
	})
	require.Equal(t, want, a.link.Stats())
	require.Equal(t, Stats{ReceivedMessages: want.SentMessages, ReceivedBytes: want.SentBytes}, b.link.Stats())

	a.send(t, []byte("outstanding"))
	left, _ := a.link.Credits()
	require.Equal(t, 3, left)
	_, err := a.Reserve(1, 8)
	require.NoError(t, err)
	a.link.fail(errors.New("test"))
	require.NoError(t, a.Post(1, 8))
	require.Equal(t, uint64(1), a.link.Stats().Dropped)

	sum := a.link.Stats()
	sum.Add(want)
	require.Equal(t, 2*want.SentMessages+1, sum.SentMessages)
	require.Equal(t, 2*want.Blocked, sum.Blocked)
}

// TestCreditsWhileUsed: whatever is under way, they are from 0 to the bound.
func TestCreditsWhileUsed(t *testing.T) {
	a, b := pair(t, fake.New(fake.Config{Seed: 1}), Config{RingBytes: MinRingBytes, NumMessages: 3})
	end := make(chan bool)
	go func() {
		defer close(end)
		for range 300 {
			b.receive(t)
			b.Release(0)
		}
	}()
	go func() {
		for range 300 {
			a.send(t, []byte("x"))
		}
	}()
	for begin := time.Now(); time.Since(begin) < testTimeout; {
		left, most := a.link.Credits()
		require.True(t, left >= 0 && left <= most, left)
		select {
		case <-end:
			return
		default:
		}
	}
}
