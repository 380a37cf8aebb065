package wire

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newNotary(t testing.TB, change ...func(*Config)) *Notary {
	t.Helper()
	n, err := NewNotary(testConfig(t, change...))
	require.NoError(t, err)
	return n
}

// datagramByHand is a signed datagram as docs/wire.md has it.
func datagramByHand(t *testing.T, secret []byte, id uint32, at time.Time, head [4]byte, datagram []byte) []byte {
	t.Helper()
	key, err := hkdf.Key(sha256.New, secret, nil, "moewire 2 note", 32)
	require.NoError(t, err)
	signed := append([]byte{}, head[:]...)
	signed = binary.LittleEndian.AppendUint32(signed, id)
	signed = append(signed, datagram...)
	signed = binary.LittleEndian.AppendUint64(signed, uint64(at.UnixNano()))
	mac := hmac.New(sha256.New, key)
	mac.Write(signed)
	frame := binary.LittleEndian.AppendUint32(nil, uint32(len(signed)+32))
	return mac.Sum(append(frame, signed...))
}

func firstSecret() []byte {
	secret := make([]byte, 32)
	for i := range secret {
		secret[i] = byte(i)
	}
	return secret
}

// TestWF9Datagrams: what is sealed is what the tables say, and opens.
func TestWF9Datagrams(t *testing.T) {
	for _, datagram := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte{7}, MaxDatagramBytes)} {
		n := newNotary(t)
		frame, err := n.Seal([]byte("before"), datagram)
		require.NoError(t, err)
		require.Equal(t, "before", string(frame[:6]))
		frame = frame[6:]
		require.Equal(t, datagramByHand(t, firstSecret(), 7, epoch, [4]byte{2, 6}, datagram), frame)
		require.Len(t, frame, DatagramOverheadBytes+len(datagram))
		got, err := n.Open(frame)
		require.NoError(t, err)
		require.True(t, bytes.Equal(datagram, got))
		require.EqualValues(t, 1, n.counters.Frames())
	}
	n := newNotary(t)
	before := []byte("x")
	after, err := n.Seal(before, make([]byte, MaxDatagramBytes+1))
	require.ErrorIs(t, err, ErrLength)
	require.Equal(t, before, after)
	_, err = NewNotary(Config{})
	require.ErrorContains(t, err, "Config.Keys is nil")
}

// TestWF3DatagramBits: each bit counts. TestWF1DatagramBadFrames: by reason.
func TestWF3DatagramBits(t *testing.T) {
	n := newNotary(t)
	frame, err := n.Seal(nil, []byte("a datagram"))
	require.NoError(t, err)
	for bit := range 8 * len(frame) {
		frame[bit/8] ^= 1 << (bit % 8)
		_, err := n.Open(frame)
		require.Error(t, err, bit)
		frame[bit/8] ^= 1 << (bit % 8)
	}
	_, err = n.Open(frame)
	require.NoError(t, err)
}

func TestWF1DatagramBadFrames(t *testing.T) {
	hand := func(head [4]byte, id uint32, at time.Time) []byte {
		return datagramByHand(t, firstSecret(), id, at, head, []byte("datagram"))
	}
	good := hand([4]byte{2, 6}, 7, epoch)
	long := datagramByHand(t, firstSecret(), 7, epoch, [4]byte{2, 6}, make([]byte, MaxDatagramBytes+1))
	for name, c := range map[string]struct {
		want  Reason
		frame []byte
	}{
		"empty":         {ErrLength, nil},
		"short":         {ErrLength, good[:len(good)-1]},
		"long":          {ErrLength, append(bytes.Clone(good), 0)},
		"too much":      {ErrLength, long},
		"no room":       {ErrLength, make([]byte, DatagramOverheadBytes-1)},
		"key id":        {ErrKeyID, hand([4]byte{2, 6}, 8, epoch)},
		"another key":   {ErrMAC, datagramByHand(t, make([]byte, 32), 7, epoch, [4]byte{2, 6}, nil)},
		"newer version": {ErrVersion, hand([4]byte{3, 6}, 7, epoch)},
		"a hello":       {ErrKind, hand([4]byte{2, 1}, 7, epoch)},
		"a field":       {ErrField, hand([4]byte{2, 6, 1}, 7, epoch)},
		"too old":       {ErrTime, hand([4]byte{2, 6}, 7, epoch.Add(-MaxSkew-1))},
		"ahead":         {ErrTime, hand([4]byte{2, 6}, 7, epoch.Add(MaxSkew+1))},
	} {
		n := newNotary(t)
		_, err := n.Open(c.frame)
		require.ErrorIs(t, err, c.want, name)
		require.Equal(t, map[Reason]uint64{c.want: 1}, counted(n.counters), name)
	}
	for _, at := range []time.Time{epoch.Add(MaxSkew), epoch.Add(-MaxSkew)} { // WF2: exactly
		_, err := newNotary(t).Open(hand([4]byte{2, 6}, 7, at))
		require.NoError(t, err)
	}
	// A hello is no datagram, though both are of the same ring.
	client, err := NewHandshake(RoleClient, testConfig(t))
	require.NoError(t, err)
	_, err = newNotary(t).Open(client.Start())
	require.Error(t, err)
}

