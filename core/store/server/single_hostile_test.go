package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/wire"
)

// A client that stops half way costs its own connection, at any byte of a put that is the first or a later one.
func TestHalfSingles(t *testing.T) {
	s, e := serve(t, func(c *server.Config) { c.Idle, c.Handshake = 2*time.Second, 2*time.Second })
	good := asks(t, s)
	whole := len(good.frame(message.Put, of("key"), []byte("block")))
	var half []*asker
	for i, n := range []int{1, 3, 7, 90, whole - 6, whole - 1, 1, 5, 90, whole - 6, whole - 1} {
		a := dialSingle(t, s)
		if i < 6 {
			a = asks(t, s)
		}
		_, err := a.nc.Write(a.frame(message.Put, of("key"), []byte("block"))[:n])
		require.NoError(t, err)
		half = append(half, a)
	}
	for _, a := range half {
		a.dropped()
	}
	require.EqualValues(t, 6, s.Counters().Idle.Load())
	status, _ := good.do(message.Exists, of("key"), nil)
	require.Equal(t, message.Miss, status)
	quiet(t, e)
}

// Lengths that cannot be are refused before anything of that length is waited for or allocated.
func TestLongSingles(t *testing.T) {
	s, _ := serve(t)
	for _, first := range []bool{true, false} {
		before := s.Refusals().Refused(wire.ErrLength)
		a := asks(t, s)
		if first {
			a = dialSingle(t, s)
		}
		_, err := a.nc.Write([]byte{0xff, 0xff, 0xff, 0xff, 2, 7})
		require.NoError(t, err)
		a.dropped()
		require.Equal(t, before+1, s.Refusals().Refused(wire.ErrLength))
	}
}

// A client that does not read its reply ends at its deadline.
func TestSinglesThatDoNotRead(t *testing.T) {
	s, e := serve(t, func(c *server.Config) { c.Idle = 2 * time.Second })
	open(t, s).mustPut("key", make([]byte, 15<<20))
	a := asks(t, s)
	_, err := a.nc.Write(a.frame(message.Get, of("key"), nil))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.Counters().Idle.Load() == 1 }, 20*time.Second, time.Millisecond)
	quiet(t, e)
}

// A drain lets a put end that has begun to arrive, and takes no further request.
func TestDrainLetsSinglesEnd(t *testing.T) {
	s, _ := serve(t)
	a := asks(t, s)
	put := a.frame(message.Put, of("key"), noise(1<<20))
	_, err := a.nc.Write(put[:1<<19])
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.Refusals().Frames() == 2 }, 20*time.Second, time.Millisecond, "the head is there")
	done := make(chan struct{})
	go func() { s.Drain(time.Now().Add(20 * time.Second)); close(done) }()
	require.Eventually(t, func() bool { return s.Stats().Draining == 1 }, 20*time.Second, time.Millisecond)
	_, err = a.nc.Write(put[1<<19:])
	require.NoError(t, err)
	status, _ := a.readReply(message.Put)
	require.Equal(t, message.OK, status)
	a.dropped()
	<-done
}

// FuzzSingles: whatever a client that has the key asks, it gets one reply, and is served on.
func FuzzSingles(f *testing.F) {
	s, _ := serve(f)
	a := asks(f, s)
	f.Add(message.Put, of("key"), []byte("block"))
	f.Add(message.Get, of("key"), []byte(nil))
	f.Add(message.Open, []byte(nil), []byte(nil))
	f.Fuzz(func(t *testing.T, code byte, extra, payload []byte) {
		a.t = t
		a.do(code, extra[:min(len(extra), wire.MaxSingleExtraBytes)], payload)
		status, _ := a.do(message.Exists, of("no such key, as far as is known"), nil)
		require.LessOrEqual(t, status, message.Miss)
	})
}
