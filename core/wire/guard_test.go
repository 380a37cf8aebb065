package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The table of hellos is bounded, and forgets what time alone refuses.
func TestGuard(t *testing.T) {
	g := must1(NewGuard(3))
	nonce := func(i byte) []byte { return append([]byte{i}, make([]byte, 31)...) }
	now := uint64(epoch.UnixNano())
	for i := range byte(3) {
		require.Zero(t, g.admit(nonce(i), now, now))
	}
	require.Equal(t, ErrReplay, g.admit(nonce(1), now, now))
	require.Equal(t, ErrBusy, g.admit(nonce(4), now, now))
	later := now + uint64(MaxSkew)
	require.Equal(t, ErrReplay, g.admit(nonce(0), now, later), "just still fresh")
	require.Equal(t, ErrBusy, g.admit(nonce(4), later, later))
	require.Zero(t, g.admit(nonce(4), later, later+1))
	require.Len(t, g.until, 1)
	for i := range 100 {
		later += 2*uint64(MaxSkew) + 1
		require.Zero(t, g.admit(nonce(byte(i)), later, later))
		require.LessOrEqual(t, len(g.until), 3)
	}
	_, err := NewGuard(-1)
	require.Error(t, err)
	require.Len(t, must1(NewGuard(0)).queue, DefaultNumHellos)
}
