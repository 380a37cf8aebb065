package local

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/message"
)

const testTimeout = 20 * time.Second

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

// pairOf are two ends of a socket.
func pairOf(t *testing.T) (ours, theirs *sys.FD) {
	t.Helper()
	ours, theirs, err := sys.StreamPair()
	require.NoError(t, err)
	return ours, theirs
}

// await waits for a client that has no bounce buffer.
func await(d *Delivery, deadline time.Time) error {
	bounce, err := d.Await(deadline)
	if bounce != nil {
		err = errors.Join(err, errors.New("a bounce buffer came"), bounce.Close())
	}
	return err
}

// deliver does what a server does, while the client waits.
func deliver(t *testing.T, name [16]byte, secret [32]byte, arena, socket *sys.FD) (ended chan error) {
	t.Helper()
	d, err := Approach(name, secret)
	require.NoError(t, err)
	ended = make(chan error, 1)
	go func() {
		err := await(d, time.Now().Add(testTimeout))
		if err == nil {
			err = d.Send(arena, socket, false)
		}
		ended <- errors.Join(err, d.Close())
	}()
	return ended
}

func TestDescriptorArrives(t *testing.T) {
	i, err := Invite([32]byte{1, 2, 3})
	require.NoError(t, err)
	defer func() { require.NoError(t, i.Close()) }()
	arena := arenaOf(t, 1<<20, "bytes")
	ours, theirs := pairOf(t)
	ended := deliver(t, i.Name, [32]byte{1, 2, 3}, arena, theirs)
	fd, socket, err := i.Await(time.Now().Add(testTimeout))
	require.NoError(t, err)
	require.NoError(t, <-ended)
	require.NoError(t, theirs.Close())
	dialled, err := Conn(socket)
	require.NoError(t, err)
	accepted, err := Conn(ours)
	require.NoError(t, err)
	_, err = accepted.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
	received, err := io.ReadAll(dialled)
	require.NoError(t, err)
	require.Equal(t, "hello", string(received))
	require.NoError(t, dialled.Close())
	same, err := sys.SameFile(fd, arena)
	require.NoError(t, err)
	require.True(t, same)
	require.NoError(t, fd.Close())
	require.NoError(t, arena.Close())
	require.NoError(t, i.Close())
	_, err = Approach(i.Name, [32]byte{1, 2, 3})
	require.ErrorIs(t, err, ErrElsewhere)
}

// hail connects to a socket as a process without the secret that has found its name, and says something.
func hail(t *testing.T, name [16]byte, said []byte, fds ...*sys.FD) {
	t.Helper()
	conn, err := sys.DialAbstract(socketName(name))
	require.NoError(t, err)
	if said != nil {
		require.NoError(t, sys.Send(conn, said, fds...))
	}
	require.NoError(t, conn.Close())
}

// Strangers that find the socket's name can have a client take nothing: without the proof, with the proof of another
// side, name, secret, network namespace or boot, too long or too short, or silent.
func TestUnknownClients(t *testing.T) {
	secret := [32]byte{7}
	i, err := Invite(secret)
	require.NoError(t, err)
	defer func() { require.NoError(t, i.Close()) }()
	wrong, right := arenaOf(t, 4096, "wrong"), arenaOf(t, 4096, "right")
	ours, theirs := pairOf(t)
	defer sys.CloseAll(wrong, right, ours, theirs)
	where, err := Here()
	require.NoError(t, err)
	other := message.ShareProof([32]byte{8}, message.ProofServer, i.Name, where)
	renamed := message.ShareProof(secret, message.ProofServer, [16]byte{1}, where)
	moved := message.ShareProof(secret, message.ProofServer, i.Name, where+" ")
	namespace, err := sys.NetworkNamespace()
	require.NoError(t, err)
	withoutPlace := message.ShareProof(secret, message.ProofServer, i.Name, namespace)
	before := sys.Stats().OpenFDs
	for _, said := range [][]byte{
		nil, withoutPlace[:], other[:], renamed[:], moved[:], i.proofs.client[:], i.proofs.server[:31], make([]byte, 5000),
	} {
		hail(t, i.Name, said)
	}
	hail(t, i.Name, other[:], wrong, wrong)
	// A waiting client takes them from the socket: there is room for the server then. The server's proof is there before
	// the client waits for it, as its reply says.
	d, err := Approach(i.Name, secret)
	for errors.Is(err, sys.ErrAgain) {
		_, _, err = i.Await(time.Now().Add(10 * time.Millisecond))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		d, err = Approach(i.Name, secret)
	}
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		ended <- errors.Join(await(d, time.Now().Add(testTimeout)), d.Send(right, theirs, false), d.Close())
	}()
	fd, socket, err := i.Await(time.Now().Add(testTimeout))
	require.NoError(t, err)
	require.NoError(t, <-ended)
	got := make([]byte, 5)
	require.NoError(t, sys.ReadAt(fd, 0, got))
	require.Equal(t, "right", string(got))
	sys.CloseAll(fd, socket)
	require.Equal(t, before, sys.Stats().OpenFDs, "no descriptor of an unknown process is left")
	_, _, err = i.Await(time.Now().Add(10 * time.Millisecond))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// A server that has proved itself and then does not send what it should is an error, and no wait.
