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

// socketConns are two ends of a connection, by TCP or over a unix socket.
func socketConns(t *testing.T, tcp bool) (a, b *SocketConn) {
	t.Helper()
	if !tcp {
		one, other, err := StreamPair()
		require.NoError(t, err)
		a, err = NewSocketConn(one, nil, nil)
		require.NoError(t, err)
		b, err = NewSocketConn(other, nil, nil)
		require.NoError(t, err)
	} else {
		l, err := ListenNet("127.0.0.1:0")
		require.NoError(t, err)
		dialled, err := DialNet(t.Context(), l.Addr().String())
		require.NoError(t, err)
		accepted, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, l.Close())
		a, err = dialled.Socket()
		require.NoError(t, err)
		b, err = accepted.(*Conn).Socket()
		require.NoError(t, err)
		require.Equal(t, a.LocalAddr(), b.RemoteAddr())
		require.Equal(t, b.LocalAddr(), a.RemoteAddr())
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

// kinds runs a test for each kind of socket, and for each way to wait: on the own thread at first, by way of the poller
// alone, and without a descriptor for that.
func kinds(t *testing.T, f func(t *testing.T, a, b *SocketConn)) {
	for _, kind := range []string{"tcp", "unix"} {
		for _, way := range []string{"thread", "poller", "no descriptor"} {
			t.Run(kind+"/"+way, func(t *testing.T) {
				if way == "no descriptor" {
					t.Cleanup(FailCall("epoll_create1", unix.EMFILE))
				}
				a, b := socketConns(t, kind == "tcp")
				for _, c := range []*SocketConn{a, b} {
					c.Linger(way == "thread")
					c.writes.lingers.Store(way == "thread")
				}
				f(t, a, b)
			})
		}
	}
}

// TestSocketConnCarries: bytes of both directions at once arrive as they were written, in pieces of any length.
func TestSocketConnCarries(t *testing.T) {
	kinds(t, func(t *testing.T, a, b *SocketConn) { carries(t, a, b) })
}

// vectored is what SocketConn, Conn and UnixConn have in common.
type vectored interface {
	net.Conn
	WriteBuffers(list *net.Buffers) (int64, error)
}

func carries(t *testing.T, a, b vectored) {
	const total = 8 << 20
	src := rand.New(rand.NewPCG(testenv.Seed(t), 1))
	sent := make([]byte, total)
	for i := range sent {
		sent[i] = byte(src.Uint32())
	}
	got := make(chan []byte, 2)
	for _, ends := range [][2]vectored{{a, b}, {b, a}} {
		go func() {
			all, err := io.ReadAll(io.LimitReader(ends[1], total))
			require.NoError(t, err)
			got <- all
		}()
		pieces := src.Perm(500)
		go func() {
			for rest := sent; len(rest) > 0; {
				var list net.Buffers
				for _, n := range pieces {
					n = min(n*n, len(rest))
					list, rest = append(list, rest[:n]), rest[n:]
				}
				_, err := ends[0].WriteBuffers(&list)
				require.NoError(t, err)
			}
		}()
	}
	for range 2 {
		require.True(t, bytes.Equal(sent, <-got))
	}
}

// TestSocketConnDeadlines: a wait ends at its deadline, at one that is set while it waits, and not at one that was
// taken back.
func TestSocketConnDeadlines(t *testing.T) {
	kinds(t, func(t *testing.T, a, b *SocketConn) {
		var p [1]byte
		begun := time.Now()
		require.NoError(t, a.SetReadDeadline(begun.Add(30*time.Millisecond)))
		_, err := a.Read(p[:])
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.GreaterOrEqual(t, time.Since(begun), 30*time.Millisecond)

		require.NoError(t, a.SetReadDeadline(time.Time{}))
		ended := make(chan error)
		go func() {
			_, err := a.Read(p[:])
			ended <- err
		}()
		time.Sleep(20 * time.Millisecond)
		require.NoError(t, a.SetReadDeadline(time.Unix(1, 0)))
		require.ErrorIs(t, <-ended, os.ErrDeadlineExceeded)

		require.NoError(t, a.SetReadDeadline(time.Now().Add(time.Second)))
		n, err := a.Read(nil)
		require.NoError(t, err, "it waits for nothing")
		require.Zero(t, n)

		require.NoError(t, a.SetDeadline(time.Time{}))
		_, err = b.Write([]byte{7})
		require.NoError(t, err)
		_, err = a.Read(p[:])
		require.NoError(t, err)
		require.EqualValues(t, 7, p[0])

		require.NoError(t, a.SetWriteDeadline(time.Now().Add(300*time.Millisecond)))
		n, err = a.Write(make([]byte, 64<<20))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Positive(t, n)
	})
}

// TestSocketConnCloses: Close ends what waits at both sides, also where a child has a copy, and gives all descriptors back.
func TestSocketConnCloses(t *testing.T) {
	kinds(t, func(t *testing.T, a, b *SocketConn) {
		ended := make(chan error, 4)
		read := func(c *SocketConn) {
			_, err := c.Read(make([]byte, 1))
			ended <- err
		}
		go read(a)
		go func() { _, err := a.Write(make([]byte, 64<<20)); ended <- err }()
		time.Sleep(20 * time.Millisecond)
		copied, err := Dup(a.fd) // as a forked child has one
		require.NoError(t, err)
		defer func() { require.NoError(t, copied.Close()) }()
		require.NoError(t, a.Close())
		require.NoError(t, a.Close())
		for range 2 {
			require.ErrorIs(t, <-ended, net.ErrClosed)
		}
		_, err = io.Copy(io.Discard, b)
		require.NoError(t, err)
		require.Negative(t, a.fd.Raw())
		_, err = a.Read(nil)
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = a.Write([]byte{1})
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, a.SetDeadline(time.Time{}), net.ErrClosed)
		require.True(t, a.Await(time.Hour), "what comes next says it")
	})
}

