package wire

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newCompat(t testing.TB, change ...func(*Config)) *Compat {
	t.Helper()
	c, err := NewCompat(testConfig(t, change...))
	require.NoError(t, err)
	return c
}

// WF9.
func TestWF9Compat(t *testing.T) {
	c := newCompat(t)
	for i, head := range []CompatHead{{Code: 1}, {Code: 0xff, Reply: true, PayloadBytes: 1 << 30, Request: 1<<64 - 1}} {
		frame, err := c.Seal([]byte("x"), head)
		require.NoError(t, err)
		require.Len(t, frame, 1+CompatFrameBytes)
		got, err := c.Open(frame[1:])
		require.NoError(t, err)
		require.Equal(t, head, got)
		require.EqualValues(t, i+1, c.counters.Frames())
	}
}

// WF1: bad frames are counted by reason. There is no state that they could
// change.
func TestWF1CompatBadFrames(t *testing.T) {
	forged := func(change func(b []byte)) func(c *Compat, frame []byte) []byte {
		return func(c *Compat, frame []byte) []byte {
			change(frame[LengthBytes:])
			c.sign.sign(frame, int64(signedAt(frame)))
			return frame
		}
	}
	for name, c := range map[string]struct {
		want  Reason
		frame func(c *Compat, frame []byte) []byte
	}{
		"empty":         {ErrLength, func(*Compat, []byte) []byte { return nil }},
		"short":         {ErrLength, func(_ *Compat, f []byte) []byte { return f[:len(f)-1] }},
		"long":          {ErrLength, func(_ *Compat, f []byte) []byte { return append(f, 0) }},
		"length":        {ErrLength, func(_ *Compat, f []byte) []byte { return withLength(f, 1<<32-1) }},
		"no tag":        {ErrMAC, func(_ *Compat, f []byte) []byte { clear(f[len(f)-tagBytes:]); return f }},
		"newer version": {ErrVersion, forged(func(b []byte) { b[0]++ })},
		"flags":         {ErrField, forged(func(b []byte) { b[1] = 2 })},
		"zero at 3":     {ErrField, forged(func(b []byte) { b[3] = 1 })},
		"code":          {ErrCode, forged(func(b []byte) { b[2] = 77 })},
		"payload":       {ErrLength, forged(func(b []byte) { binary.LittleEndian.PutUint32(b[4:], 1<<30+1) })},
		"another key": {ErrMAC, func(_ *Compat, f []byte) []byte {
			other := newCompat(t, func(c *Config) { c.Keys = keysOf(t, "7 "+otherKey) })
			return must1(other.Seal(nil, CompatHead{Code: 1}))
		}},
	} {
		compat := newCompat(t)
		frame, err := compat.Seal(nil, CompatHead{Code: 1})
		require.NoError(t, err)
		_, err = compat.Open(c.frame(compat, frame))
		require.ErrorIs(t, err, c.want, name)
		require.Equal(t, map[Reason]uint64{c.want: 1}, counted(compat.counters), name)
	}
}

// WF2: exactly a minute, in either direction.
func TestWF2Compat(t *testing.T) {
	for d, ok := range map[time.Duration]bool{MaxSkew: true, -MaxSkew: true, MaxSkew + 1: false, -MaxSkew - 1: false} {
		frame, err := newCompat(t, at(d)).Seal(nil, CompatHead{Code: 1})
		require.NoError(t, err)
		_, err = newCompat(t).Open(frame)
		require.Equal(t, ok, err == nil, d)
		if !ok {
			require.ErrorIs(t, err, ErrTime)
		}
	}
	c := newCompat(t)
	for _, signed := range []int64{0, -1} {
		frame, err := c.Seal(nil, CompatHead{Code: 1})
		require.NoError(t, err)
		c.sign.sign(frame, signed)
		_, err = c.Open(frame)
		require.ErrorIs(t, err, ErrTime)
	}
}

// WF3: every bit of the frame. The payload is not covered: nothing in the
// frame depends on it, so nothing can notice.
func TestWF3Compat(t *testing.T) {
	c := newCompat(t)
	frame, err := c.Seal(nil, CompatHead{Code: 1, PayloadBytes: 3})
	require.NoError(t, err)
	for bit := range len(frame) * 8 {
		_, err := c.Open(flip(frame, bit))
		require.Error(t, err)
	}
	_, err = c.Open(frame)
	require.NoError(t, err)
}

// What Compat lacks, so that no caller relies on it: a frame may come twice.
func TestCompatHasNoReplayWindow(t *testing.T) {
	c := newCompat(t)
	frame, err := c.Seal(nil, CompatHead{Code: 1})
	require.NoError(t, err)
	for range 2 {
		_, err = c.Open(frame)
		require.NoError(t, err)
	}
}

// Neither format's frames pass as the other's, with the same shared key.
func TestNoDowngrade(t *testing.T) {
	config := testConfig(t)
	compat := must1(NewCompat(config))
	frame, err := compat.Seal(nil, CompatHead{Code: 1})
	require.NoError(t, err)
	client, server, r := shakeHands(t, config, config)
	refused(t, server, frame, ErrLength)
	_, b := handshakes(t, config, config)
	_, out, err := b.Step(frame)
	require.ErrorIs(t, err, ErrLength)
	require.Nil(t, out)
	// As long as a hello, and signed as compat frames are.
	long := clone(r.hello)
	compat.sign.sign(long, epoch.UnixNano())
	_, b = handshakes(t, config, config)
	_, out, err = b.Step(long)
	require.ErrorIs(t, err, ErrMAC)
	require.Nil(t, out)
	for _, frame := range [][]byte{r.hello, r.welcome, sealed(t, client, Head{Code: 1})} {
		_, err = compat.Open(frame)
		require.ErrorIs(t, err, ErrLength)
	}
}

func TestCompatSealRefuses(t *testing.T) {
	c := newCompat(t)
	for want, head := range map[Reason]CompatHead{ErrCode: {Code: 77}, ErrLength: {Code: 1, PayloadBytes: 1<<30 + 1}} {
		out, err := c.Seal([]byte("x"), head)
		require.ErrorIs(t, err, want)
		require.Equal(t, "x", string(out))
	}
	var buf [CompatFrameBytes]byte
	require.Zero(t, testing.AllocsPerRun(100, func() {
		frame, err := c.Seal(buf[:0], CompatHead{Code: 1})
		must(err)
		_, err = c.Open(frame)
		must(err)
	}))
}