func TestWrongDelivery(t *testing.T) {
	one, ours := arenaOf(t, 4096, "one"), arenaOf(t, 4096, "two")
	defer sys.CloseAll(one, ours)
	before := sys.Stats().OpenFDs
	for name, send := range map[string]func(*Delivery) error{
		"nothing":      func(*Delivery) error { return nil },
		"none":         func(d *Delivery) error { return d.conn.SendFDs([]byte{1}) },
		"one":          func(d *Delivery) error { return d.conn.SendFDs([]byte{1}, one) },
		"four":         func(d *Delivery) error { return d.conn.SendFDs([]byte{1}, one, one, one, one) },
		"with a tail":  func(d *Delivery) error { return d.conn.SendFDs([]byte{1, 1}, one, ours) },
		"many letters": func(d *Delivery) error { return d.conn.SendFDs(make([]byte, 5000), one, ours) },
	} {
		i, err := Invite([32]byte{})
		require.NoError(t, err)
		d, err := Approach(i.Name, [32]byte{})
		require.NoError(t, err)
		go func() { _ = errors.Join(await(d, time.Now().Add(testTimeout)), send(d), d.Close()) }()
		_, _, err = i.Await(time.Now().Add(testTimeout))
		require.Error(t, err, name)
		require.Equal(t, name == "nothing", errors.Is(err, ErrWithdrawn), name)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, name)
		require.NoError(t, i.Close())
	}
	require.Equal(t, before, sys.Stats().OpenFDs)
}

// TestServerGoes: a server that ends in the middle, before or after the client's proof has come, has withdrawn.
func TestServerGoes(t *testing.T) {
	i, err := Invite([32]byte{7})
	require.NoError(t, err)
	defer func() { require.NoError(t, i.Close()) }()
	d, err := Approach(i.Name, [32]byte{7})
	require.NoError(t, err)
	require.NoError(t, d.Close())
	_, _, err = i.Await(time.Now().Add(testTimeout))
	require.ErrorIs(t, err, ErrWithdrawn, "after its proof")

	d, err = Approach(i.Name, [32]byte{7})
	require.NoError(t, err)
	conn, err := sys.Accept(i.listener)
	require.NoError(t, err)
	defer sys.CloseAll(conn)
	require.True(t, i.knows(conn))
	time.AfterFunc(50*time.Millisecond, func() { _ = d.Close() })
	_, err = i.take(conn, time.Now().Add(testTimeout))
	require.ErrorIs(t, err, ErrWithdrawn, "without reading the client's")
}

// TestAwaitStops: a wait for a server that says nothing, before or after its proof, ends when it is told to.
func TestAwaitStops(t *testing.T) {
	stop, err := sys.NewEvent()
	require.NoError(t, err)
	i, err := Invite([32]byte{7})
	require.NoError(t, err)
	defer sys.CloseAll(stop, i.listener)
	i.Stop = stop
	time.AfterFunc(10*time.Millisecond, func() { _ = sys.Signal(stop) })
	_, _, err = i.Await(time.Now().Add(time.Hour))
	require.ErrorIs(t, err, ErrStopped)

	d, err := Approach(i.Name, [32]byte{7})
	require.NoError(t, err)
	conn, err := sys.Accept(i.listener)
	require.NoError(t, err)
	defer sys.CloseAll(conn)
	require.True(t, i.knows(conn))
	_, err = i.take(conn, time.Now().Add(time.Hour))
	require.ErrorIs(t, err, ErrStopped)
	require.NoError(t, d.Close())
}

// A process that has the name and is not the client gets nothing: it cannot make the client's proof of what it has heard.
func TestImpostors(t *testing.T) {
	secret, name := [32]byte{7}, [16]byte{9}
	p, err := proofsOf(secret, name)
	require.NoError(t, err)
	other, err := proofsOf([32]byte{8}, name)
	require.NoError(t, err)
	namespace, err := sys.NetworkNamespace()
	require.NoError(t, err)
	relayed := message.ShareProof(secret, message.ProofClient, name, "00000000-0000-4000-8000-000000000000/"+namespace)
	withoutPlace := message.ShareProof(secret, message.ProofClient, name, namespace)
	for what, said := range map[string][]byte{
		"another host's": relayed[:], "any host's": withoutPlace[:], "what it has heard": p.server[:], "another secret's": other.client[:], "too short": p.client[:31],
		"too long": append(p.client[:len(p.client):len(p.client)], 0), "zeros": make([]byte, 32),
	} {
		listener, err := sys.ListenAbstract(socketName(name), 1)
		require.NoError(t, err)
		d, err := Approach(name, secret)
		require.NoError(t, err)
		conn, err := sys.Accept(listener)
		require.NoError(t, err)
		require.NoError(t, sys.Send(conn, said))
		require.ErrorIs(t, await(d, time.Now().Add(testTimeout)), ErrImpostor, what)
		require.NoError(t, d.Close())
		sys.CloseAll(listener, conn)
	}
	listener, err := sys.ListenAbstract(socketName(name), 1)
	require.NoError(t, err)
	defer sys.CloseAll(listener)
	d, err := Approach(name, secret)
	require.NoError(t, err)
	require.ErrorIs(t, await(d, time.Now().Add(10*time.Millisecond)), os.ErrDeadlineExceeded, "a silent one")
	time.AfterFunc(10*time.Millisecond, func() { _ = d.Close() })
	require.ErrorIs(t, await(d, time.Now().Add(time.Hour)), net.ErrClosed, "Close ends the wait")
	require.NoError(t, d.Close())
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
