package stream

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/wire"
)

const testTimeout = 20 * time.Second

var long = Limits{Idle: testTimeout, Total: testTimeout}

func config(t testing.TB, p wire.Protection) wire.Config {
	t.Helper()
	keys, err := wire.NewKeyring(func() ([]byte, error) {
		return []byte("1 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"), nil
	})
	require.NoError(t, err)
	guard, err := wire.NewGuard(0)
	require.NoError(t, err)
	return wire.Config{Keys: keys, Protection: p, Ordered: true, MaxPayloadBytes: 64 << 20, Guard: guard}
}

// conns is a connection over loopback.
func conns(t testing.TB) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	client, err = net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	server, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return client, server
}

// sessions begins a session over a connection.
func sessions(t testing.TB, client, server net.Conn, p wire.Protection) (a, b *wire.Session) {
	t.Helper()
	cfg, done := config(t, p), make(chan error, 1)
	go func() {
		var err error
		b, err = Handshake(server, wire.RoleServer, cfg, time.Now().Add(testTimeout))
		done <- err
	}()
	a, err := Handshake(client, wire.RoleClient, cfg, time.Now().Add(testTimeout))
	require.NoError(t, err)
	require.NoError(t, <-done)
	return a, b
}

func pair(t testing.TB, p wire.Protection, limits Limits) (*Writer, *Reader, net.Conn) {
	t.Helper()
	client, server := conns(t)
	a, b := sessions(t, client, server, p)
	return NewWriter(client, a, long, nil), NewReader(server, b, limits), client
}

func both(t *testing.T, f func(t *testing.T, p wire.Protection)) {
	for _, p := range []wire.Protection{wire.ProtectDigest, wire.ProtectEncrypt} {
		t.Run(p.String(), func(t *testing.T) { f(t, p) })
	}
}

func newRand(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(testenv.Seed(t), 0))
}

func noise(src *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(src.Uint32())
	}
	return b
}

var sizes = []int{
	0, 1, 100, smallBytes, smallBytes + 1, wire.ChunkBytes - 1, wire.ChunkBytes, wire.ChunkBytes + 1,
	outBytes, 3*checkBytes + 7, writeBytes + 1,
}

// read reads a payload in portions of random length, the last of which End skips.
func read(t *testing.T, src *rand.Rand, r *Reader, want []byte) {
	t.Helper()
	head, err := r.Next()
	require.NoError(t, err)
	require.EqualValues(t, len(want), head.PayloadBytes)
	skipped := src.IntN(2) * src.IntN(len(want)+1)
	got := make([]byte, len(want)-skipped)
	for rest := got; len(rest) > 0; {
		n := min(len(rest), 1+src.IntN(1+src.IntN(3*wire.ChunkBytes)))
		require.NoError(t, r.Read(rest[:n]))
		rest = rest[n:]
	}
	require.True(t, bytes.Equal(want[:len(got)], got))
	require.EqualValues(t, skipped, r.Left())
	require.NoError(t, r.End())
}

// WF5: payloads are the same however they are cut at the sender and read here.
func TestMessagesThereAndBack(t *testing.T) {
	both(t, func(t *testing.T, p wire.Protection) {
		src := newRand(t)
		w, r, _ := pair(t, p, long)
		var payloads [][]byte
		for range 60 {
			payloads = append(payloads, noise(src, sizes[src.IntN(len(sizes))]))
		}
		done := make(chan error, 1)
		order := src.Perm(1000) // another source for the writer
		go func() {
			var err error
			for i, b := range payloads {
				var pieces [][]byte
				for len(b) > 0 {
					n := min(len(b), 1+order[i]%700+len(b)/1500)
					pieces = append(pieces, b[:n])
					b = b[n:]
				}
				if err == nil {
					err = w.Append(&wire.Head{Code: 1}, pieces)
				}
				if err == nil && order[i]%3 == 0 {
					err = w.Flush()
				}
			}
			if err == nil {
				err = w.Flush()
			}
			done <- err
		}()
		for _, want := range payloads {
			read(t, src, r, want)
		}
		require.NoError(t, <-done)
		require.NotZero(t, r.Progress())
	})
}

