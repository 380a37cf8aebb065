//go:build linux

package sys

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/moewire/moewire/core/internal/testenv"
)

// polledConns runs a test for a Conn and for a UnixConn.
func polledConns(t *testing.T, f func(t *testing.T, a, b vectored)) {
	t.Run("tcp", func(t *testing.T) {
		l, err := ListenNet("127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		a, err := DialNet(t.Context(), l.Addr().String())
		require.NoError(t, err)
		defer a.Close()
		b, err := l.Accept()
		require.NoError(t, err)
		defer b.Close()
		f(t, a, b.(*Conn))
	})
	t.Run("unix", func(t *testing.T) {
		one, other, err := StreamPair()
		require.NoError(t, err)
		a, err := UnixNet(one)
		require.NoError(t, err)
		defer a.Close()
		b, err := UnixNet(other)
		require.NoError(t, err)
		defer b.Close()
		f(t, a, b)
	})
}

// TestPolledCarries: bytes of both directions at once arrive as they were written, in pieces of any length.
func TestPolledCarries(t *testing.T) { polledConns(t, carries) }

// TestPolledEnds: what the other side, a deadline and this side say of a read and of a write.
func TestPolledEnds(t *testing.T) {
	polledConns(t, func(t *testing.T, a, b vectored) {
		var p [1]byte
		require.NoError(t, a.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		_, err := a.Read(p[:])
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, a.SetReadDeadline(time.Time{}))
		n, err := a.Read(nil)
		require.NoError(t, err)
		require.Zero(t, n)

		require.NoError(t, b.Close())
		_, err = a.Read(p[:])
		require.Equal(t, io.EOF, err)
		require.Eventually(t, func() bool {
			_, err = a.WriteBuffers(&net.Buffers{p[:]})
			return err != nil
		}, 10*time.Second, time.Millisecond)
		require.ErrorIs(t, err, unix.EPIPE)

		require.NoError(t, a.Close())
		_, err = a.Read(p[:])
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = a.WriteBuffers(&net.Buffers{p[:]})
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// goesOn: a list of pieces arrives whole though deadlines come while it is written: what is left of it is the rest.
func goesOn(t *testing.T, a, b vectored) {
	src := rand.New(rand.NewPCG(testenv.Seed(t), 2))
	sent := make([]byte, 24<<20)
	for i := range len(sent) / 8 {
		sent[8*i] = byte(src.Uint32())
	}
	list, rest := net.Buffers{nil}, sent
	for len(rest) > 0 {
		n := min(src.IntN(256<<10), len(rest))
		list, rest = append(list, rest[:n]), rest[n:]
	}
	got := make(chan []byte, 1)
	late := make(chan struct{})
	go func() {
		<-late
		all, _ := io.ReadAll(io.LimitReader(b, int64(len(sent))))
		got <- all
	}()
	total, numLate := int64(0), 0
	for len(list) > 0 {
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(5*time.Millisecond)))
		n, err := a.WriteBuffers(&list)
		total += n
		if err != nil {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			if numLate++; numLate == 2 {
				close(late)
			}
		}
	}
	require.GreaterOrEqual(t, numLate, 2)
	require.EqualValues(t, len(sent), total)
	require.True(t, bytes.Equal(sent, <-got))
}

// TestWritesGoOnAfterADeadline is of all kinds of connections.
func TestWritesGoOnAfterADeadline(t *testing.T) {
	polledConns(t, goesOn)
	kinds(t, func(t *testing.T, a, b *SocketConn) { goesOn(t, a, b) })
}

// TestPolledAllocatesNothing: neither a read nor a write makes anything on the heap.
func TestPolledAllocatesNothing(t *testing.T) {
	polledConns(t, func(t *testing.T, a, b vectored) {
		piece, into := make([]byte, 100), make([]byte, 200)
		var room [2][]byte
		var list net.Buffers
		require.Zero(t, testing.AllocsPerRun(100, func() {
			room[0], room[1] = piece, piece
			list = room[:]
			_, err := a.WriteBuffers(&list)
			require.NoError(t, err)
			_, err = io.ReadFull(b, into)
			require.NoError(t, err)
		}))
	})
}
