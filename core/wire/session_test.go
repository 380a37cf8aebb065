package wire

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// snapshot is all that opening a frame may change.
type snapshot struct {
	window window
	outSeq uint64
}

func (s *Session) snapshot() snapshot { return snapshot{s.window, s.outSeq} }

// refused opens a frame that must be refused for a reason, counted once under
// it and under no other, and without a change.
func refused(t *testing.T, s *Session, frame []byte, want Reason) Head {
	t.Helper()
	before, counts := s.snapshot(), counted(s.counters)
	head, err := s.OpenHead(frame)
	require.ErrorIs(t, err, want)
	require.Equal(t, before, s.snapshot(), "the state has changed")
	counts[want]++
	require.Equal(t, counts, counted(s.counters))
	return head
}

// badFrames are frames of a session's peer that must be refused, made from a
// good one; second is the one that was sealed after it.
var badFrames = []struct {
	name  string
	want  Reason
	frame func(client, server *Session, good, second []byte) []byte
}{
	{"no bytes", ErrLength, func(_, _ *Session, _, _ []byte) []byte { return nil }},
	{"length alone", ErrLength, func(_, _ *Session, good, _ []byte) []byte { return good[:LengthBytes] }},
	{"cut short", ErrLength, func(_, _ *Session, good, _ []byte) []byte { return good[:len(good)-1] }},
	{"one byte more", ErrLength, func(_, _ *Session, good, _ []byte) []byte { return append(clone(good), 0) }},
	{"length says more", ErrLength, func(_, _ *Session, good, _ []byte) []byte { return withLength(good, uint32(len(good)-LengthBytes+1)) }},
	{"length is the greatest", ErrLength, func(_, _ *Session, good, _ []byte) []byte { return withLength(good, 1<<32-1) }},
	{"length is 0", ErrLength, func(_, _ *Session, good, _ []byte) []byte { return withLength(good, 0) }},
	{"shorter than a header", ErrLength, func(c, _ *Session, good, _ []byte) []byte {
		short := append(clone(good[:headBytes-1]), good[headBytes:headBytes+TrailerBytes]...)
		setLength(short)
		c.out.sign(short, 0)
		return short
	}},
	{"Extra too long", ErrLength, func(c, _ *Session, good, _ []byte) []byte {
		long := append(clone(good[:headBytes]), make([]byte, MaxExtraBytes+1+TrailerBytes)...)
		setLength(long)
		c.out.sign(long, 0)
		return long
	}},
	{"no tag", ErrMAC, func(_, _ *Session, good, _ []byte) []byte {
		return append(clone(good[:len(good)-tagBytes]), make([]byte, tagBytes)...)
	}},
	{"tag of another frame", ErrMAC, func(_, _ *Session, good, second []byte) []byte {
		return append(clone(good[:len(good)-tagBytes]), second[len(second)-tagBytes:]...)
	}},
	{"turned back", ErrMAC, func(_, s *Session, _, _ []byte) []byte {
		frame, _ := s.Seal(nil, &Head{Code: 1})
		s.outSeq--
		return frame
	}},
	{"older version", ErrVersion, func(c, _ *Session, good, _ []byte) []byte {
		return forge(c, good, func(b []byte) { b[0] = Version - 1 })
	}},
	{"newer version", ErrVersion, func(c, _ *Session, good, _ []byte) []byte {
		return forge(c, good, func(b []byte) { b[0] = Version + 1 })
	}},
	{"kind", ErrKind, func(c, _ *Session, good, _ []byte) []byte {
		return forge(c, good, func(b []byte) { b[1] = byte(kindHello) })
	}},
	{"direction", ErrDirection, func(c, _ *Session, good, _ []byte) []byte {
		return forge(c, good, func(b []byte) { b[3] ^= flagFromServer })
	}},
	{"key id", ErrKeyID, func(c, _ *Session, good, _ []byte) []byte { return forge(c, good, func(b []byte) { b[4]++ }) }},
	{"session", ErrSession, func(c, _ *Session, good, _ []byte) []byte { return forge(c, good, func(b []byte) { b[8]++ }) }},
	{"protection", ErrProtection, func(c, _ *Session, good, _ []byte) []byte { return forge(c, good, func(b []byte) { b[2] ^= 3 }) }},
	{"no protection", ErrProtection, func(c, _ *Session, good, _ []byte) []byte { return forge(c, good, func(b []byte) { b[2] = 0 }) }},
	{"sequence number 0", ErrReplay, func(c, _ *Session, good, _ []byte) []byte { return forge(c, good, func(b []byte) { setSeq(b, 0) }) }},
	{"unknown flag", ErrField, func(c, _ *Session, good, _ []byte) []byte { return forge(c, good, func(b []byte) { b[3] |= 0x80 }) }},
	{"zero byte at 41", ErrField, func(c, _ *Session, good, _ []byte) []byte { return forge(c, good, func(b []byte) { b[41] = 1 }) }},
	{"zero word at 44", ErrField, func(c, _ *Session, good, _ []byte) []byte { return forge(c, good, func(b []byte) { b[47] = 1 }) }},
	{"code", ErrCode, func(c, _ *Session, good, _ []byte) []byte { return forge(c, good, func(b []byte) { b[40] = 77 }) }},
	{"payload too long", ErrLength, func(c, _ *Session, good, _ []byte) []byte {
		return forge(c, good, func(b []byte) { setPayload(b, 1<<30+1) })
	}},
	{"payload of negative length", ErrLength, func(c, _ *Session, good, _ []byte) []byte {
		return forge(c, good, func(b []byte) { setPayload(b, 1<<63) })
	}},
}

