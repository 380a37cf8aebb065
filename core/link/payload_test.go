package link

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport/fake"
	"github.com/moewire/moewire/core/wire"
)

// TestNobodyReadsControl: an attacker between two ranks finds nothing of what they say
// under ProtectEncrypt: no offers, keys of regions, names or addresses. Under
// ProtectDigest all of it is there, so the words that are looked for are right.
func TestNobodyReadsControl(t *testing.T) {
	a, _ := pair(t, fake.New(fake.Config{}), Config{RingBytes: MinRingBytes, NumMessages: 4})
	said := a.link.Offer()
	key := binary.LittleEndian.AppendUint64(nil, a.link.recv.ring.Remote().Key)
	words := [][]byte{said, []byte(offerMagic), said[24:48], key, said[offerFixed:], []byte("does not work over verbs")}
	for _, protection := range []wire.Protection{wire.ProtectDigest, wire.ProtectEncrypt} {
		t.Run(protection.String(), func(t *testing.T) {
			members, relays := relayedWith(t, protection, nil)
			for r, m := range members {
				m.awaitUp(t, 1<<(1-r))
				require.True(t, m.Send(1-r, said))
				require.True(t, m.Send(1-r, []byte("it does not work over verbs")))
				require.True(t, m.Send(1-r, nil))
				require.True(t, m.Send(1-r, []byte(strings.Repeat("x", MaxControlBytes))))
			}
			for r, m := range members {
				m.log.until(t, "all", func() bool { return len(m.log.heard[1-r]) == 4 })
				require.Equal(t, string(said), m.log.heard[1-r][0])
				require.Empty(t, m.log.heard[1-r][2])
				require.Len(t, m.log.heard[1-r][3], MaxControlBytes)
			}
			seen := seenBy(relays[:])
			require.Greater(t, len(seen), 2*MaxControlBytes)
			for _, w := range words {
				require.Equal(t, protection == wire.ProtectDigest, bytes.Contains(seen, w), "%q", w)
			}
		})
	}
}

func seenBy(relays []*relay) (all []byte) {
	for _, r := range relays {
		r.mu.Lock()
		all = append(all, r.seen.Bytes()...)
		r.mu.Unlock()
	}
	return all
}

// TestOtherProtection: ranks that disagree do not come together.
func TestOtherProtection(t *testing.T) {
	b := besiege(t)
	h, err := wire.NewHandshake(wire.RoleClient, wire.Config{
		Keys: b.keys, Self: b.friend, Peer: b.id, Ordered: true, MaxPayloadBytes: MaxControlBytes,
		Protection: wire.ProtectEncrypt,
	})
	require.NoError(t, err)
	b.intrude("another protection", h.Start(), true)
	require.Equal(t, map[wire.Reason]uint64{wire.ErrProtection: 1}, b.refused())
}
