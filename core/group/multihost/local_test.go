package multihost

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/rankset"
)

// TestLocalTo: it is what a rendezvous finds of the same two ranks.
func TestLocalTo(t *testing.T) {
	named := func(name string) host {
		h, err := thisHost(name)
		require.NoError(t, err)
		return h
	}
	here := Info{host: named("a")}
	elsewhere, apart, foreign, sockets := here, here, here, here
	elsewhere.host = named("b")
	apart.host.network++
	foreign.host.user++
	sockets.Setting = TCP
	require.True(t, here.LocalTo(&here))
	for _, other := range []*Info{&elsewhere, &apart, &foreign} {
		require.False(t, here.LocalTo(other))
		require.False(t, other.LocalTo(&here))
	}
	require.False(t, sockets.LocalTo(&sockets))
	for _, own := range []*Info{&here, &sockets} {
		other := *own
		r := &participants{infos: make([]Info, 2), why: make([]string, 2)}
		own.id[0], other.id[0] = 1, 2
		require.NoError(t, r.add(0, own, own))
		other.Shm.Rank = 1
		require.NoError(t, r.add(1, &other, own))
		require.Equal(t, own.LocalTo(&other), r.local == rankset.Of(0, 1))
	}
}
