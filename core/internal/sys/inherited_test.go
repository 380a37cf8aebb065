//go:build linux

package sys

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	time.AfterFunc(forkPatience/4, func() { table.forking.Store(0) })
	begin := time.Now()
	fd, err = newSocket()
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(begin), forkPatience/5)
	require.NoError(t, fd.Close())

	table.forking.Store(1) // a handler that never comes back
	fd, err = newSocket()
	require.NoError(t, err)
	require.NoError(t, fd.Close())
	require.Zero(t, table.making.Load())
}
