//go:build linux

package sys

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestForkTable: each descriptor is in the table for as long as it is open, and
// none is made while a fork is on, within bounds.
func TestForkTable(t *testing.T) {
	before := forkTable.Load()
	table := &ForkTable{}
	SetForkTable(table)
	t.Cleanup(func() { forkTable.Store(before) })
	held := func(raw int) bool { return table.held[raw/64].Load()>>(raw%64)&1 == 1 }

	fd, err := newSocket()
	require.NoError(t, err)
	raw := fd.Raw()
	require.True(t, held(raw))
	event, err := NewEvent()
	require.NoError(t, err)
	require.True(t, held(event.Raw()))
	require.NoError(t, event.Close())
	require.NoError(t, fd.Close())
	require.False(t, held(raw))
	require.Zero(t, table.making.Load())

	table.forking.Store(1)
	time.AfterFunc(forkTimeout/4, func() { table.forking.Store(0) })
	begin := time.Now()
	fd, err = newSocket()
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(begin), forkTimeout/5)
	require.NoError(t, fd.Close())

	table.forking.Store(1) // a handler that never comes back
	begin = time.Now()
	for range 100 {
		fd, err = newSocket()
		require.NoError(t, err)
		require.NoError(t, fd.Close())
	}
	require.Less(t, time.Since(begin), 50*forkTimeout, "it is waited for once")
	require.Zero(t, table.making.Load())
	table.forking.Store(0)
	fd, err = newSocket()
	require.NoError(t, err)
	require.NoError(t, fd.Close())
	require.False(t, forkOutlasts.Load(), "the next fork is waited for")
}

// TestForkTableAtClose: no fork comes between a descriptor's leaving the table and
// its end, from either side.
func TestForkTableAtClose(t *testing.T) {
	before := forkTable.Load()
	table := &ForkTable{}
	SetForkTable(table)
	t.Cleanup(func() { forkTable.Store(before) })
	held := func(raw int) bool { return table.held[raw/64].Load()>>(raw%64)&1 == 1 }

	timeout := forkTimeout
	forkTimeout = time.Minute // on a busy machine, too
	defer func() { forkTimeout = timeout }()
	fd, err := newSocket()
	require.NoError(t, err)
	raw := fd.Raw()
	table.forking.Store(1)
	closed := make(chan error, 1)
	go func() { closed <- fd.Close() }()
	time.Sleep(2 * time.Millisecond)
	_, gone := unix.FcntlInt(uintptr(raw), unix.F_GETFD, 0)
	stays := held(raw)
	table.forking.Store(0)
	require.NoError(t, <-closed)
	require.NoError(t, gone, "it is open while a fork is on")
	require.True(t, stays, "and the child closes its copy")
	require.False(t, held(raw))

	fd, err = newSocket()
	require.NoError(t, err)
	require.NoError(t, closeNoted(int(fd.raw.Swap(-1)), func(raw int) error {
		require.EqualValues(t, 1, table.making.Load(), "a fork waits")
		require.False(t, held(raw), "its number may be another's once it is closed")
		openFDs.Add(-1)
		return unix.Close(raw)
	}))
	require.Zero(t, table.making.Load())
}
