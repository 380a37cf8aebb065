package wire

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// epoch is the time of fakeClock: whole seconds, so that vectors are readable.
var epoch = time.Unix(1_700_000_000, 0)

type fakeClock struct{ at time.Time }

func newClock() *fakeClock                { return &fakeClock{at: epoch} }
func (c *fakeClock) now() time.Time       { return c.at }
func (c *fakeClock) step(d time.Duration) { c.at = c.at.Add(d) }

// testCodes are the codes of test sessions.
var testCodes = Codes(1, 2, 0x80, 0xff)

// testConfig is one that handshakes succeed with.
func testConfig(t testing.TB, change ...func(*Config)) Config {
	t.Helper()
	guard, err := NewGuard(64)
	require.NoError(t, err)
	c := Config{
		Keys: testKeys(t), MaxPayloadBytes: 1 << 30, Codes: testCodes,
		Guard: guard, Counters: &Counters{}, Now: newClock().now,
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

const testKeyText = `
# the current one first
7 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
4294967295 f0e1d2c3b4a5968778695a4b3c2d1e0f00112233445566778899aabbccddeeff
`

func testKeys(t testing.TB) *Keyring {
	t.Helper()
	return keysOf(t, testKeyText)
}

func keysOf(t testing.TB, text string) *Keyring {
	t.Helper()
	r, err := NewKeyring(func() ([]byte, error) { return []byte(text), nil })
	require.NoError(t, err)
	return r
}

// handshakes makes both sides.
func handshakes(t testing.TB, client, server Config) (c, s *Handshake) {
	t.Helper()
	c, err := NewHandshake(RoleClient, client)
	require.NoError(t, err)
	s, err = NewHandshake(RoleServer, server)
	require.NoError(t, err)
	return c, s
}

// recorded is what went over the wire in a handshake.
type recorded struct{ hello, welcome, confirm []byte }

// shakeHands runs a whole handshake that must succeed.
func shakeHands(t testing.TB, client, server Config) (c, s *Session, r recorded) {
	t.Helper()
	a, b := handshakes(t, client, server)
	r.hello = a.Start()
	n, out, err := b.Step(r.hello)
	require.NoError(t, err)
	require.Equal(t, len(r.hello), n)
	r.welcome = out
	n, out, err = a.Step(r.welcome)
	require.NoError(t, err)
	require.Equal(t, len(r.welcome), n)
	r.confirm = out
	n, out, err = b.Step(r.confirm)
	require.NoError(t, err)
	require.Empty(t, out)
	require.Equal(t, len(r.confirm), n)
	require.True(t, a.Done() && b.Done())
	return a.Session(), b.Session(), r
}

// sessions makes two that belong together, with the same configuration but
// for the counters, which are the server's.
func sessions(t testing.TB, change ...func(*Config)) (client, server *Session) {
	t.Helper()
	config := testConfig(t, change...)
	other := config
	other.Counters = nil
	client, server, _ = shakeHands(t, other, config)
	return client, server
}

// sealed makes a frame that must be possible.
func sealed(t testing.TB, s *Session, head Head, payload ...[]byte) []byte {
	t.Helper()
	frame, err := s.Seal(nil, &head, payload...)
	require.NoError(t, err)
	return frame
}

// counted is everything that counters hold.
func counted(c *Counters) map[Reason]uint64 {
	all := map[Reason]uint64{}
	c.Each(func(r Reason, n uint64) { all[r] = n })
	return all
}

// noise is n bytes that are the same for a seed.
func noise(seed uint64, n int) []byte {
	src := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(src.Uint32())
	}
	return b
}

// forge changes a frame that a session has sealed and signs it again with the
// session's own key: what only the peer could do.
func forge(s *Session, frame []byte, change func(header []byte)) []byte {
	out := append([]byte(nil), frame...)
	change(out[LengthBytes : len(out)-TrailerBytes])
	s.out.sign(out, int64(signedAt(frame)))
	return out
}