func clone(b []byte) []byte { return append([]byte(nil), b...) }

func withLength(frame []byte, n uint32) []byte {
	out := clone(frame)
	binary.LittleEndian.PutUint32(out, n)
	return out
}

func setSeq(header []byte, seq uint64)   { binary.LittleEndian.PutUint64(header[16:], seq) }
func setPayload(header []byte, n uint64) { binary.LittleEndian.PutUint64(header[32:], n) }

// WF1: a bad frame changes nothing and is counted by reason; the good one is
// accepted afterwards.
func TestWF1BadFrames(t *testing.T) {
	for _, c := range badFrames {
		t.Run(c.name, func(t *testing.T) {
			client, server := sessions(t)
			good, second := sealed(t, client, Head{Code: 1}), sealed(t, client, Head{Code: 2})
			head := refused(t, server, c.frame(client, server, good, second), c.want)
			if c.want == ErrCode || head.PayloadBytes != 0 {
				require.NotZero(t, head.Seq, "can be answered")
			} else {
				require.Equal(t, Head{}, head)
			}
			for _, frame := range [][]byte{good, second} {
				_, err := server.OpenHead(frame)
				require.NoError(t, err)
			}
		})
	}
}

// WF1: replays, in both kinds of session and in both directions.
func TestWF1Replay(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		client, server := sessions(t, func(c *Config) { c.Ordered = ordered })
		client.counters = &Counters{}
		there, back := sealed(t, client, Head{Code: 1}), sealed(t, server, Head{Code: 1})
		_, err := server.OpenHead(there)
		require.NoError(t, err)
		_, err = client.OpenHead(back)
		require.NoError(t, err)
		refused(t, server, there, ErrReplay)
		refused(t, client, back, ErrReplay)
	}
}

// A session that is ordered notices what is missing, the other one waits.
func TestGap(t *testing.T) {
	client, server := sessions(t, func(c *Config) { c.Ordered = true })
	first, second := sealed(t, client, Head{Code: 1}), sealed(t, client, Head{Code: 1})
	refused(t, server, second, ErrGap)
	for _, frame := range [][]byte{first, second} {
		_, err := server.OpenHead(frame)
		require.NoError(t, err)
	}
	client, server = sessions(t)
	first, second = sealed(t, client, Head{Code: 1}), sealed(t, client, Head{Code: 1})
	for _, frame := range [][]byte{second, first} {
		_, err := server.OpenHead(frame)
		require.NoError(t, err)
	}
}

// WF3: every bit of length, header, time and tag.
func TestWF3EveryBit(t *testing.T) {
	client, server := sessions(t)
	payload := []byte("rows of a token")
	frame := sealed(t, client, Head{Code: 1, Request: 5, Extra: []byte("where it goes")}, payload)
	for bit := range len(frame) * 8 {
		flipped := clone(frame)
		flipped[bit/8] ^= 1 << (bit % 8)
		want := ErrMAC
		if bit < LengthBytes*8 {
			want = ErrLength
		}
		refused(t, server, flipped, want)
	}
	_, err := server.OpenHead(frame)
	require.NoError(t, err)
}

// WF4: with a wrong tag the reason is the tag, whatever the fields say.
func TestWF4TagFirst(t *testing.T) {
	for _, c := range badFrames {
		client, server := sessions(t)
		good, second := sealed(t, client, Head{Code: 1}), sealed(t, client, Head{Code: 1})
		frame := clone(c.frame(client, server, good, second))
		if n, err := FrameBytes(frame); err != nil || n != len(frame) {
			continue
		}
		frame[len(frame)-1] ^= 1
		refused(t, server, frame, ErrMAC)
	}
}

