package multihost

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

const (
	oldKey = "1 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde0\n"
	newKey = "2 123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde01\n"
)

// TestKeysAreExchanged: ranks of two hosts go over from one key to another, by id, host
// after host, and meet at every step; present connections go on. Afterwards a rank that
// has the old key alone is refused, and one that has the new key alone is not.
func TestKeysAreExchanged(t *testing.T) {
	dir := t.TempDir()
	path := func(rank int) string { return filepath.Join(dir, fmt.Sprint(rank)) }
	write := func(rank int, text string) { require.NoError(t, os.WriteFile(path(rank), []byte(text), 0o600)) }
	g := newTroupe(t, []string{"a", "b"}, func(rank int, c *Config) {
		write(rank, oldKey)
		var err error
		c.Keys, err = wire.NewKeyring(wire.FromFile(path(rank)))
		require.NoError(t, err)
		c.Carriers = []Carrier{tcpCarrier(c.Keys)}
	})
	epoch := membership.Epoch(1)
	for _, texts := range [][2]string{
		{oldKey + newKey, oldKey + newKey}, {newKey + oldKey, oldKey + newKey}, {newKey + oldKey, newKey + oldKey},
		{newKey, newKey + oldKey}, {newKey, newKey},
	} {
		for rank, text := range texts {
			write(rank, text)
			require.NoError(t, g.configs[rank].Keys.Reload())
		}
		g.exchange("over the connections of before")
		epoch++
		g.meetAgain(epoch)
	}
	for key, deadline := range map[string]time.Duration{oldKey: 2 * time.Second, newKey: testTimeout} {
		write(1, key)
		ring, err := wire.NewKeyring(wire.FromFile(path(1)))
		require.NoError(t, err)
		c := g.configs[1]
		c.Keys, c.Carriers = ring, []Carrier{tcpCarrier(ring)}
		rejoining, err := Open(c)
		require.NoError(t, err)
		own, err := Relist(g.domains[0], nil)
		require.NoError(t, err)
		all := [][]byte{own.Metadata(), rejoining.Metadata()}
		joined := make(chan error, 1)
		go func() {
			d, err := rejoining.Connect(all, deadline)
			if err == nil {
				defer d.Close()
			}
			joined <- err
		}()
		change, err := own.Reconnect(all, deadline)
		if key == oldKey {
			require.Error(t, err)
			require.Error(t, <-joined)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, <-joined)
		change.Abort()
	}
}

// TestControlIsProtected: what control connections carry is protected as the
// configuration says, and ranks that differ do not meet.
func TestControlIsProtected(t *testing.T) {
	g := newTroupe(t, []string{"a", "b"}, func(_ int, c *Config) { c.Protection = wire.ProtectEncrypt })
	g.exchange("encrypted")

	listeners := make([]*Listener, 2)
	for r, h := range []string{"a", "b"} {
		c := testConfig(wire.GenerateKeyring(), r, 2, h)
		c.Protection = wire.ProtectDigest + wire.Protection(r)
		var err error
		listeners[r], err = Open(c)
		require.NoError(t, err)
		defer listeners[r].Close()
	}
	all := metadataOf(listeners)
	for _, l := range listeners {
		_, err := l.Connect(all, testTimeout)
		require.ErrorIs(t, err, transport.ErrMismatch)
		require.ErrorContains(t, err, "protection is")
	}
}
