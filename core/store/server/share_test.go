package server_test

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/local"
	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
)

const arenaBytes = 8 << 20

// sharing starts a server that has an arena, with a client.
func sharing(t *testing.T) (*server.Server, *raw) {
	t.Helper()
	m, err := medium.NewMemory(arenaBytes)
	require.NoError(t, err)
	s, err := store.Open(store.Config{Medium: m})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	srv, _ := serve(t, func(c *server.Config) { c.Store, c.Arena, c.Hold = server.Of(s), m, time.Minute })
	return srv, open(t, srv)
}

// invite waits for the arena as a client does.
func (r *raw) invite() *local.Invitation {
	r.t.Helper()
	i, err := local.Invite(r.session.Export(message.ShareSecret))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, i.Close()) })
	return i
}

func (r *raw) share(name [16]byte) (message.Status, []byte) {
	r.t.Helper()
	return r.do(message.Share, message.Request{}, name[:])
}

// What a get says of a block's place is where the client finds it, byte by byte.
func TestShare(t *testing.T) {
	srv, r := sharing(t)
	i := r.invite()
	status, reply := r.share(i.Name)
	require.Equal(t, message.OK, status)
	var said message.Shared
	require.NoError(t, said.Decode(reply))
	require.Equal(t, message.Shared{ArenaBytes: arenaBytes, HoldUs: 60_000_000}, said)
	fd, socket, err := i.Await(time.Now().Add(20 * time.Second))
	require.NoError(t, err)
	defer sys.CloseAll(fd, socket)
	data := []byte("a block where it lies")
	r.mustPut("key", data)
	placed := message.Request{NumKeys: 2, Flags: message.FlagPlace}
	status, reply = r.do(message.Get, placed, table("key", "none"))
	require.Equal(t, message.OK, status)
	require.Len(t, reply, 2*message.LookupBytes)
	look := func(b []byte) {
		var e message.Entry
		place, err := e.DecodePlaced(b, arenaBytes)
		require.NoError(t, err)
		require.Equal(t, r.tagger.Of([]byte("key"), data), e.Tag)
		got := make([]byte, e.Bytes)
		require.NoError(t, sys.ReadAt(fd, int64(place), got))
		require.Equal(t, data, got)
	}
	look(reply[:message.LookupBytes])
	status, reply = r.do(message.Lookup, placed, table("key", "none"))
	require.Equal(t, message.OK, status)
	look(reply[:message.PlacedBytes])
	for _, missing := range [][]byte{reply[message.PlacedBytes:]} {
		var e message.Entry
		_, err := e.DecodePlaced(missing, arenaBytes)
		require.NoError(t, err)
		require.Equal(t, message.Entry{Status: message.Miss}, e)
	}
	handle := reply[message.EntryBytes:message.LookupBytes]
	for _, kept := range []bool{true, false} {
		status, said := r.do(message.Release, message.Request{NumKeys: 1}, handle)
		require.Equal(t, message.OK, status)
		require.Equal(t, message.AppendFound(nil, map[bool]int{true: 1}[kept], []bool{kept}), said)
	}
	require.EqualValues(t, 2, srv.Counters().Hits.Load())
}

// What a get says the places of is given back at once, and what a lookup does with its handle.
func TestPlacesKeepNothing(t *testing.T) {
	m, err := medium.NewMemory(arenaBytes)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	srv, engine := serve(t, func(c *server.Config) { c.Arena = m })
	r := open(t, srv)
	i := r.invite()
	status, _ := r.share(i.Name)
	require.Equal(t, message.OK, status)
	fd, socket, err := i.Await(time.Now().Add(20 * time.Second))
	require.NoError(t, err)
	defer sys.CloseAll(fd, socket)
	r.mustPut("key", []byte("data"))
	placed := message.Request{NumKeys: 1, Flags: message.FlagPlace}
	status, _ = r.do(message.Get, placed, table("key"))
	require.Equal(t, message.OK, status)
	quiet(t, engine)
	status, reply := r.do(message.Lookup, placed, table("key"))
	require.Equal(t, message.OK, status)
	open, _, _ := engine.Counts()
	require.Equal(t, 1, open)
	_, _ = r.do(message.Release, message.Request{NumKeys: 1}, reply[message.EntryBytes:message.LookupBytes])
	quiet(t, engine)
}