// WF4: an impossible length is refused after four bytes, and no frame makes a receiver
// allocate.
func TestWF4LengthIsBounded(t *testing.T) {
	for n := range uint64(1 << 12) {
		got, err := FrameBytes(binary.LittleEndian.AppendUint32(nil, uint32(n)))
		possible := n >= HeadBytes+TrailerBytes && n <= HeadBytes+MaxExtraBytes+TrailerBytes
		require.Equal(t, possible, err == nil, n)
		if possible {
			require.Equal(t, int(n)+LengthBytes, got)
		}
	}
	for _, n := range []uint32{1 << 31, 1<<32 - 1} {
		_, err := FrameBytes(binary.LittleEndian.AppendUint32(nil, n))
		require.ErrorIs(t, err, ErrLength)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	for _, protection := range []Protection{ProtectDigest, ProtectEncrypt} {
		client, server := sessions(t, func(c *Config) { c.Protection = protection })
		payload, into := noise(1, 3*ChunkBytes+5), make([]byte, 3*ChunkBytes+5)
		list, places := [][]byte{payload[:100], payload[100:]}, [][]byte{into[:70], into[70:]}
		digest, enc, dec := server.NewDigest(), client.NewEncryptor(), server.NewDecryptor()
		var buf [MaxFrameBytes]byte
		room := make([]byte, 0, EncryptedBytes(int64(len(payload))))
		var split Splitter
		extra := make([]byte, 40)
		bad := sealed(t, client, Head{Code: 1})
		bad[50] ^= 1
		n := testing.AllocsPerRun(100, func() {
			head := Head{Code: 1, Extra: extra}
			frame, err := client.Seal(buf[:0], &head, list...)
			must(err)
			frame, _, err = split.Next(frame)
			must(err)
			got, err := server.OpenHead(frame)
			must(err)
			if protection == ProtectDigest {
				digest.Begin(&got)
				digest.Write(list[0])
				digest.Write(list[1])
				must(digest.Check())
			} else {
				enc.Begin(&head, list)
				wire := enc.Next(room)
				must(dec.Begin(&got, places))
				must(dec.Write(wire))
				must(dec.Check())
			}
			_, err = server.OpenHead(bad)
			if err == nil {
				panic("a bad frame was accepted")
			}
		})
		require.Zero(t, n, protection)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// WF7: what remembers replays has one size, whatever has come.
func TestWF7BoundedState(t *testing.T) {
	require.LessOrEqual(t, reflect.TypeFor[window]().Size(), uintptr(WindowNum/8+8))
	client, server := sessions(t)
	var buf [MaxFrameBytes]byte
	n := testing.AllocsPerRun(5000, func() {
		frame, err := client.Seal(buf[:0], &Head{Code: 1})
		must(err)
		_, err = server.OpenHead(frame)
		must(err)
	})
	require.Zero(t, n)
}

// WF8: a session does not depend on clocks.
func TestWF8ClockSteps(t *testing.T) {
	for _, step := range []time.Duration{61 * time.Second, -61 * time.Second, 24 * time.Hour, -24 * time.Hour} {
		ours, theirs := newClock(), newClock()
		a := testConfig(t, func(c *Config) { c.Now = ours.now })
		b := testConfig(t, func(c *Config) { c.Now = theirs.now })
		client, server, _ := shakeHands(t, a, b)
		for i := range 3 {
			_, err := server.OpenHead(sealed(t, client, Head{Code: 1}))
			require.NoError(t, err)
			_, err = client.OpenHead(sealed(t, server, Head{Code: 1}))
			require.NoError(t, err)
			if i == 1 {
				ours.step(step)
			}
		}
	}
}

// WF9: what is sealed is what is opened.
func TestWF9RoundTrip(t *testing.T) {
	client, server := sessions(t)
	for i, extra := range []int{0, 1, 17, MaxExtraBytes} {
		sent := Head{
			Code: 0x80, Reply: i%2 == 1, Refused: i%3 == 1, Status: uint16(i * 1000),
			Request: ^uint64(i), Extra: noise(1, extra),
		}
		frame, err := client.Seal([]byte("before"), &sent, []byte("abc"), nil, []byte("defg"))
		require.NoError(t, err)
		require.Equal(t, "before", string(frame[:6]))
		got, err := server.OpenHead(frame[6:])
		require.NoError(t, err)
		require.Equal(t, uint64(i+1), got.Seq)
		require.Equal(t, int64(7), got.PayloadBytes)
		require.Equal(t, sent, got)
	}
	require.EqualValues(t, 1+4, server.counters.Frames(), "the handshake and four messages")
}

// Seal refuses what the other side would refuse, and changes nothing.
func TestSealRefuses(t *testing.T) {
	client, _ := sessions(t, func(c *Config) { c.MaxPayloadBytes = 10 })
	for want, head := range map[Reason]Head{
		ErrLength: {Code: 1, Extra: make([]byte, MaxExtraBytes+1)},
		ErrCode:   {Code: 3},
	} {
		before := client.snapshot()
		dst, err := client.Seal([]byte("x"), &head)
		require.ErrorIs(t, err, want)
		require.Equal(t, "x", string(dst))
		require.Equal(t, before, client.snapshot())
	}
	_, err := client.Seal(nil, &Head{Code: 1}, make([]byte, 6), make([]byte, 5))
	require.ErrorIs(t, err, ErrLength)
	client.outSeq = 1<<64 - 2
	_, err = client.Seal(nil, &Head{Code: 1}, make([]byte, 10))
	require.NoError(t, err)
	_, err = client.Seal(nil, &Head{Code: 1})
	require.ErrorIs(t, err, ErrExhausted)
}

// WF10: a genuine request that is not served gets a genuine answer that names
// it.
func TestWF10Refusal(t *testing.T) {
	client, server := sessions(t, func(c *Config) { c.MaxPayloadBytes = 1 << 20 })
	client.codes, client.maxPayload = Codes(1, 3), 1<<30
	for request, c := range map[uint64]struct {
		head    Head
		payload []byte
		want    Reason
	}{
		41: {Head{Code: 3, Request: 41}, nil, ErrCode},
		42: {Head{Code: 1, Request: 42}, make([]byte, 1<<20+1), ErrLength},
	} {
		got := refused(t, server, sealed(t, client, c.head, c.payload), c.want)
		server.codes = nil // it answers with the code of the request
		answer, err := server.Seal(nil, &Head{Code: got.Code, Reply: true, Refused: true, Status: uint16(c.want), Request: got.Request})
		require.NoError(t, err)
		server.codes = testCodes
		reply, err := client.OpenHead(answer)
		require.NoError(t, err)
		require.True(t, reply.Reply && reply.Refused)
		require.Equal(t, request, reply.Request)
		require.Equal(t, c.want, Reason(reply.Status))
	}
}

func TestCodeSet(t *testing.T) {
	all := map[uint8]bool{0: true, 63: true, 64: true, 255: true}
	set := Codes(0, 63, 64, 255)
	for c := range 256 {
		require.Equal(t, all[uint8(c)], set.Has(uint8(c)), c)
		require.True(t, (*CodeSet)(nil).Has(uint8(c)))
	}
}

func TestReasons(t *testing.T) {
	texts := map[string]bool{}
	for r := Reason(1); r < numReasons; r++ {
		require.NotEmpty(t, reasonTexts[r])
		texts[r.Error()] = true
	}
	require.Len(t, texts, int(numReasons)-1)
	require.Equal(t, "wire: no reason", fmt.Sprint(Reason(200)))
	require.Zero(t, (&Counters{}).Refused(200))
}

// What the digest leaves out is said in the header, at most the payload, and only where both
// sides know of it.
func TestApart(t *testing.T) {
	apart := func(c *Config) { c.Apart = true }
	client, server, _ := shakeHands(t, testConfig(t, apart), testConfig(t, apart))
	good := sealedIn(t, client, &Head{Code: 1, ApartBytes: 9}, make([]byte, 9))
	_, err := server.OpenHead(forge(client, good, func(b []byte) { b[44] = 10 }))
	require.ErrorIs(t, err, ErrField)
	head, err := server.OpenHead(good)
	require.NoError(t, err)
	require.EqualValues(t, 9, head.ApartBytes)
	_, err = client.Seal(nil, &Head{Code: 1, ApartBytes: 10}, make([]byte, 9))
	require.ErrorIs(t, err, ErrLength)

	_, err = client.Seal(nil, &Head{Code: 1, ApartBytes: 1}, make([]byte, 9))
	require.NoError(t, err)
}

// A session that was not told of it, or that encrypts, takes no genuine header that leaves something out, and
// makes none.
func TestApartIsNotForAll(t *testing.T) {
	without := func(*Config) {}
	encrypting := func(c *Config) { c.Apart, c.Protection = true, ProtectEncrypt }
	for what, change := range map[string]func(*Config){"without": without, "encrypting": encrypting} {
		client, server := sessions(t, change)
		good := sealed(t, client, Head{Code: 1}, make([]byte, 9))
		for _, apart := range []byte{1, 8, 9} {
			refused(t, server, forge(client, good, func(b []byte) { b[44] = apart }), ErrField)
		}
		_, err := server.OpenHead(good)
		require.NoError(t, err, what)
	}
	client, _ := sessions(t, without)
	_, err := client.Seal(nil, &Head{Code: 1, ApartBytes: 1}, make([]byte, 9))
	require.ErrorIs(t, err, ErrField)
	client, server := sessions(t, encrypting)
	head, err := server.OpenHead(sealed(t, client, Head{Code: 1, ApartBytes: 9}, make([]byte, 9)))
	require.NoError(t, err)
	require.Zero(t, head.ApartBytes, "all of it is encrypted")
}
