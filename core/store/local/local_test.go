package local

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
)

const patience = 20 * time.Second

// arenaOf is sealed memory with these bytes at its beginning.
func arenaOf(t *testing.T, bytes int64, text string) *sys.FD {
	t.Helper()
	fd, err := sys.NewMemfd("test")
	require.NoError(t, err)
	require.NoError(t, sys.Grow(fd, bytes))
	require.NoError(t, sys.WriteAt(fd, 0, []byte(text)))
	require.NoError(t, sys.SealForReaders(fd))
	return fd
}

func TestDescriptorArrives(t *testing.T) {
	i, err := Invite([32]byte{1, 2, 3})
	require.NoError(t, err)
	defer func() { require.NoError(t, i.Close()) }()
	arena := arenaOf(t, 1<<20, "bytes")
	ours, theirs, err := sys.StreamPair()
	require.NoError(t, err)
	require.NoError(t, Deliver(i.Name, [32]byte{1, 2, 3}, arena, theirs))
	require.NoError(t, theirs.Close())
	fd, socket, err := i.Await(time.Now().Add(patience))
	require.NoError(t, err)
	near, err := Conn(socket)
	require.NoError(t, err)
	far, err := Conn(ours)
	require.NoError(t, err)
	_, err = far.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, far.Close())
	heard, err := io.ReadAll(near)
	require.NoError(t, err)
	require.Equal(t, "hello", string(heard))
	require.NoError(t, near.Close())
	same, err := sys.SameFile(fd, arena)
	require.NoError(t, err)
	require.True(t, same)
	require.NoError(t, fd.Close())
	require.NoError(t, arena.Close())
	require.NoError(t, i.Close())
	require.ErrorIs(t, Deliver(i.Name, [32]byte{1, 2, 3}, nil, nil), ErrElsewhere)
}