// A client that breaks the rules of share gets refusals, and the server goes on; it keeps no descriptor and does
// not wait.
func TestShareWithHostileClient(t *testing.T) {
	_, r := sharing(t)
	r.mustPut("key", []byte("data"))
	before := sys.Stats().OpenFDs
	for _, code := range []message.Code{message.Get, message.Lookup} {
		status, _ := r.do(code, message.Request{NumKeys: 1, Flags: message.FlagPlace}, table("key"))
		require.Equal(t, message.Malformed, status, "places are for clients that have the arena")
	}
	for _, wrong := range [][]byte{nil, make([]byte, 15), make([]byte, 17), make([]byte, 4000)} {
		status, _ := r.do(message.Share, message.Request{}, wrong)
		require.Equal(t, message.Malformed, status)
	}
	status, _ := r.share([16]byte{1})
	require.Equal(t, message.Miss, status, "nobody waits under that name")
	status, _ = r.do(message.Get, message.Request{NumKeys: 1, Flags: message.FlagPlace}, table("key"))
	require.Equal(t, message.Malformed, status)
	i := r.invite()
	status, _ = r.share(i.Name) // and never takes what was sent
	require.Equal(t, message.OK, status)
	for range 100 {
		status, _ := r.share(i.Name)
		require.Equal(t, message.WouldBlock, status)
	}
	require.NoError(t, i.Close())
	require.Eventually(t, func() bool { return sys.Stats().OpenFDs == before }, 20*time.Second, time.Millisecond,
		"what was to be sent is closed")
	status, reply := r.do(message.Exists, message.Request{NumKeys: 1}, table("key"))
	require.Equal(t, message.OK, status)
	require.Equal(t, message.AppendFound(nil, 1, []bool{true}), reply)
}

// A client of this host is logged by the address from which it had come.
func TestLocalClientHasAnAddress(t *testing.T) {
	m, err := medium.NewMemory(arenaBytes)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	logged := make(chan string, 100)
	srv, _ := serve(t, func(c *server.Config) { c.Arena, c.Log = m, func(line string) { logged <- line } })
	r := open(t, srv)
	i := r.invite()
	status, _ := r.share(i.Name)
	require.Equal(t, message.OK, status)
	fd, socket, err := i.Await(time.Now().Add(20 * time.Second))
	require.NoError(t, err)
	defer func() { require.NoError(t, fd.Close()) }()
	nc, err := local.Conn(socket)
	require.NoError(t, err)
	_, err = nc.Write(make([]byte, 4096)) // no handshake
	require.NoError(t, err)
	require.Contains(t, <-logged, r.nc.LocalAddr().String()+" was refused")
	require.NoError(t, nc.Close())
}

// A server that cannot make a descriptor says so, and one that has no arena has nothing to share.
func TestShareFails(t *testing.T) {
	_, r := sharing(t)
	stop := sys.FailCall("open", sys.ErrTooLarge)
	i := r.invite()
	status, text := r.share(i.Name)
	stop()
	require.Equal(t, message.Failed, status)
	require.Contains(t, string(text), "/proc/self/fd/")
	srv, _ := serve(t)
	other := open(t, srv)
	status, _ = other.share(other.invite().Name)
	require.Equal(t, message.Miss, status)
}

// impostor is a process that has a socket under the name that a client says, and is not the client.
func impostor(t *testing.T, name [16]byte) (accept func() *sys.FD) {
	t.Helper()
	listener, err := sys.ListenAbstract("moewire-store-"+hex.EncodeToString(name[:]), 8)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	return func() *sys.FD {
		conn, err := sys.Accept(listener)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, conn.Close()) })
		return conn
	}
}

// taken is all that comes over a socket to its end.
func taken(t *testing.T, conn *sys.FD) (messages [][]byte, fds []*sys.FD) {
	t.Helper()
	for {
		_, err := sys.WaitReadable([]*sys.FD{conn}, time.Now().Add(20*time.Second))
		require.NoError(t, err)
		b := make([]byte, 100)
		n, more, err := sys.Receive(conn, b, 8)
		require.NoError(t, err)
		if n == 0 {
			return messages, fds
		}
		messages, fds = append(messages, b[:n]), append(fds, more...)
	}
}

