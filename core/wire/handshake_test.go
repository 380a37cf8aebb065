package wire

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	idA = PeerID{0xa, 1}
	idB = PeerID{0xb, 2}
)

// WF9: both sides know each other, and what is sealed by one opens at the other.
func TestWF9Handshake(t *testing.T) {
	for _, protection := range []Protection{0, ProtectDigest, ProtectEncrypt} {
		client := testConfig(t, func(c *Config) { c.Self, c.Peer, c.Blob, c.Protection = idA, idB, []byte("rank 1"), protection })
		server := testConfig(t, func(c *Config) { c.Self, c.Blob, c.Protection = idB, noise(1, MaxBlobBytes), protection })
		a, b := handshakes(t, client, server)
		require.Nil(t, a.Session())
		require.Nil(t, b.Start())
		require.NoError(t, exchange(a, b))
		require.Nil(t, a.Start(), "once")
		require.Equal(t, Peer{ID: idA, KeyID: 7, Blob: []byte("rank 1")}, b.Peer())
		require.Equal(t, Peer{ID: idB, KeyID: 7, Blob: noise(1, MaxBlobBytes)}, a.Peer())
		require.Equal(t, a.Session().ID(), b.Session().ID())
		require.EqualValues(t, 7, a.Session().keyID)
		require.Equal(t, max(protection, ProtectDigest), b.Session().Protection())
		_, err := b.Session().OpenHead(sealed(t, a.Session(), Head{Code: 1}))
		require.NoError(t, err)
		_, err = a.Session().OpenHead(sealed(t, b.Session(), Head{Code: 1}))
		require.NoError(t, err)
	}
}

// exchange carries bytes between two sides until both are done, or one fails.
func exchange(a, b *Handshake) error {
	out := a.Start()
	for from, to := a, b; len(out) > 0; from, to = to, from {
		_, next, err := to.Step(out)
		if err != nil {
			if _, _, refusal := from.Step(next); refusal != nil {
				return errors.Join(err, refusal)
			}
			return err
		}
		out = next
	}
	return nil
}

// No two sessions share keys, whatever they have in common.
func TestSessionsAreApart(t *testing.T) {
	config := testConfig(t)
	a, b, _ := shakeHands(t, config, config)
	c, d, _ := shakeHands(t, config, config)
	require.NotEqual(t, a.ID(), c.ID())
	refused(t, d, sealed(t, a, Head{Code: 1}), ErrMAC)
	refused(t, b, sealed(t, c, Head{Code: 1}), ErrMAC)
}

// Everything that was said is in the keys.
func TestKeysDependOnWhatWasSaid(t *testing.T) {
	same := func(c *Config) { c.rand = zeros{} }
	base, _, _ := shakeHands(t, testConfig(t, same), testConfig(t, same))
	again, _, _ := shakeHands(t, testConfig(t, same), testConfig(t, same))
	require.Equal(t, base.ID(), again.ID())
	for name, change := range map[string]func(*Config){
		"blob": func(c *Config) { c.Blob = []byte{1} },
		"self": func(c *Config) { c.Self = idA },
		"key":  func(c *Config) { c.Keys = keysOf(t, "7 "+otherKey) },
	} {
		other, _, _ := shakeHands(t, testConfig(t, same, change), testConfig(t, same, change))
		require.NotEqual(t, base.ID(), other.ID(), name)
	}
}

const otherKey = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

