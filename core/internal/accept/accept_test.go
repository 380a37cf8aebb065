package accept

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
)

// TestPending: the bound holds, the oldest makes room, and each has its time.
func TestPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dropped []int
		p := NewPending(3, time.Second, func(n int) { dropped = append(dropped, n) })
		require.Zero(t, p.Next())
		begin := time.Now()
		for n := range 5 {
			require.Equal(t, n >= 3, p.Add(n))
			time.Sleep(100 * time.Millisecond)
		}
		require.Equal(t, []int{0, 1}, dropped)
		require.Equal(t, []int{2, 3, 4}, p.All())
		require.Equal(t, begin.Add(1200*time.Millisecond), p.Next())
		p.Remove(3)
		p.Remove(3)
		require.Zero(t, p.list[:3][2], "nothing refers to what has gone")
		require.Zero(t, p.Expire(p.Next().Add(-1)))
		require.Equal(t, 1, p.Expire(p.Next()))
		require.Equal(t, []int{0, 1, 2}, dropped)
		p.Add(5)
		p.Close()
		require.Equal(t, []int{0, 1, 2, 4, 5}, dropped)
		require.Empty(t, p.All())
	})
}

// TestTake: connections that come without end are taken in turns, and a shortage is the
// caller's to deal with.
func TestTake(t *testing.T) {
	listener, addr, err := sys.ListenTCP(netip.MustParseAddrPort("127.0.0.1:0"), 2*InARow)
	require.NoError(t, err)
	bell, err := sys.NewEvent()
	require.NoError(t, err)
	fds := []*sys.FD{bell}
	defer func() { sys.CloseAll(append(fds, listener)...) }()
	for range InARow + 1 {
		fd, err := sys.DialTCP(addr, sys.TCPOptions{})
		if fd == nil {
			require.NoError(t, err)
		}
		fds = append(fds, fd)
		_, err = sys.WaitSocket(fd, true, bell, time.Now().Add(10*time.Second))
		require.NoError(t, err)
	}
	taken, refused := 0, Refusal{}
	admit := func(fd *sys.FD) { taken++; sys.CloseAll(fd) }
	require.NoError(t, Take(listener, admit))
	require.Equal(t, InARow, taken)
	none := errors.New("none is left")
	stop := sys.FailCall("accept4", none)
	err = Take(listener, admit)
	stop()
	require.ErrorIs(t, err, none)
	require.Empty(t, refused.String())
	refused.Note(err)
	require.Contains(t, refused.String(), "none is left")
	require.NoError(t, Take(listener, admit))
	require.Equal(t, InARow+1, taken)
}