// Another process that owns the name gets the server's proof and no descriptor, whatever it answers. The client's
// connection goes on, without the arena.
func TestImpostorGetsNoArena(t *testing.T) {
	srv, _ := sharing(t)
	name := [16]byte{3}
	accept := impostor(t, name)
	for key, echoed := range map[string]bool{"heard": true, "made up": false} {
		r := open(t, srv)
		before := srv.Counters().Unauthenticated.Load()
		status, _ := r.share(name)
		require.Equal(t, message.OK, status, "the server does not wait")
		conn, said := accept(), make([]byte, message.ProofBytes)
		if echoed {
			n, _, err := sys.Receive(conn, said, 0)
			require.NoError(t, err)
			require.Equal(t, len(said), n)
		}
		r.mustPut(key, []byte("data"))
		require.NoError(t, sys.Send(conn, said))
		messages, fds := taken(t, conn)
		require.Empty(t, fds)
		require.LessOrEqual(t, len(messages), 1, "nothing but the server's proof")
		require.Equal(t, before+1, srv.Counters().Unauthenticated.Load())
		status, _ = r.do(message.Get, message.Request{NumKeys: 1, Flags: message.FlagPlace}, table("key"))
		require.Equal(t, message.Malformed, status)
	}
}

// A client that has lost what it got may ask again, not one that leaves it in the kernel.
// It was not refused: it has ended the connection that came with the arena, and said nothing over it.
func TestSharedAgain(t *testing.T) {
	srv, r := sharing(t)
	before := sys.Stats().OpenFDs
	for range 3 {
		i := r.invite()
		require.Eventually(t, func() bool { // the server sees after the client that it has all
			status, _ := r.share(i.Name)
			return status == message.OK
		}, 20*time.Second, time.Millisecond)
		fd, socket, err := i.Await(time.Now().Add(20 * time.Second))
		require.NoError(t, err)
		sys.CloseAll(fd, socket)
		require.NoError(t, i.Close())
	}
	require.Eventually(t, func() bool {
		return srv.Counters().Accepted.Load() == 4 && sys.Stats().OpenFDs == before
	}, 20*time.Second, time.Millisecond)
	require.Zero(t, srv.Counters().Unauthenticated.Load())
}

// A client that proves itself and leaves the descriptors in the kernel gets no others, in all the time of its connection.
func TestHoarder(t *testing.T) {
	m, err := medium.NewMemory(arenaBytes)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	logged := make(chan string, 100)
	srv, _ := serve(t, func(c *server.Config) {
		c.Arena, c.Handshake, c.Log = m, time.Second, func(line string) { logged <- line }
	})
	r := open(t, srv)
	name := [16]byte{5}
	accept := impostor(t, name)
	status, _ := r.share(name)
	require.Equal(t, message.OK, status)
	where, err := local.Here()
	require.NoError(t, err)
	proof := message.ShareProof(r.session.Export(message.ShareSecret), message.ProofClient, name, where)
	conn := accept()
	require.NoError(t, sys.Send(conn, proof[:]))
	for !strings.Contains(<-logged, "has not taken what was sent") {
	}
	for range 3 {
		status, _ := r.share(name)
		require.Equal(t, message.WouldBlock, status)
	}
}

// One that says nothing holds up nothing: neither the connection's work, nor its end, nor that of the server; and not
// for ever.
func TestSilentImpostor(t *testing.T) {
	m, err := medium.NewMemory(arenaBytes)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	name := [16]byte{4}
	accept := impostor(t, name)
	for _, handshake := range []time.Duration{time.Hour, time.Second} {
		before := sys.Stats().OpenFDs
		srv, _ := serve(t, func(c *server.Config) { c.Arena, c.Handshake = m, handshake })
		r := open(t, srv)
		status, _ := r.share(name)
		require.Equal(t, message.OK, status)
		conn := accept()
		r.mustPut("key", []byte("data"))
		if handshake == time.Hour {
			srv.Close()
		}
		_, fds := taken(t, conn)
		require.Empty(t, fds)
		require.NoError(t, conn.Close())
		srv.Close()
		require.Equal(t, before, sys.Stats().OpenFDs)
	}
}