// TestSocketConnEnd: the end of the other side is seen where nothing is read, and bytes are not taken for it.
func TestSocketConnEnd(t *testing.T) {
	for _, tcp := range []bool{true, false} {
		a, b := socketConns(t, tcp)
		ended := make(chan error, 1)
		go func() { ended <- a.AwaitEnd() }()
		_, err := b.Write([]byte{1})
		require.NoError(t, err)
		require.True(t, a.Await(20*time.Second))
		time.Sleep(10 * time.Millisecond)
		require.Empty(t, ended)
		require.NoError(t, b.Close())
		require.NoError(t, <-ended)

		c, _ := socketConns(t, tcp)
		go func() { ended <- c.AwaitEnd() }()
		time.Sleep(10 * time.Millisecond)
		require.NoError(t, c.Close())
		<-ended
	}
}

// TestSocketConnsAreNoted: a forked child closes the socket and what waits for it.
func TestSocketConnsAreNoted(t *testing.T) {
	before := forkTable.Load()
	table := &ForkTable{}
	SetForkTable(table)
	t.Cleanup(func() { forkTable.Store(before) })
	held := func() (n int) {
		for raw := range 4096 {
			n += int(table.held[raw/64].Load() >> (raw % 64) & 1)
		}
		return n
	}
	a, b := socketConns(t, true)
	require.Equal(t, 2, held())
	require.NoError(t, a.SetReadDeadline(time.Now()))
	_, err := a.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	a.Linger(false)
	require.NoError(t, a.SetReadDeadline(time.Now().Add(5*time.Millisecond)))
	_, err = a.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Equal(t, 3, held(), "the socket's set, too")
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.Zero(t, held())
	require.Zero(t, table.making.Load())
}

// TestThreadsAreBounded: fewer threads wait in the kernel than there are processors, but one at least.
func TestThreadsAreBounded(t *testing.T) {
	a, _ := socketConns(t, false)
	var taken int
	for takeThread() {
		taken++
	}
	require.False(t, a.Await(time.Hour), "it does not wait")
	for range taken {
		giveThread()
	}
	require.EqualValues(t, threads.most.Load(), taken)
}

// TestSocketConnAllocatesNothing: reads, writes and waits of either kind make nothing on the heap.
func TestSocketConnAllocatesNothing(t *testing.T) {
	for _, lingers := range []bool{true, false} {
		a, b := socketConns(t, true)
		a.Linger(lingers)
		p, list, left := make([]byte, 100), make(net.Buffers, 1), net.Buffers{}
		require.Zero(t, testing.AllocsPerRun(50, func() {
			left = list
			left[0] = p
			_, _ = b.WriteBuffers(&left)
			_, _ = b.Write(p)
			_, _ = io.ReadFull(a, p)
			_, _ = io.ReadFull(a, p)
			_ = a.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, _ = a.Read(p)
			_ = a.SetReadDeadline(time.Time{})
		}))
	}
}