// More than the payload is not given, and End comes to the same error for whatever bit is
// flipped.
func TestFlippedBits(t *testing.T) {
	both(t, func(t *testing.T, p wire.Protection) {
		src := newRand(t)
		for range 40 {
			client, server := conns(t)
			a, b := sessions(t, client, server, p)
			payload := noise(src, 100)
			var sent bytes.Buffer
			w := NewWriter(sink{client, &sent}, a, long, nil)
			require.NoError(t, w.Append(&wire.Head{Code: 1}, [][]byte{payload}))
			require.NoError(t, w.Flush())
			raw := sent.Bytes()
			bit := src.IntN(8 * len(raw))
			raw[bit/8] ^= 1 << (bit % 8)
			_, err := client.Write(raw)
			require.NoError(t, err)
			require.NoError(t, client.Close())
			r := NewReader(server, b, long)
			head, err := r.Next()
			if err == nil {
				require.ErrorIs(t, r.Read(make([]byte, head.PayloadBytes+1)), wire.ErrLength)
				err = r.End()
			}
			require.Error(t, err, "bit %d of %d", bit, 8*len(raw))
			require.NotErrorIs(t, err, io.EOF, "as if nothing had come")
		}
	})
}

// Read gives nothing that End does not answer for. ReadBlock does, and what it gives may have
// been changed; whatever comes before it may not.
func TestApart(t *testing.T) {
	src := newRand(t)
	for apart := range uint32(41) {
		client, server := conns(t)
		a, b := sessions(t, client, server, wire.ProtectDigest)
		payload, changed := noise(src, 40), src.IntN(40)
		var sent bytes.Buffer
		w := NewWriter(sink{client, &sent}, a, long, nil)
		require.NoError(t, w.Append(&wire.Head{Code: 1, ApartBytes: apart}, [][]byte{payload[:7], payload[7:]}))
		require.NoError(t, w.Flush())
		sent.Bytes()[sent.Len()-40+changed] ^= 1
		_, err := client.Write(sent.Bytes())
		require.NoError(t, err)
		r, covered := NewReader(server, b, long), 40-int(apart)
		_, err = r.Next()
		require.NoError(t, err)
		require.ErrorIs(t, r.Read(make([]byte, covered+1)), wire.ErrLength)
		got := make([]byte, 40)
		require.NoError(t, r.Read(got[:covered/2]))
		require.NoError(t, r.ReadBlock(got[covered/2:]))
		if changed < covered {
			require.ErrorIs(t, r.End(), wire.ErrPayload)
			continue
		}
		require.NoError(t, r.End())
		got[changed] ^= 1
		require.Equal(t, payload, got)
	}
}

// sink keeps what is written.
type sink struct {
	net.Conn
	to *bytes.Buffer
}

func (s sink) Write(b []byte) (int, error) { return s.to.Write(b) }

// What ends in the middle of a message is no good end; what ends between two is.
func TestCutMessages(t *testing.T) {
	w, r, client := pair(t, wire.ProtectDigest, long)
	require.NoError(t, w.Append(&wire.Head{Code: 1}, [][]byte{make([]byte, 100)}))
	require.NoError(t, w.Flush())
	require.NoError(t, client.Close())
	_, err := r.Next()
	require.NoError(t, err)
	require.NoError(t, r.End())
	_, err = r.Next()
	require.ErrorIs(t, err, io.EOF)

	w, r, client = pair(t, wire.ProtectDigest, long)
	sent := &bytes.Buffer{}
	w.conn = sink{client, sent}
	require.NoError(t, w.Append(&wire.Head{Code: 1}, [][]byte{make([]byte, 100)}))
	require.NoError(t, w.Flush())
	_, err = client.Write(sent.Bytes()[:sent.Len()-1])
	require.NoError(t, err)
	require.NoError(t, client.Close())
	_, err = r.Next()
	require.NoError(t, err)
	require.ErrorIs(t, r.End(), io.ErrUnexpectedEOF)
}

// A message that has begun has deadlines; between messages there is none.
func TestLimits(t *testing.T) {
	for name, limits := range map[string]Limits{
		"idle":  {Idle: 50 * time.Millisecond, Total: testTimeout},
		"total": {Idle: testTimeout, Total: 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			w, r, client := pair(t, wire.ProtectDigest, limits)
			time.Sleep(100 * time.Millisecond) // nothing comes, and it is no matter
			require.NoError(t, w.Append(&wire.Head{Code: 1}, nil))
			require.NoError(t, w.Flush())
			_, err := r.Next()
			require.NoError(t, err)
			require.NoError(t, r.End())
			_, err = client.Write([]byte{200})
			require.NoError(t, err)
			_, err = r.Next()
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		})
	}
}

