package link

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport/fake"
)

// TestTaken: a message was taken when the peer has released it, and that is
// known here; one to a link that has failed never will be.
func TestTaken(t *testing.T) {
	a, b := pair(t, fake.New(fake.Config{Seed: seedOf(t)}), Config{RingBytes: MinRingBytes, NumMessages: 4})
	require.True(t, a.Taken(1))
	a.send(t, []byte("one"))
	a.send(t, []byte("two"))
	for range 2 {
		b.receive(t)
		require.False(t, a.Taken(1))
		b.Release(0)
	}
	require.Eventually(t, func() bool { return a.Taken(1) }, patience, time.Millisecond)
	a.send(t, []byte("three"))
	require.False(t, a.Taken(1))
	a.link.Break(errMisplaced)
	require.True(t, a.Taken(1))
	require.True(t, a.Taken(5), "no link")
}
