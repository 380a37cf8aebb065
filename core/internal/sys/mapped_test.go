package sys

import (
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMapReadOnly(t *testing.T) {
	fd, err := NewMemfd("test")
	require.NoError(t, err)
	defer fd.Close()
	require.NoError(t, Grow(fd, 4096))
	w, err := Map(fd, 0, 4096)
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Unmap()) }()
	r, err := MapReadOnly(fd, 0, 4096)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Unmap()) }()
	w.Bytes()[7] = 5
	require.Equal(t, byte(5), r.Bytes()[7])
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	require.Panics(t, func() { r.Bytes()[7] = 6 })
	huge, err := InHugePages(fd)
	require.NoError(t, err)
	require.False(t, huge)
}

func TestOffset(t *testing.T) {
	fd, err := NewMemfd("test")
	require.NoError(t, err)
	defer fd.Close()
	require.NoError(t, Grow(fd, 8192))
	whole, err := Map(fd, 0, 8192)
	require.NoError(t, err)
	defer func() { require.NoError(t, whole.Unmap()) }()
	m := &Mapping{data: whole.data, bytes: 5000}
	for _, at := range [][2]int{{0, 5000}, {4999, 5000}, {5000, 5000}, {7, 9}} {
		off, inside := m.Offset(m.Bytes()[at[0]:at[1]])
		require.True(t, inside)
		if at[0] < 5000 { // of nothing, Go may move the beginning
			require.Equal(t, int64(at[0]), off)
		}
	}
	for name, part := range map[string][]byte{
		"across the end": m.data[4999:5001],
		"other memory":   make([]byte, 1),
		"nil":            nil,
	} {
		_, inside := m.Offset(part)
		require.False(t, inside, name)
	}
}

// TestEpollRearms: for what comes next, or for the end only.
func TestEpollRearms(t *testing.T) {
	e, err := NewEpoll()
	require.NoError(t, err)
	defer e.Close()
	stop, err := NewEvent()
	require.NoError(t, err)
	defer stop.Close()
	dialled, accepted, err := StreamPair()
	require.NoError(t, err)
	defer dialled.Close()
	wait := func(want int32) {
		t.Helper()
		got, err := e.Wait(nil)
		require.NoError(t, err)
		require.Equal(t, []int32{want}, got)
	}
	require.NoError(t, e.Add(dialled, 1))
	_, err = Write(accepted, []byte{1})
	require.NoError(t, err)
	wait(1)
	require.NoError(t, e.Rearm(dialled, 2)) // the message is still there
	wait(2)
	require.NoError(t, e.RearmEnd(dialled, 3))
	require.NoError(t, Signal(stop))
	time.Sleep(time.Millisecond)
	require.NoError(t, e.Add(stop, 4))
	wait(4) // and not the message
	require.NoError(t, accepted.Close())
	wait(3)
}