// zeros gives nonces that are no nonces.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// helloCases are hellos that a server must refuse; answered says whether with
// an answer that the client can trust (WF10): always, if it has the key.
var helloCases = []struct {
	name     string
	want     Reason
	answered bool
	client   func(*Config)
	server   func(*Config)
	forge    func(header []byte)
}{
	{name: "unknown key", want: ErrKeyID, client: func(c *Config) { c.Keys = must1(NewKeyring(text("8 " + otherKey))) }},
	{name: "wrong key", want: ErrMAC, client: func(c *Config) { c.Keys = must1(NewKeyring(text("7 " + otherKey))) }},
	{name: "late", want: ErrTime, answered: true, client: at(-MaxSkew - 1)},
	{name: "early", want: ErrTime, answered: true, client: at(MaxSkew + 1)},
	{name: "time 0", want: ErrTime, answered: true, client: func(c *Config) { c.Now = func() time.Time { return time.Unix(0, 0) } }},
	{name: "the greatest time", want: ErrTime, answered: true, client: func(c *Config) { c.Now = func() time.Time { return time.Unix(0, -1) } }},
	{name: "protection", want: ErrProtection, answered: true, client: encrypting},
	{name: "weaker protection", want: ErrProtection, answered: true, server: encrypting},
	{name: "wants another", want: ErrPeer, answered: true, client: func(c *Config) { c.Peer = idB }},
	{name: "is another", want: ErrPeer, answered: true, server: func(c *Config) { c.Peer = idA }},
	{name: "older version", want: ErrVersion, answered: true, forge: func(b []byte) { b[0] = Version - 1 }},
	{name: "newer version", want: ErrVersion, answered: true, forge: func(b []byte) { b[0] = Version + 1 }},
	{name: "direction", want: ErrDirection, forge: func(b []byte) { b[3] = flagFromServer }},
	{name: "kind", want: ErrKind, forge: func(b []byte) { b[1] = byte(kindMessage) }},
	{name: "kind refusal", want: ErrKind, forge: func(b []byte) { b[1] = byte(kindRefusal) }},
	{name: "unknown flag", want: ErrField, answered: true, forge: func(b []byte) { b[3] = 0x40 }},
	{name: "server's nonce", want: ErrField, answered: true, forge: func(b []byte) { b[40] = 1 }},
	{name: "reason", want: ErrField, answered: true, forge: func(b []byte) { b[104] = 1 }},
	{name: "zero at 106", want: ErrField, answered: true, forge: func(b []byte) { b[106] = 1 }},
	{name: "zero at 108", want: ErrField, answered: true, forge: func(b []byte) { b[111] = 1 }},
	{name: "declined", want: ErrDeclined, answered: true, server: func(c *Config) {
		c.Accept = func(Peer) ([]byte, error) { return nil, errors.New("rank 1 is here already") }
	}},
	{name: "long answer", want: ErrDeclined, answered: true, server: func(c *Config) {
		c.Accept = func(Peer) ([]byte, error) { return make([]byte, MaxBlobBytes+1), nil }
	}},
	{name: "too many", want: ErrBusy, answered: true, server: func(c *Config) {
		c.Guard = must1(NewGuard(1))
		c.Guard.admit(make([]byte, 32), uint64(epoch.UnixNano()), uint64(epoch.UnixNano()))
	}},
}

func must1[T any](v T, err error) T {
	must(err)
	return v
}

func text(s string) Source { return func() ([]byte, error) { return []byte(s), nil } }

func at(d time.Duration) func(*Config) {
	return func(c *Config) { c.Now = func() time.Time { return epoch.Add(d) } }
}

// WF1, WF10: a hello that is refused is counted by reason and changes nothing, and a
// client that has the key is told.
func TestWF1BadHello(t *testing.T) {
	for _, c := range helloCases {
		t.Run(c.name, func(t *testing.T) {
			client, server := testConfig(t), testConfig(t)
			if c.client != nil {
				c.client(&client)
			}
			if c.server != nil {
				c.server(&server)
			}
			a, b := handshakes(t, client, server)
			hello := a.Start()
			if c.forge != nil {
				c.forge(hello[LengthBytes:])
				a.handshakeSigner().sign(hello, int64(signedAt(hello)))
			}
			num := server.Guard.num
			_, out, err := b.Step(hello)
			require.ErrorIs(t, err, c.want)
			require.False(t, b.Done())
			require.Equal(t, map[Reason]uint64{c.want: 1}, counted(server.Counters))
			require.Equal(t, c.answered, out != nil)
			if c.want != ErrDeclined {
				require.Equal(t, num, server.Guard.num, "the table of hellos has changed")
			}
			_, _, again := b.Step(hello)
			require.Equal(t, err, again)
			if out != nil {
				_, _, err = a.Step(out)
				var refusal *RefusedError
				require.ErrorAs(t, err, &refusal)
				require.Equal(t, c.want, refusal.Reason)
			}
		})
	}
}

