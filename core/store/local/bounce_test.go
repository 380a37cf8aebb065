package local

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/message"
)

func newBounce(t *testing.T) *Bounce {
	t.Helper()
	b, err := NewBounce()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// marks are a bounce buffer as a plain table: who has each alignBytes of it.
type marks [message.MaxBounceBytes / alignBytes]bool

// gap is the first place of so many free units; -1: there is none.
func (m *marks) gap(units int) int {
	run := 0
	for i, taken := range m {
		if run++; taken {
			run = 0
		}
		if run == units {
			return i + 1 - units
		}
	}
	return -1
}

func (m *marks) set(from, units int, to bool) {
	for i := range units {
		m[from+i] = to
	}
}

// Room is given where a plain table has its first gap, and not at all where that has none.
func TestBounceAgainstATable(t *testing.T) {
	b, src := newBounce(t), rand.New(rand.NewPCG(testenv.Seed(t), 0))
	var table marks
	given, full := map[int64]int{}, 0
	for range 3000 {
		if src.IntN(5) < 3 {
			n := 1 + src.IntN(1<<src.IntN(22))
			units := (n + alignBytes - 1) / alignBytes
			want := table.gap(units)
			place, room, ok := b.Take(n)
			require.Equal(t, want >= 0, ok)
			if !ok {
				full++
				continue
			}
			require.EqualValues(t, want*alignBytes, place)
			require.Len(t, room, n)
			require.Equal(t, n, cap(room))
			table.set(want, units, true)
			given[place] = units
			continue
		}
		for place, units := range given {
			b.Give(place)
			table.set(int(place)/alignBytes, units, false)
			delete(given, place)
			break
		}
	}
	require.Positive(t, full)
	_, _, ok := b.Take(message.MaxBounceBytes + 1)
	require.False(t, ok)
}

// A want of memory is no room, for as long as it lasts.
func TestBounceWithoutMemory(t *testing.T) {
	b := newBounce(t)
	_, _, ok := b.Take(100)
	require.True(t, ok)
	stop := sys.FailCall("fallocate", syscall.ENOSPC)
	_, _, ok = b.Take(100)
	require.True(t, ok, "what is there stays")
	_, _, ok = b.Take(unitBytes)
	require.False(t, ok)
	stop()
	_, room, ok := b.Take(unitBytes)
	require.True(t, ok)
	room[unitBytes-1] = 1
	for _, call := range []string{"memfd_create", "ftruncate", "mmap"} {
		before := sys.Stats()
		stop := sys.FailCall(call, syscall.ENOMEM)
		_, err := NewBounce()
		stop()
		require.ErrorIs(t, err, syscall.ENOMEM, call)
		require.Equal(t, before, sys.Stats(), call)
	}
}

// offer does what a client does, with anything as its bounce buffer, while the server waits; saying what the server says.
func offer(t *testing.T, bounce *Bounce, take bool) (*View, *Invitation) {
	t.Helper()
	i, err := Invite([32]byte{1})
	require.NoError(t, err)
	i.Bounce = bounce
	t.Cleanup(func() { require.NoError(t, i.Close()) })
	arena := arenaOf(t, 4096, "")
	ours, theirs := pairOf(t)
	defer sys.CloseAll(arena, ours, theirs)
	d, err := Approach(i.Name, [32]byte{1})
	require.NoError(t, err)
	var view *View
	ended := make(chan error, 1)
	go func() {
		fd, err := d.Await(time.Now().Add(testTimeout))
		if err == nil && fd != nil {
			view, err = ViewBounce(fd)
		}
		ended <- errors.Join(err, d.Send(arena, theirs, take), d.Close())
	}()
	fd, socket, err := i.Await(time.Now().Add(testTimeout))
	require.NoError(t, err)
	require.NoError(t, <-ended)
	sys.CloseAll(fd, socket)
	return view, i
}

// What a client writes to its bounce buffer is what a server reads, which cannot write there. The client goes by what the
// server says.
func TestBounceTravels(t *testing.T) {
	b := newBounce(t)
	place, room, ok := b.Take(5)
	require.True(t, ok)
	copy(room, "block")
	for _, take := range []bool{true, false} {
		view, i := offer(t, b, take)
		require.Equal(t, take, i.Taken)
		got, err := view.Bytes(place, 5)
		require.NoError(t, err)
		require.Equal(t, "block", string(got))
		require.True(t, view.Has(message.MaxBounceBytes-5, 5))
		require.False(t, view.Has(message.MaxBounceBytes-4, 5))
		require.Error(t, sys.WriteAt(view.fd, 0, []byte("other")))
		_, err = sys.Map(view.fd, 0, 4096)
		require.Error(t, err, "it is for reading")
		require.NoError(t, view.Close())
	}
	view, i := offer(t, nil, true)
	require.Nil(t, view)
	require.False(t, i.Taken, "of nothing nothing is taken")
}

// A bounce buffer is memory with a bound that cannot be taken away, also not in part.
func TestWrongBounces(t *testing.T) {
	file, err := sys.OpenFile(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	require.NoError(t, sys.Truncate(file, 1<<20))
	event, err := sys.NewEvent()
	require.NoError(t, err)
	unsealed, err := sys.NewMemfd("test")
	require.NoError(t, err)
	require.NoError(t, sys.Grow(unsealed, 1<<20))
	for name, fd := range map[string]*sys.FD{
		"a file": file, "no file": event, "not sealed": unsealed, "empty": arenaOf(t, 0, ""),
		"too long": arenaOf(t, message.MaxBounceBytes+1, ""),
	} {
		before := sys.Stats()
		_, err := ViewBounce(fd)
		require.Error(t, err, name)
		require.Equal(t, -1, fd.Raw(), "%s was not closed", name)
		require.Equal(t, before.Mappings, sys.Stats().Mappings, name)
	}
}

// The descriptors of one that is not the client are closed, as are more than one.
func TestBounceOfAnImpostor(t *testing.T) {
	secret, name := [32]byte{7}, [16]byte{9}
	p, err := proofsOf(secret, name)
	require.NoError(t, err)
	fd := arenaOf(t, 4096, "")
	defer sys.CloseAll(fd)
	before := sys.Stats().OpenFDs
	for what, c := range map[string]struct {
		said []byte
		fds  []*sys.FD
		err  error
	}{
		"an impostor":      {bytes.Repeat([]byte{1}, 32), []*sys.FD{fd}, ErrImpostor},
		"one with several": {bytes.Repeat([]byte{1}, 32), []*sys.FD{fd, fd, fd}, ErrImpostor},
		"the client":       {p.client[:], []*sys.FD{fd, fd, fd}, nil},
	} {
		listener, err := sys.ListenAbstract(socketName(name), 1)
		require.NoError(t, err)
		d, err := Approach(name, secret)
		require.NoError(t, err)
		conn, err := sys.Accept(listener)
		require.NoError(t, err)
		require.NoError(t, sys.Send(conn, c.said, c.fds...))
		got, err := d.Await(time.Now().Add(testTimeout))
		require.ErrorIs(t, err, c.err, what)
		require.Nil(t, got, what)
		require.NoError(t, d.Close())
		sys.CloseAll(listener, conn)
	}
	require.Equal(t, before, sys.Stats().OpenFDs)
}
