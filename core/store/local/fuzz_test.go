package local

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
)

// fuzzTimeout is how long what never comes is waited for.
const fuzzTimeout = 20 * time.Millisecond

// sendable are so many descriptors, and bytes that one message has.
func sendable(t *testing.T, said []byte, num uint8) ([]byte, []*sys.FD) {
	t.Helper()
	said = append([]byte(nil), said[:min(len(said), 4096)]...)
	if len(said) == 0 {
		said = []byte{0}
	}
	var fds []*sys.FD
	for range num % 5 {
		fd, err := sys.NewEvent()
		require.NoError(t, err)
		fds = append(fds, fd)
	}
	return said, fds
}

// FuzzDelivery: whatever comes from the socket that a client has named, a server gives nothing away unless it is the client's
// proof, takes one descriptor with it at most, and keeps no other.
func FuzzDelivery(f *testing.F) {
	i, err := Invite([32]byte{1})
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, i.Close()) })
	f.Add(false, []byte("anything"), uint8(1))
	f.Add(true, []byte{}, uint8(1))
	f.Add(true, []byte("more"), uint8(2))
	f.Fuzz(func(t *testing.T, proved bool, said []byte, num uint8) {
		open := sys.Stats().OpenFDs
		said, fds := sendable(t, said, num)
		if proved {
			said = i.proofs.client[:]
		}
		d, err := Approach(i.Name, [32]byte{1})
		require.NoError(t, err)
		conn, err := sys.Accept(i.listener)
		require.NoError(t, err)
		require.NoError(t, sys.Send(conn, said, fds...))
		bounce, err := d.Await(time.Now().Add(testTimeout))
		if bytes.Equal(said, i.proofs.client[:]) {
			require.NoError(t, err)
			require.Equal(t, len(fds) == 1, bounce != nil)
		} else {
			require.ErrorIs(t, err, ErrImpostor)
			require.Nil(t, bounce)
		}
		sys.CloseAll(append(fds, conn)...)
		if bounce != nil {
			require.NoError(t, bounce.Close())
		}
		require.NoError(t, d.Close())
		require.Equal(t, open, sys.Stats().OpenFDs)
	})
}

// FuzzInvitation: whatever comes to a client's socket, with the server's proof or without, the client takes two descriptors with
// one byte or none, and keeps no other.
func FuzzInvitation(f *testing.F) {
	f.Add(false, []byte("anything"), uint8(2))
	f.Add(true, []byte{saidArena}, uint8(2))
	f.Add(true, []byte{saidBounce}, uint8(3))
	f.Add(true, []byte{saidArena, 0}, uint8(2))
	f.Fuzz(func(t *testing.T, proved bool, said []byte, num uint8) {
		open := sys.Stats().OpenFDs
		said, fds := sendable(t, said, num)
		i, err := Invite([32]byte{1})
		require.NoError(t, err)
		conn, err := sys.DialAbstract(socketName(i.Name))
		require.NoError(t, err)
		if proved {
			require.NoError(t, sys.Send(conn, i.proofs.server[:]))
		}
		require.NoError(t, sys.Send(conn, said, fds...))
		arena, socket, err := i.Await(time.Now().Add(fuzzTimeout))
		if proved && len(said) == 1 && len(fds) == 2 {
			require.NoError(t, err)
			require.NoError(t, arena.Close())
			require.NoError(t, socket.Close())
		} else {
			require.Error(t, err)
			require.Nil(t, arena)
			require.Nil(t, socket)
		}
		sys.CloseAll(append(fds, conn)...)
		require.NoError(t, i.Close())
		require.Equal(t, open, sys.Stats().OpenFDs)
	})
}