// WF2: exactly MaxSkew is accepted, a nanosecond more is not; no value of the
// clock overflows.
func TestWF2Window(t *testing.T) {
	for _, now := range []uint64{0, 1, uint64(MaxSkew), 1 << 62, 1<<64 - 1} {
		for _, d := range []uint64{0, 1, uint64(MaxSkew) - 1, uint64(MaxSkew)} {
			require.True(t, now+d < now || fresh(now+d, now))
			require.True(t, now < d || fresh(now-d, now))
		}
		for _, d := range []uint64{uint64(MaxSkew) + 1, 1 << 62, 1<<63 + 1, 1<<64 - 1} {
			require.False(t, now+d >= now && fresh(now+d, now))
			require.False(t, now >= d && fresh(now-d, now))
		}
	}
	require.False(t, fresh(0, 1<<64-1))
	require.False(t, fresh(1<<64-1, 0))
	for _, skew := range []time.Duration{-MaxSkew, MaxSkew} {
		shakeHands(t, testConfig(t, at(skew)), testConfig(t))
	}
}

// WF2: the other two frames have their window, too.
func TestWF2WelcomeAndConfirm(t *testing.T) {
	for _, step := range []time.Duration{MaxSkew + 1, -MaxSkew - 1} {
		ours := newClock()
		client := testConfig(t, func(c *Config) { c.Now = ours.now })
		a, b := handshakes(t, client, testConfig(t))
		_, welcome, err := b.Step(a.Start())
		require.NoError(t, err)
		ours.step(step)
		_, _, err = a.Step(welcome)
		require.ErrorIs(t, err, ErrTime)

		ours = newClock()
		a, b = handshakes(t, testConfig(t), testConfig(t, func(c *Config) { c.Now = ours.now }))
		_, welcome, err = b.Step(a.Start())
		require.NoError(t, err)
		_, confirm, err := a.Step(welcome)
		require.NoError(t, err)
		ours.step(step)
		_, _, err = b.Step(confirm)
		require.ErrorIs(t, err, ErrTime)
	}
}

// WF3: every bit of every frame of a handshake, the blobs included.
func TestWF3EveryBitOfHandshake(t *testing.T) {
	config := testConfig(t, func(c *Config) { c.Blob = []byte{0x55} })
	_, _, r := shakeHands(t, config, config)
	for bit := range len(r.hello) * 8 {
		_, b := handshakes(t, config, config)
		refusedStep(t, b, flip(r.hello, bit))
	}
	for bit := range len(r.welcome) * 8 {
		a, b := handshakes(t, config, config)
		_, welcome, err := b.Step(a.Start())
		require.NoError(t, err)
		refusedStep(t, a, flip(welcome, bit))
		config.Guard = must1(NewGuard(1))
	}
	a, b := handshakes(t, config, testConfig(t))
	_, welcome, err := b.Step(a.Start())
	require.NoError(t, err)
	_, confirm, err := a.Step(welcome)
	require.NoError(t, err)
	for bit := range len(confirm) * 8 {
		try := *b
		refusedStep(t, &try, flip(confirm, bit))
	}
	_, _, err = b.Step(confirm)
	require.NoError(t, err)
}

func flip(frame []byte, bit int) []byte {
	out := clone(frame)
	out[bit/8] ^= 1 << (bit % 8)
	return out
}

// refusedStep wants an error, or no frame at all: a length that says more than
// there is.
func refusedStep(t *testing.T, h *Handshake, frame []byte) {
	t.Helper()
	_, out, err := h.Step(frame)
	if err == nil {
		require.Positive(t, h.Need())
	}
	require.Nil(t, out)
	require.False(t, h.Done())
}

// WF1: a hello that was recorded is refused while its time would pass.
func TestWF1ReplayedHello(t *testing.T) {
	config := testConfig(t)
	_, _, r := shakeHands(t, config, config)
	config.Counters = &Counters{}
	_, b := handshakes(t, config, config)
	_, _, err := b.Step(r.hello)
	require.ErrorIs(t, err, ErrReplay)
	require.Equal(t, map[Reason]uint64{ErrReplay: 1}, counted(config.Counters))
}

// WF7: after a restart nothing that was recorded before begins a session or is
// a part of one.
func TestWF7Restart(t *testing.T) {
	before := testConfig(t)
	client, _, r := shakeHands(t, before, before)
	message := sealed(t, client, Head{Code: 1})

	after := testConfig(t) // the same keys, and nothing else
	_, b := handshakes(t, before, after)
	_, welcome, err := b.Step(r.hello)
	require.NoError(t, err, "its time is good and its nonce forgotten")
	require.NotEqual(t, r.welcome, welcome)
	_, _, err = b.Step(r.confirm)
	require.ErrorIs(t, err, ErrMAC)
	require.False(t, b.Done())

	_, server, _ := shakeHands(t, after, after)
	refused(t, server, message, ErrMAC)
}

