package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Keys are exchanged one side after the other, without a moment in which they
// do not understand each other.
func TestKeyRotation(t *testing.T) {
	const one, two = "1 " + otherKey, "2 " + otherKey2
	stages := []string{one, one + "\n" + two, two + "\n" + one, two}
	for i := range 6 {
		client, server := stages[(i+1)/2], stages[i/2]
		a, b := testConfig(t), testConfig(t)
		a.Keys, b.Keys = keysOf(t, client), keysOf(t, server)
		s, _, _ := shakeHands(t, a, b)
		require.Equal(t, a.Keys.Current(), s.keyID)
		shakeHands(t, b, a)
	}
	a, b := testConfig(t), testConfig(t)
	a.Keys, b.Keys = keysOf(t, one), keysOf(t, two)
	c, s := handshakes(t, a, b)
	require.ErrorIs(t, exchange(c, s), ErrKeyID)
}

const otherKey2 = "aa0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

// A key that is withdrawn in the middle of a handshake ends the next one.
func TestReloadInTheMiddle(t *testing.T) {
	keys := []byte("1 " + otherKey)
	config := testConfig(t)
	config.Keys = must1(NewKeyring(func() ([]byte, error) { return clone(keys), nil }))
	a, b := handshakes(t, config, config)
	hello := a.Start()
	config.Accept = func(Peer) ([]byte, error) {
		keys = []byte("2 " + otherKey2)
		return nil, config.Keys.Reload()
	}
	b.config.Accept = config.Accept
	_, welcome, err := b.Step(hello)
	require.NoError(t, err)
	_, confirm, err := a.Step(welcome)
	require.NoError(t, err)
	_, _, err = b.Step(confirm)
	require.NoError(t, err)
	require.False(t, config.Keys.Has(b.Session().keyID))
	_, b = handshakes(t, config, config)
	_, _, err = b.Step(hello)
	require.ErrorIs(t, err, ErrKeyID)
}