// TestDatagramsFollowTheRing: datagrams are signed with the current key; any is
// accepted, and one that is gone is not.
func TestDatagramsFollowTheRing(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(testKeyText), "\n")[1:]
	text := strings.Join(lines, "\n")
	ring, err := NewKeyring(func() ([]byte, error) { return []byte(text), nil })
	require.NoError(t, err)
	n := newNotary(t, func(c *Config) { c.Keys = ring })
	first, err := n.Seal(nil, []byte("first"))
	require.NoError(t, err)
	text = lines[1] + "\n" + lines[0]
	require.NoError(t, ring.Reload())
	second, err := n.Seal(nil, []byte("second"))
	require.NoError(t, err)
	require.NotEqual(t, first[LengthBytes+4:LengthBytes+8], second[LengthBytes+4:LengthBytes+8])
	for _, frame := range [][]byte{first, second} {
		_, err = n.Open(frame)
		require.NoError(t, err)
	}
	text = lines[1]
	require.NoError(t, ring.Reload())
	_, err = n.Open(first)
	require.ErrorIs(t, err, ErrKeyID)
	text = strings.Replace(lines[0], "00", "11", 1) + "\n" + lines[1] // the same id, another key
	require.NoError(t, ring.Reload())
	_, err = n.Open(first)
	require.ErrorIs(t, err, ErrMAC)
	require.Equal(t, hidden, fmt.Sprintf("%v", n))
	require.Equal(t, hidden, fmt.Sprintf("%+v", n))
	require.Equal(t, hidden, fmt.Sprintf("%#v", n))
}

// TestDatagramsWhileTheRingChanges: a datagram is signed with the key that it names, also
// when the ring gets another one at that moment.
func TestDatagramsWhileTheRingChanges(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(testKeyText), "\n")[1:]
	text := lines[0]
	ring, err := NewKeyring(func() ([]byte, error) { return []byte(text), nil })
	require.NoError(t, err)
	n := newNotary(t, func(c *Config) { c.Keys = ring })
	text = lines[0] + "\n" + lines[1]
	both, err := NewKeyring(func() ([]byte, error) { return []byte(text), nil })
	require.NoError(t, err)
	reader := newNotary(t, func(c *Config) { c.Keys = both })
	for i := range 200 {
		n.mu.Lock() // it waits here, with the id that it has read
		sealed := make(chan []byte)
		go func() {
			frame, _ := n.Seal(nil, nil)
			sealed <- frame
		}()
		for range 100 {
			runtime.Gosched()
		}
		text = lines[i%2]
		require.NoError(t, ring.Reload())
		n.mu.Unlock()
		_, err = reader.Open(<-sealed)
		require.NoError(t, err)
	}
}

// TestNotaryForgetsKeys: the keys of rings that were are not kept for ever.
func TestNotaryForgetsKeys(t *testing.T) {
	secret := strings.Fields(strings.TrimSpace(testKeyText))
	text := testKeyText
	ring, err := NewKeyring(func() ([]byte, error) { return []byte(text), nil })
	require.NoError(t, err)
	n := newNotary(t, func(c *Config) { c.Keys = ring })
	for i := range 3 * MaxNumKeys {
		text = fmt.Sprintf("%d %s", i, secret[len(secret)-1])
		require.NoError(t, ring.Reload())
		frame, err := n.Seal(nil, []byte("a datagram"))
		require.NoError(t, err)
		_, err = n.Open(frame)
		require.NoError(t, err)
		require.LessOrEqual(t, len(n.ring.signs), MaxNumKeys)
	}
}
