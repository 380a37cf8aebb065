package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newSingles(t testing.TB, change ...func(*Config)) *Singles {
	t.Helper()
	s, err := NewSingles(testConfig(t, change...), idB, 0x06)
	require.NoError(t, err)
	return s
}

// asked is the frame of a request as a client makes it, signed at epoch.
func asked(s *Singles, head SingleHead) []byte {
	if head.KeyID == 0 {
		head.KeyID = 7
	}
	return appendSingle(nil, &head, s.ring.signer(head.KeyID), epoch.UnixNano())
}

func request(number uint64) SingleHead {
	return SingleHead{Code: 0x20, Server: idB, Client: idA, Request: number, Extra: []byte("extra")}
}

// WF1: bad requests are refused by reason, and what they are of can still be asked.
func TestWF1SingleBadFrames(t *testing.T) {
	forged := func(change func(b []byte)) func(s *Singles, frame []byte) []byte {
		return func(s *Singles, frame []byte) []byte {
			change(frame[LengthBytes:])
			s.ring.signer(7).sign(frame, int64(signedAt(frame)))
			return frame
		}
	}
	for name, c := range map[string]struct {
		want  Reason
		frame func(s *Singles, frame []byte) []byte
	}{
		"empty":          {ErrLength, func(*Singles, []byte) []byte { return nil }},
		"short":          {ErrLength, func(_ *Singles, f []byte) []byte { return f[:len(f)-1] }},
		"long":           {ErrLength, func(_ *Singles, f []byte) []byte { return append(f, 0) }},
		"length":         {ErrLength, func(_ *Singles, f []byte) []byte { return withLength(f, 1<<32-1) }},
		"no tag":         {ErrMAC, func(_ *Singles, f []byte) []byte { clear(f[len(f)-tagBytes:]); return f }},
		"no such key":    {ErrKeyID, forged(func(b []byte) { b[4] = 99 })},
		"newer version":  {ErrVersion, forged(func(b []byte) { b[0]++ })},
		"a hello":        {ErrKind, forged(func(b []byte) { b[1] = byte(kindHello) })},
		"a reply":        {ErrDirection, forged(func(b []byte) { b[2] = 1 })},
		"flags":          {ErrField, forged(func(b []byte) { b[2] = 2 })},
		"status":         {ErrField, forged(func(b []byte) { b[84] = 1 })},
		"zero at 87":     {ErrField, forged(func(b []byte) { b[87] = 1 })},
		"another life":   {ErrSession, forged(func(b []byte) { b[8]++ })},
		"no life":        {ErrSession, forged(func(b []byte) { clear(b[8:24]) })},
		"number 0":       {ErrReplay, forged(func(b []byte) { clear(b[40:48]) })},
		"payload":        {ErrLength, forged(func(b []byte) { binary.LittleEndian.PutUint32(b[80:], 1<<30+1) })},
		"a session's":    {ErrMAC, func(_ *Singles, f []byte) []byte { return signedAs(t, f, labelHandshake) }},
		"a datagram's":   {ErrMAC, func(_ *Singles, f []byte) []byte { return signedAs(t, f, labelDatagram) }},
		"the key itself": {ErrMAC, func(_ *Singles, f []byte) []byte { newSigner(firstSecret()).sign(f, epoch.UnixNano()); return f }},
	} {
		s := newSingles(t)
		_, err := s.Open(c.frame(s, asked(s, request(1))))
		require.ErrorIs(t, err, c.want, name)
		require.Equal(t, map[Reason]uint64{c.want: 1}, counted(s.counters), name)
		_, err = s.Open(asked(s, request(1)))
		require.NoError(t, err, name)
	}
}

func signedAs(t *testing.T, frame []byte, label string) []byte {
	secret := [KeyBytes]byte(firstSecret())
	newSigner(derive(&secret, nil, label, KeyBytes)).sign(frame, epoch.UnixNano())
	return frame
}

// WF1: a request is accepted once, whatever comes in between.
func TestWF1SingleOnce(t *testing.T) {
	s := newSingles(t)
	for _, number := range []uint64{1, 5, 3, 2, 5000, 4999} {
		frame := asked(s, request(number))
		head, err := s.Open(frame)
		require.NoError(t, err)
		want := request(number)
		want.KeyID = 7
		require.Equal(t, want, head)
		_, err = s.Open(frame)
		require.ErrorIs(t, err, ErrReplay)
	}
	_, err := s.Open(asked(s, request(4))) // too old to tell
	require.ErrorIs(t, err, ErrReplay)
	other := request(4)
	other.Client[0]++
	_, err = s.Open(asked(s, other))
	require.NoError(t, err)
}

// WF2: exactly MaxSkew is accepted, both ways.
func TestWF2SingleTime(t *testing.T) {
	for d, want := range map[time.Duration]error{MaxSkew: nil, -MaxSkew: nil, MaxSkew + 1: ErrTime, -MaxSkew - 1: ErrTime} {
		s := newSingles(t, func(c *Config) { c.Now = func() time.Time { return epoch.Add(d) } })
		_, err := s.Open(asked(s, request(1)))
		require.ErrorIs(t, err, want)
	}
}