// Stop ends the wait for a message at once, and a message that has begun when it is whole.
func TestStop(t *testing.T) {
	w, r, client := pair(t, wire.ProtectDigest, long)
	sent := &bytes.Buffer{}
	w.conn = sink{client, sent}
	require.NoError(t, w.Append(&wire.Head{Code: 1}, [][]byte{make([]byte, 100)}))
	require.NoError(t, w.Flush())
	_, err := client.Write(sent.Bytes()[:150])
	require.NoError(t, err)
	type result struct{ first, second error }
	done := make(chan result, 1)
	go func() {
		var got result
		if _, got.first = r.Next(); got.first == nil {
			got.first = r.End()
		}
		_, got.second = r.Next()
		done <- got
	}()
	require.Eventually(t, func() bool { return r.Progress() != 0 }, testTimeout, time.Millisecond)
	r.Stop()
	time.Sleep(10 * time.Millisecond) // it waits on
	_, err = client.Write(sent.Bytes()[150:])
	require.NoError(t, err)
	got := <-done
	require.NoError(t, got.first)
	require.ErrorIs(t, got.second, ErrStopped)

	_, r, _ = pair(t, wire.ProtectDigest, long)
	go func() { _, got.second = r.Next(); done <- got }()
	time.Sleep(10 * time.Millisecond)
	r.Stop()
	got = <-done
	require.ErrorIs(t, got.second, ErrStopped)
}

// A write that takes nothing fails after a while.
func TestWriterIsNotStuck(t *testing.T) {
	both(t, func(t *testing.T, p wire.Protection) {
		client, server := conns(t)
		a, _ := sessions(t, client, server, p)
		wrote := 0
		w := NewWriter(client, a, Limits{Idle: 50 * time.Millisecond, Total: testTimeout}, func() { wrote++ })
		err := w.Append(&wire.Head{Code: 1}, [][]byte{make([]byte, 64<<20)})
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NotZero(t, wrote)
	})
}

// A handshake has a deadline, and an end that says nothing has its own error.
func TestHandshakeEnds(t *testing.T) {
	client, server := conns(t)
	_, err := Handshake(server, wire.RoleServer, config(t, wire.ProtectDigest), time.Now().Add(20*time.Millisecond))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, server.Close())
	_, err = Handshake(client, wire.RoleClient, config(t, wire.ProtectDigest), time.Now().Add(testTimeout))
	require.Error(t, err)
	require.Zero(t, wire.NumOpenHandshakes())
	client, server = conns(t)
	go func(server net.Conn) { _, _ = io.ReadFull(server, make([]byte, 156)); _ = server.Close() }(server)
	_, err = Handshake(client, wire.RoleClient, config(t, wire.ProtectDigest), time.Now().Add(testTimeout))
	require.ErrorIs(t, err, ErrSilent)
	client, server = conns(t)
	go func() {
		h, _ := wire.NewHandshake(wire.RoleServer, config(t, wire.ProtectDigest))
		hello := make([]byte, 156)
		_, _ = io.ReadFull(server, hello)
		_, welcome, _ := h.Step(hello)
		_, _ = server.Write(welcome[:wire.LengthBytes])
		_ = server.Close()
		h.Close()
	}()
	_, err = Handshake(client, wire.RoleClient, config(t, wire.ProtectDigest), time.Now().Add(testTimeout))
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrSilent, "something was said")
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	both(t, func(t *testing.T, p wire.Protection) {
		w, r, _ := pair(t, p, long)
		head, pieces, into := new(wire.Head), [][]byte{make([]byte, 30<<10), make([]byte, 50<<10)}, make([]byte, 80<<10)
		require.Zero(t, testing.AllocsPerRun(50, func() {
			*head = wire.Head{Code: 1}
			if w.Append(head, pieces) != nil || w.Flush() != nil {
				t.Error("not written")
			}
			if _, err := r.Next(); err != nil || r.Read(into) != nil || r.End() != nil {
				t.Error("not read")
			}
		}))
	})
}
