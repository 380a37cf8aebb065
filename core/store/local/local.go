// Package local lets a client read blocks where they lie, in the arena of a server of the same host.
//
// The client opens a socket of a random name (Invite) and tells the server the name over the session that they have.
// The server sends a descriptor there (Deliver), which can only be read, with a secret of the session. So nothing has
// to be authenticated here: who has said the name is, and who knows the secret has the session. The server waits for
// nothing, and has no socket of its own that strangers could dial.
//
//	client: Invite ── name ──▶ server: Deliver ── secret, descriptors ──▶ client: Await, then NewView
//
// With the arena comes a socket that is connected to the server already. A session over it answers sooner than
// one over TCP.
//
// Names are those of a network namespace: where the server finds no such name, the two are on different hosts, or
// cannot see each other.
package local

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
)

// ErrElsewhere means that nobody waits under a name here: the client is on another host.
var ErrElsewhere = errors.New("the client is not on this host")

const numFDs = 2

// strangers is how many connections may wait beside that of the server.
const strangers = 8

func socketName(name [16]byte) string { return "moewire-store-" + hex.EncodeToString(name[:]) }

// Invitation is a client's socket. For one goroutine.
type Invitation struct {
	Name     [16]byte
	secret   [32]byte
	listener *sys.FD
}

// Invite opens a socket, for a server that knows the secret. The caller closes it.
func Invite(secret [32]byte) (*Invitation, error) {
	i := &Invitation{secret: secret}
	rand.Read(i.Name[:])
	var err error
	i.listener, err = sys.ListenAbstract(socketName(i.Name), strangers)
	if err != nil {
		return nil, err
	}
	return i, nil
}

// Await waits for the descriptors of the arena and of the socket, which are the caller's. What is sent without the secret is closed.
func (i *Invitation) Await(deadline time.Time) (arena, socket *sys.FD, err error) {
	for {
		if _, err := sys.WaitReadable([]*sys.FD{i.listener}, deadline); err != nil {
			return nil, nil, fmt.Errorf("the server's descriptors have not come: %w", err)
		}
		conn, err := sys.Accept(i.listener)
		if errors.Is(err, sys.ErrAgain) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		fds, err := i.take(conn)
		_ = conn.Close()
		switch {
		case err != nil:
			return nil, nil, err
		case fds != nil:
			return fds[0], fds[1], nil
		}
	}
}

// take takes what waits at a connection: the server has sent before it answers. nil: it is a stranger's.
func (i *Invitation) take(conn *sys.FD) ([]*sys.FD, error) {
	var said [len(i.secret) + 1]byte
	n, fds, err := sys.Receive(conn, said[:], numFDs)
	known := subtle.ConstantTimeCompare(said[:min(n, len(i.secret))], i.secret[:]) == 1
	switch {
	case sys.IsShortage(err) && known:
		return nil, err
	case err != nil || n != len(i.secret) || !known || len(fds) != numFDs:
		sys.CloseAll(fds...)
		return nil, nil
	}
	return fds, nil
}

// Close closes the socket. Idempotent.
func (i *Invitation) Close() error { return i.listener.Close() }

// Deliver sends descriptors of the arena and of a socket to a client, and keeps them: the client gets others. It does
// not wait.
func Deliver(name [16]byte, secret [32]byte, arena, socket *sys.FD) error {
	conn, err := sys.DialAbstract(socketName(name))
	if errors.Is(err, sys.ErrNoListener) {
		return ErrElsewhere
	}
	if err != nil {
		return err
	}
	return errors.Join(sys.Send(conn, secret[:], arena, socket), conn.Close())
}

// Conn makes a connection of a socket, which it takes over, also if it fails.
func Conn(socket *sys.FD) (net.Conn, error) {
	conn, err := sys.UnixNet(socket)
	if err != nil {
		return nil, err
	}
	return conn, nil
}
