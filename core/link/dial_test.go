package link

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
)

// TestNoWayAtFirst: a dial that fails, but not because no socket listens, is tried again,
// some times; what fails later says what had happened before.
func TestNoWayAtFirst(t *testing.T) {
	l := newLog()
	c := &Controls{handler: l, tokens: map[uint64]*conn{}}
	p := &conn{rank: 1, failed: time.Now().Add(time.Hour)} // however slow this machine is
	for range firstTries {
		c.refused(p, syscall.EHOSTUNREACH)
		require.False(t, p.over)
		require.False(t, p.retry.IsZero())
	}
	c.refused(p, syscall.EHOSTUNREACH)
	require.True(t, p.over)
	require.Equal(t, EndBroken, l.ended[1])
	for _, was := range []struct {
		cause error
		how   Ending
	}{{nil, EndBroken}, {errEOF, EndExited}} { // a connection that there was says that the process has ended
		p := &conn{rank: 2, tries: 1, cause: was.cause}
		delete(l.ended, 2)
		c.refused(p, syscall.ECONNREFUSED)
		require.Equal(t, was.how, l.ended[2])
	}
}

// TestNoWayForLong: dials that take long are not tried for as long as there are
// tries; a timeout that comes after one says what it said.
func TestNoWayForLong(t *testing.T) {
	l := newLog()
	c := &Controls{handler: l, tokens: map[uint64]*conn{}}
	p := &conn{rank: 1, failed: time.Now().Add(time.Hour)}
	require.Equal(t, sys.ErrTimeout, p.timeout())
	c.refused(p, syscall.EHOSTUNREACH)
	require.False(t, p.over)
	require.ErrorIs(t, p.timeout(), sys.ErrTimeout)
	require.ErrorContains(t, p.timeout(), syscall.EHOSTUNREACH.Error())
	require.NotErrorIs(t, p.timeout(), syscall.EHOSTUNREACH, "what ended it is the timeout")
	p.failed = time.Now().Add(-firstFor)
	c.refused(p, syscall.EHOSTUNREACH)
	require.True(t, p.over)
	require.Equal(t, EndBroken, l.ended[1])
	p = &conn{rank: 2}
	c.refused(p, syscall.EHOSTUNREACH)
	require.False(t, p.failed.IsZero())
	first := p.failed
	c.refused(p, syscall.EHOSTUNREACH)
	require.Equal(t, first, p.failed)
}

// TestNoWayAtOnce: a dial of which the system says at once that there is no way
// is one that is tried again, and fails the rendezvous with that rank only.
func TestNoWayAtOnce(t *testing.T) {
	e, err := Listen(loopback())
	require.NoError(t, err)
	nowhere := netip.MustParseAddrPort("255.255.255.255:1") // of no connection: no network has a way
	l := newLog()
	c, err := StartControls(ControlConfig{Rank: 1, ID: newID(), Keys: oneKey()(1), Tick: time.Millisecond}, e,
		map[int]Participant{0: {ID: newID(), Addr: nowhere}}, l)
	require.NoError(t, err)
	defer c.Close()
	l.until(t, "the end", func() bool { return l.ended[0] != 0 })
	require.Equal(t, EndBroken, l.ended[0])
}

// TestCannotBeRegistered: nothing is kept of a connection that the system cannot
// watch.
func TestCannotBeRegistered(t *testing.T) {
	poller, err := sys.NewPoller()
	require.NoError(t, err)
	require.NoError(t, poller.Close())
	fd, err := sys.NewEvent()
	require.NoError(t, err)
	defer fd.Close()
	c := &Controls{poller: poller, tokens: map[uint64]*conn{}}
	require.Error(t, c.register(&conn{fd: fd}))
	require.Empty(t, c.tokens)
}