// WF1: a client takes no answer but that to its own hello.
func TestWF1BadWelcome(t *testing.T) {
	for name, c := range map[string]struct {
		want   Reason
		answer func(t *testing.T, config Config, hello []byte) []byte
	}{
		"its own hello":  {ErrDirection, func(_ *testing.T, _ Config, hello []byte) []byte { return hello }},
		"an older one":   {ErrReplay, func(t *testing.T, c Config, _ []byte) []byte { _, _, r := shakeHands(t, c, c); return r.welcome }},
		"an older no":    {ErrKind, func(t *testing.T, c Config, _ []byte) []byte { return olderRefusal(t, c) }},
		"another key id": {ErrKeyID, func(_ *testing.T, _ Config, hello []byte) []byte { out := clone(hello); out[8]++; return out }},
		"another peer": {ErrPeer, func(t *testing.T, c Config, hello []byte) []byte {
			c.Self, c.Peer = PeerID{9}, PeerID{}
			_, b := handshakes(t, c, c)
			_, out, err := b.Step(hello)
			require.NoError(t, err)
			return out
		}},
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig(t)
			client := config
			client.Counters = &Counters{}
			if name == "another peer" {
				client.Peer = PeerID{}
			}
			a, _ := handshakes(t, client, config)
			hello := a.Start()
			if name == "another peer" {
				a.config.Peer = idB // it has asked for any peer, and wants one
			}
			_, out, err := a.Step(c.answer(t, config, hello))
			require.ErrorIs(t, err, c.want)
			require.Nil(t, out)
			require.False(t, a.Done())
			require.Equal(t, map[Reason]uint64{c.want: 1}, counted(client.Counters))
		})
	}
}

// WF5: portions do not matter, and nothing behind the handshake is taken.
func TestWF5HandshakePortions(t *testing.T) {
	src := newRand(t)
	config := testConfig(t, func(c *Config) { c.Blob = noise(5, 333) })
	for range 30 {
		config.Guard = must1(NewGuard(1))
		a, b := handshakes(t, config, config)
		out := a.Start()
		for from, to := a, b; len(out) > 0; from, to = to, from {
			stream := append(clone(out), "what comes next"...)
			out = nil
			for off := 0; out == nil && to.Need() > 0; {
				n, reply, err := to.Step(stream[off:min(len(stream), off+1+src.IntN(90))])
				require.NoError(t, err)
				off, out = off+n, reply
				if out != nil || to.Done() {
					require.Equal(t, "what comes next", string(stream[off:]))
				}
			}
		}
		require.True(t, a.Done() && b.Done())
		n, out, err := a.Step([]byte("more"))
		require.Zero(t, n)
		require.Nil(t, out)
		require.NoError(t, err)
	}
}

// WF4: a length that no handshake has is refused after four bytes.
func TestWF4HandshakeLength(t *testing.T) {
	for _, n := range []uint32{0, 1, minHelloFrameBytes - LengthBytes - 1, maxHelloFrameBytes - LengthBytes + 1, 1 << 31, 1<<32 - 1} {
		config := testConfig(t)
		_, b := handshakes(t, config, config)
		_, out, err := b.Step(binary.LittleEndian.AppendUint32(nil, n))
		require.ErrorIs(t, err, ErrLength)
		require.Nil(t, out)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"Keys":            func(c *Config) { c.Keys = nil },
		"Guard":           func(c *Config) { c.Guard = nil },
		"Blob":            func(c *Config) { c.Blob = make([]byte, MaxBlobBytes+1) },
		"Protection":      func(c *Config) { c.Protection = 3 },
		"MaxPayloadBytes": func(c *Config) { c.MaxPayloadBytes = 0 },
	} {
		_, err := NewHandshake(RoleServer, testConfig(t, change))
		require.ErrorContains(t, err, "Config."+want)
	}
	_, err := NewHandshake(0, testConfig(t))
	require.ErrorContains(t, err, "role")
	_, err = NewHandshake(RoleClient, testConfig(t, func(c *Config) { c.MaxPayloadBytes = maxPayloadBytes + 1 }))
	require.Error(t, err)
}