// Strangers that find the socket's name can have a client take nothing: without the secret, with several descriptors
// or none, too long or too short, or silent.
func TestStrangers(t *testing.T) {
	secret := [32]byte{7}
	i, err := Invite(secret)
	require.NoError(t, err)
	defer func() { require.NoError(t, i.Close()) }()
	wrong, right := arenaOf(t, 4096, "wrong"), arenaOf(t, 4096, "right")
	ours, theirs, err := sys.StreamPair()
	require.NoError(t, err)
	defer sys.CloseAll(wrong, right, ours, theirs)
	before := sys.Stats().OpenFDs
	stranger := func(said []byte, fds ...*sys.FD) {
		conn, err := sys.DialAbstract(socketName(i.Name))
		require.NoError(t, err)
		if said != nil {
			require.NoError(t, sys.Send(conn, said, fds...))
		}
		require.NoError(t, conn.Close())
	}
	other := secret
	other[31] ^= 1
	stranger(other[:], wrong, wrong)
	stranger(secret[:31], wrong, wrong)
	stranger(make([]byte, 5000), wrong, wrong)
	stranger(secret[:])
	stranger(secret[:], wrong)
	stranger(secret[:], wrong, wrong, wrong, wrong)
	stranger(nil)
	require.NoError(t, Deliver(i.Name, secret, right, theirs))
	fd, socket, err := i.Await(time.Now().Add(patience))
	require.NoError(t, err)
	got := make([]byte, 5)
	require.NoError(t, sys.ReadAt(fd, 0, got))
	require.Equal(t, "right", string(got))
	sys.CloseAll(fd, socket)
	require.Equal(t, before, sys.Stats().OpenFDs, "no descriptor of a stranger is left")
	_, _, err = i.Await(time.Now().Add(10 * time.Millisecond))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// What is mapped has to be memory that cannot be taken away: else a touch would be a signal.
func TestWrongDescriptors(t *testing.T) {
	open := func(prepare func(fd *sys.FD)) *sys.FD {
		fd, err := sys.NewMemfd("test")
		require.NoError(t, err)
		prepare(fd)
		return fd
	}
	file, err := sys.OpenFile(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	require.NoError(t, sys.Truncate(file, 1<<20))
	event, err := sys.NewEvent()
	require.NoError(t, err)
	for name, fd := range map[string]*sys.FD{
		"a file":           file,
		"no file":          event,
		"empty":            open(func(*sys.FD) {}),
		"not sealed":       open(func(fd *sys.FD) { require.NoError(t, sys.Grow(fd, 1<<20)) }),
		"too short":        arenaOf(t, 1<<20-1, ""),
		"shorter by pages": arenaOf(t, 4096, ""),
	} {
		before := sys.Stats()
		_, err := NewView(fd, 1<<20, true)
		require.Error(t, err, name)
		require.Equal(t, -1, fd.Raw(), "%s was not closed", name)
		require.Equal(t, before.Mappings, sys.Stats().Mappings, name)
	}
}

// Any file may be read: one that ends early, or is emptied, is an error.
func TestTruncatedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	file, err := sys.OpenFile(path)
	require.NoError(t, err)
	require.NoError(t, sys.WriteAt(file, 0, []byte("some bytes")))
	v, err := NewView(file, 1<<20, false)
	require.NoError(t, err)
	defer func() { require.NoError(t, v.Close()) }()
	got := make([]byte, 10)
	require.NoError(t, v.Read(0, got))
	require.Equal(t, "some bytes", string(got))
	require.Error(t, v.Read(5, got))
	require.NoError(t, os.Truncate(path, 3))
	require.Error(t, v.Read(0, got))
	require.False(t, v.Mapped())
	_, err = v.Bytes(0, 1)
	require.Error(t, err)
}

// No place makes a view read anything beyond its arena.
func TestPlacesAreWithin(t *testing.T) {
	v, err := NewView(arenaOf(t, 3<<20+100, "abc"), 3<<20+100, true)
	require.NoError(t, err)
	defer func() { require.NoError(t, v.Close()) }()
	for _, place := range []int64{-1, -1 << 63, 3<<20 + 98, 3<<20 + 101, 1 << 40, 1<<63 - 1} {
		require.Error(t, v.Read(place, make([]byte, 3)), place)
		_, err := v.Bytes(place, 3)
		require.Error(t, err)
	}
	got := make([]byte, 3)
	require.NoError(t, v.Read(0, got))
	require.Equal(t, "abc", string(got))
	require.NoError(t, v.Read(3<<20+97, got))
	whole, err := v.Bytes(0, 3<<20+100)
	require.NoError(t, err)
	require.Len(t, whole, 3<<20+100)
	stop := sys.FailCall("madvise", syscall.ENOMEM)
	defer stop()
	require.NoError(t, v.Read(0, got), "what is present stays")
}

// A kernel that cannot make pages present is found out before the view is used.
func TestOldKernel(t *testing.T) {
	stop := sys.FailCall("madvise MADV_POPULATE_READ", syscall.EINVAL)
	defer stop()
	_, err := NewView(arenaOf(t, 1<<20, "abc"), 1<<20, true)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "Linux 5.14")
}

// A child of this process that is forked does not get the arena: it would keep the memory of a server that has ended.
func TestChildrenDoNotGetTheArena(t *testing.T) {
	v, err := NewView(arenaOf(t, 1<<20, "abc"), 1<<20, true)
	require.NoError(t, err)
	defer func() { require.NoError(t, v.Close()) }()
	data, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	_, ours, found := strings.Cut(string(data), strings.TrimPrefix(fmt.Sprintf("%p-", v.arena.Bytes()), "0x"))
	require.True(t, found)
	_, flags, found := strings.Cut(ours, "VmFlags: ")
	require.True(t, found)
	flags, _, _ = strings.Cut(flags, "\n")
	require.Contains(t, strings.Fields(flags), "dc", "do not copy")
}

// A view that was closed lasts as long as it is held.
func TestHeldViewLasts(t *testing.T) {
	before := sys.Stats()
	v, err := NewView(arenaOf(t, 1<<20, "abc"), 1<<20, true)
	require.NoError(t, err)
	data, err := v.Bytes(0, 3)
	require.NoError(t, err)
	require.True(t, v.Hold())
	require.NoError(t, v.Close())
	require.NoError(t, v.Close())
	require.True(t, v.Hold())
	v.Release()
	require.Equal(t, "abc", string(data))
	v.Release()
	require.False(t, v.Hold())
	after := sys.Stats()
	require.Equal(t, before.Mappings, after.Mappings)
	require.Equal(t, before.OpenFDs, after.OpenFDs)
}
