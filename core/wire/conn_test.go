package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// ended is what one side of a handshake has come to.
type ended struct {
	session *Session
	peer    Peer
	err     error
	after   time.Duration
}

// serve runs a server's handshake at one end of a pipe.
func serve(conn net.Conn, limit time.Duration, config Config) <-chan ended {
	done := make(chan ended, 1)
	begin := time.Now()
	go func() {
		s, peer, err := Server(conn, begin.Add(limit), config)
		done <- ended{s, peer, err, time.Since(begin)}
	}()
	return done
}

// bubble gives both ends of a pipe and a configuration with its clock.
func bubble(t *testing.T, f func(t *testing.T, ours, theirs net.Conn, config Config)) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		defer ours.Close()
		f(t, ours, theirs, testConfig(t, func(c *Config) { c.Now = time.Now }))
	})
}

func TestConn(t *testing.T) {
	bubble(t, func(t *testing.T, ours, theirs net.Conn, config Config) {
		config.Self, config.Blob = idA, []byte("hello")
		done := serve(theirs, time.Second, config)
		client, peer, err := Client(ours, time.Now().Add(time.Second), config)
		require.NoError(t, err)
		server := <-done
		require.NoError(t, server.err)
		require.Equal(t, peer, server.peer)
		require.Equal(t, client.ID(), server.session.ID())
		// The deadline of the handshake is not one of the connection.
		time.Sleep(time.Hour)
		go ours.Write([]byte("x"))
		_, err = theirs.Read(make([]byte, 1))
		require.NoError(t, err)
	})
}

// WF4, WF5: a peer that says nothing, or a byte now and then, has until the
// deadline and no longer.
func TestWF5SlowPeer(t *testing.T) {
	for _, pause := range []time.Duration{time.Hour, time.Second} {
		bubble(t, func(t *testing.T, ours, theirs net.Conn, config Config) {
			done := serve(theirs, 10*time.Second, config)
			a, _ := handshakes(t, config, config)
			stop := make(chan struct{})
			go func() {
				defer close(stop)
				for _, b := range a.Start() {
					time.Sleep(pause)
					if _, err := ours.Write([]byte{b}); err != nil {
						return
					}
				}
			}()
			server := <-done
			require.ErrorIs(t, server.err, os.ErrDeadlineExceeded)
			require.Equal(t, 10*time.Second, server.after)
			theirs.Close()
			<-stop
		})
	}
}

// WF5: a connection that ends in the middle of a frame.
func TestWF5CutShort(t *testing.T) {
	for _, n := range []int{0, 3, 4, 100} {
		bubble(t, func(t *testing.T, ours, theirs net.Conn, config Config) {
			done := serve(theirs, time.Hour, config)
			a, _ := handshakes(t, config, config)
			_, err := ours.Write(a.Start()[:n])
			require.NoError(t, err)
			ours.Close()
			server := <-done
			require.True(t, errors.Is(server.err, io.EOF) || errors.Is(server.err, io.ErrUnexpectedEOF), server.err)
		})
	}
}

// WF10: a client that is refused learns why, at once.
func TestWF10ConnRefused(t *testing.T) {
	bubble(t, func(t *testing.T, ours, theirs net.Conn, config Config) {
		done := serve(theirs, time.Hour, config)
		client := config
		client.Protection = ProtectEncrypt
		_, _, err := Client(ours, time.Now().Add(time.Hour), client)
		var refusal *RefusedError
		require.ErrorAs(t, err, &refusal)
		require.ErrorIs(t, err, ErrProtection)
		require.ErrorIs(t, (<-done).err, ErrProtection)
	})
}

func TestConnErrors(t *testing.T) {
	bubble(t, func(t *testing.T, ours, theirs net.Conn, config Config) {
		_, _, err := Client(ours, time.Time{}, Config{})
		require.ErrorContains(t, err, "Keys")
		theirs.Close()
		_, _, err = Client(ours, time.Now().Add(time.Hour), config)
		require.ErrorIs(t, err, io.ErrClosedPipe)
		ours.Close()
		_, _, err = Client(ours, time.Now().Add(time.Hour), config)
		require.ErrorIs(t, err, io.ErrClosedPipe)
	})
}

// WF5: any portions of a stream of frames and payloads give the same messages.
func TestWF5Splitter(t *testing.T) {
	src := newRand(t)
	client, server := sessions(t, func(c *Config) { c.Ordered = true })
	digest := server.NewDigest()
	var stream []byte
	const num = 40
	for i := range num {
		payload := noise(uint64(i), src.IntN(3)*src.IntN(300))
		stream = append(stream, sealed(t, client, Head{Code: 1, Extra: noise(1, src.IntN(50))}, payload)...)
		stream = append(stream, payload...)
	}
	var split Splitter
	messages, left := 0, int64(0)
	for len(stream) > 0 {
		n := min(len(stream), 1+src.IntN(3)*src.IntN(400))
		in := stream[:n]
		stream = stream[n:]
		for len(in) > 0 {
			if left > 0 {
				m := min(int64(len(in)), left)
				digest.Write(in[:m])
				in, left = in[m:], left-m
			} else {
				frame, rest, err := split.Next(in)
				require.NoError(t, err)
				in = rest
				if frame == nil {
					continue
				}
				head, err := server.OpenHead(frame)
				require.NoError(t, err)
				digest.Begin(&head)
				left = server.PayloadWireBytes(&head)
			}
			if left == 0 {
				require.NoError(t, digest.Check())
				messages++
			}
		}
	}
	require.Equal(t, num, messages)
	_, rest, err := split.Next([]byte{0xff, 0xff, 0xff, 0xff, 1})
	require.ErrorIs(t, err, ErrLength)
	require.Len(t, rest, 1)
}
