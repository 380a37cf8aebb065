package verbs

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
)

// TestRegionThatCannotBeUndone: a registration that one port refuses, and that
// another then does not give up, belongs to the group, which ends it later.
func TestRegionThatCannotBeUndone(t *testing.T) {
	f := newFakes(t, 2)
	fds := sys.Stats()
	g, err := f.tryGroup(Config{})
	require.NoError(t, err)
	f.raiseOn(0, portDown)
	groupEvents(g)
	e, err := g.NewEndpoint(oneEach) // both are open
	require.NoError(t, err)
	closeOnGroup(t, g, e)
	f.failures["reg_mr"] = []syscall.Errno{0, syscall.ENOMEM}
	f.failures["dereg_mr"] = []syscall.Errno{syscall.EBUSY, syscall.EBUSY}
	_, err = g.Register(f.arena.Bytes()[:64], both)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorIs(t, err, syscall.EBUSY)
	_, err = g.Register(f.arena.Bytes()[:64], both)
	require.ErrorIs(t, err, syscall.EBUSY, "the one before it is still there")
	r, err := g.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	f.failures["reg_mr"] = []syscall.Errno{0, syscall.ENOMEM}
	f.failures["dereg_mr"] = []syscall.Errno{syscall.EBUSY, syscall.EBUSY}
	_, err = g.Register(f.arena.Bytes()[:64], both)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorIs(t, g.Close(), syscall.EBUSY)
	require.NoError(t, g.Close())
	require.Equal(t, fds, sys.Stats())
}

// TestLeftoversAreSwept: what could not be ended is, without another of its kind.
func TestLeftoversAreSwept(t *testing.T) {
	f := newFakes(t, 2)
	fds := sys.Stats()
	g, err := f.tryGroup(Config{})
	require.NoError(t, err)
	g.sweeper.Every = time.Millisecond
	f.raiseOn(0, portDown)
	groupEvents(g)
	e, err := g.NewEndpoint(oneEach) // both are open
	require.NoError(t, err)
	closeOnGroup(t, g, e)
	f.failures["reg_mr"] = []syscall.Errno{0, syscall.ENOMEM}
	f.failures["dereg_mr"] = []syscall.Errno{syscall.EBUSY}
	_, err = g.Register(f.arena.Bytes()[:64], both)
	require.ErrorIs(t, err, syscall.EBUSY)
	require.Eventually(t, func() bool {
		g.changing.Lock()
		defer g.changing.Unlock()
		return !g.hasRests()
	}, 20*time.Second, time.Millisecond)
	require.NoError(t, g.Close())
	require.Equal(t, fds, sys.Stats())
}

// TestPortThatCannotBeUndone: a port that cannot take all regions, and does not
// give up those that it has taken, is closed later, before it is opened again.
func TestPortThatCannotBeUndone(t *testing.T) {
	f := newFakes(t, 3)
	fds := sys.Stats()
	g, err := f.tryGroup(Config{})
	require.NoError(t, err)
	first, err := g.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	second, err := g.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	f.raiseOn(0, portDown)
	groupEvents(g)
	for range 2 {
		f.failures["reg_mr"] = []syscall.Errno{0, syscall.ENOMEM}
		f.failures["dereg_mr"] = []syscall.Errno{syscall.EBUSY, syscall.EBUSY}
		m := g.members[1]
		m.refused = nil
		g.changing.Lock()
		require.Nil(t, g.open(m))
		require.ErrorIs(t, m.refused, syscall.ENOMEM)
		m.refused = nil
		require.Nil(t, g.open(m), "it cannot be closed yet")
		require.NotErrorIs(t, m.refused, syscall.ENOMEM)
		m.refused = nil
		require.NotNil(t, g.open(m))
		g.changing.Unlock()
		f.remove(1)
		groupEvents(g)
		f.insert(1)
		g.changing.Lock()
		require.True(t, g.discard(m, m.tr.Load()))
		g.changing.Unlock()
	}
	f.failures["reg_mr"] = []syscall.Errno{0, syscall.ENOMEM}
	f.failures["dereg_mr"] = []syscall.Errno{syscall.EBUSY}
	g.changing.Lock()
	require.Nil(t, g.open(g.members[2]))
	g.changing.Unlock()
	require.NoError(t, first.Close())
	require.NoError(t, second.Close())
	require.NoError(t, g.Close())
	require.Equal(t, fds, sys.Stats())
}