// WF3: every bit of a frame counts.
func TestWF3SingleBits(t *testing.T) {
	s := newSingles(t)
	good := asked(s, request(1))
	for bit := range 8 * len(good) {
		frame := clone(good)
		frame[bit/8] ^= 1 << (bit % 8)
		_, err := s.Open(frame)
		require.Error(t, err, bit)
	}
	_, err := s.Open(good)
	require.NoError(t, err)
}

// A client is forgotten when none of its requests could come again, and not before; until
// then there is a bound.
func TestSingleClientsAreBounded(t *testing.T) {
	clock := newClock()
	s := newSingles(t, func(c *Config) { c.Now = clock.now })
	ask := func(n int) error {
		head := request(1)
		binary.LittleEndian.PutUint32(head.Client[:], uint32(n))
		head.KeyID = 7
		_, err := s.Open(appendSingle(nil, &head, s.ring.signer(7), clock.at.UnixNano()))
		return err
	}
	for n := range MaxSingleClients {
		require.NoError(t, ask(n))
	}
	clock.step(MaxSkew)
	require.ErrorIs(t, ask(MaxSingleClients), ErrBusy)
	require.ErrorIs(t, ask(0), ErrReplay)
	clock.step(1)
	require.NoError(t, ask(MaxSingleClients))
	require.Len(t, s.clients, 1)
}

// A client that was forgotten is not taken for a new one when the clock is set back.
func TestSingleClockSetBack(t *testing.T) {
	clock := newClock()
	s := newSingles(t, func(c *Config) { c.Now = clock.now })
	ask := func(n int, at time.Time) error {
		head := request(1)
		binary.LittleEndian.PutUint32(head.Client[:], uint32(n))
		head.KeyID = 7
		_, err := s.Open(appendSingle(nil, &head, s.ring.signer(7), at.UnixNano()))
		return err
	}
	was := clock.at
	for n := range MaxSingleClients {
		require.NoError(t, ask(n, was))
	}
	clock.step(MaxSkew + 1)
	require.NoError(t, ask(MaxSingleClients, clock.at))
	clock.step(-MaxSkew)
	require.ErrorIs(t, ask(0, was), ErrTime)
	require.NoError(t, ask(0, was.Add(1)))
}

// The first question may leave out the server's life, and no other.
func TestSingleAsks(t *testing.T) {
	s := newSingles(t)
	_, err := s.Open(asked(s, SingleHead{Code: 0x06, Client: idA, Request: 1}))
	require.NoError(t, err)
	_, err = s.Open(asked(s, SingleHead{Code: 0x06, Server: idA, Client: idA, Request: 2}))
	require.ErrorIs(t, err, ErrSession)
}

// A reply is signed with the request's key, says what it answers, and covers its payload.
func TestSingleReplies(t *testing.T) {
	s := newSingles(t)
	head, err := s.Open(asked(s, request(9)))
	require.NoError(t, err)
	head.Status = 3
	frame, err := s.Seal([]byte("x"), &head, []byte("payload"))
	require.NoError(t, err)
	frame = frame[1:]
	require.True(t, s.ring.signer(7).genuine(frame))
	got := getSingle(frame[LengthBytes : len(frame)-TrailerBytes])
	require.Equal(t, SingleHead{
		Code: 0x20, Reply: true, Status: 3, KeyID: 7, Server: idB, Client: idA, Request: 9, PayloadBytes: 7,
		PayloadSHA256: sha256.Sum256([]byte("payload")), Extra: []byte("extra"),
	}, got)
	require.True(t, s.Intact(&got, []byte("payload")))
	require.False(t, s.Intact(&got, []byte("paYload")))
	require.False(t, s.Intact(&got, []byte("payloa")))
	_, err = s.Open(frame)
	require.ErrorIs(t, err, ErrDirection)

	head.KeyID = 99
	after, err := s.Seal([]byte("x"), &head, nil)
	require.ErrorIs(t, err, ErrKeyID)
	require.Equal(t, "x", string(after))
	head.Extra = make([]byte, MaxSingleExtraBytes+1)
	_, err = s.Seal(nil, &head, nil)
	require.ErrorIs(t, err, ErrLength)
}

// The first bytes tell a single request from the beginning of a session.
func TestIsSingle(t *testing.T) {
	s := newSingles(t)
	require.True(t, IsSingle(asked(s, request(1))[:SinglePrefixBytes]))
	hello, err := NewHandshake(RoleClient, testConfig(t))
	require.NoError(t, err)
	require.False(t, IsSingle(hello.Start()))
	require.False(t, IsSingle(nil))
	require.NotContains(t, fmt.Sprintf("%v %+v %#v", s, s, s), "clients")
}
