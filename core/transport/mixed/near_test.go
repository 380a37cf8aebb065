package mixed

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNear: it is what a meeting finds of the same two ranks.
func TestNear(t *testing.T) {
	named := func(name string) host {
		h, err := thisHost(name)
		require.NoError(t, err)
		return h
	}
	here := Info{host: named("a")}
	elsewhere, apart, stranger, sockets := here, here, here, here
	elsewhere.host = named("b")
	apart.host.network++
	stranger.host.user++
	sockets.Setting = TCP
	require.True(t, here.Near(&here))
	for _, other := range []*Info{&elsewhere, &apart, &stranger} {
		require.False(t, here.Near(other))
		require.False(t, other.Near(&here))
	}
	require.False(t, sockets.Near(&sockets))
	for _, own := range []*Info{&here, &sockets} {
		other := *own
		r := &roster{infos: make([]Info, 2), why: make([]string, 2)}
		own.id[0], other.id[0] = 1, 2
		require.NoError(t, r.add(0, own, own))
		other.Shm.Rank = 1
		require.NoError(t, r.add(1, &other, own))
		require.Equal(t, own.Near(&other), r.near == 3)
	}
}
