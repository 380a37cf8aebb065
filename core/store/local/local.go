// Package local lets a client read blocks where they lie, in the arena of a server of the same host, and the server
// copy the blocks of puts from the client's bounce buffer.
//
// The client opens a socket of a random name (Invite) and tells the server the name over the session that they have.
// The server connects there (Approach). Anyone can own a name, and anyone can connect to one: so each side proves that
// it has the session before a descriptor is given away. The arena's and the bounce buffer's can only be read.
//
//	client: Invite ── name ──▶ server: Approach ── proof ──▶ client: Await ── proof, descriptor ──▶
//	server: Await, ViewBounce, Send ── descriptors ──▶ client: NewView
//
// A proof is of one name, one boot of one host and one network namespace of it, so that none can be passed on to a socket of the same name
// elsewhere. The server has no socket of its own that other processes could dial.
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
	"io"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/message"
)

// ErrElsewhere means that no client waits under a name here: the client is on another host.
var ErrElsewhere = errors.New("the client is not on this host")

// ErrWithdrawn means that the server has proved itself, closed the socket and sent nothing: it ends, or its time was over.
var ErrWithdrawn = errors.New("the server has not sent its descriptors")

// ErrStopped means that Invitation.Stop came first.
var ErrStopped = errors.New("the client waits no more")

const numFDs = 2

// maxWaiting is how many connections may wait beside that of the server.
const maxWaiting = 8

func socketName(name [message.NameBytes]byte) string {
	return "moewire-store-" + hex.EncodeToString(name[:])
}

// proofs are what each side says at the socket of a name.
type proofs struct{ server, client [message.ProofBytes]byte }

// Here names the network namespace of this process, among all of all hosts: its own name is a number that another host
// may have too.
func Here() (string, error) {
	boot, err := sys.BootID()
	if err != nil {
		return "", err
	}
	namespace, err := sys.NetworkNamespace()
	return boot + "/" + namespace, err
}

// proofsOf makes the proofs of processes that know a secret, in the network namespace of this one.
func proofsOf(secret [32]byte, name [message.NameBytes]byte) (p proofs, err error) {
	where, err := Here()
	p.server = message.ShareProof(secret, message.ProofServer, name, where)
	p.client = message.ShareProof(secret, message.ProofClient, name, where)
	return p, err
}

// Invitation is a client's socket. For one goroutine.
type Invitation struct {
	Name [message.NameBytes]byte
	// Stop ends Await once it can be read. nil: nothing does. It is the caller's.
	Stop *sys.FD
	// Bounce is what the server may copy blocks of puts from; nil: nothing. Taken: it does. After Await.
	Bounce *Bounce
	Taken  bool

	proofs   proofs
	listener *sys.FD
}

// Invite opens a socket, for a server that knows the secret. The caller closes it.
func Invite(secret [32]byte) (i *Invitation, err error) {
	i = &Invitation{}
	rand.Read(i.Name[:])
	if i.proofs, err = proofsOf(secret, i.Name); err != nil {
		return nil, err
	}
	if i.listener, err = sys.ListenAbstract(socketName(i.Name), maxWaiting); err != nil {
		return nil, err
	}
	return i, nil
}

// Await waits for the descriptors of the arena and of the socket, which are the caller's. Connections without proof are
// closed.
func (i *Invitation) Await(deadline time.Time) (arena, socket *sys.FD, err error) {
	for {
		if err := i.wait(i.listener, deadline); err != nil {
			return nil, nil, fmt.Errorf("the server's descriptors have not come: %w", err)
		}
		conn, err := sys.Accept(i.listener)
		if errors.Is(err, sys.ErrAgain) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if !i.knows(conn) {
			_ = conn.Close()
			continue
		}
		fds, err := i.take(conn, deadline)
		if err = errors.Join(err, conn.Close()); err != nil {
			sys.CloseAll(fds...)
			return nil, nil, fmt.Errorf("the server's descriptors: %w", err)
		}
		return fds[0], fds[1], nil
	}
}

// wait waits until a socket can be read.
func (i *Invitation) wait(socket *sys.FD, deadline time.Time) error {
	ready, err := sys.WaitReadable([]*sys.FD{socket, i.Stop}, deadline)
	if err == nil && slices.Contains(ready, 1) {
		return ErrStopped
	}
	return err
}

// knows reports whether a connection is the server's. Its proof is there: it has sent that before it answered.
func (i *Invitation) knows(conn *sys.FD) bool {
	var said [message.ProofBytes + 1]byte
	n, fds, err := sys.Receive(conn, said[:], numFDs)
	sys.CloseAll(fds...)
	return err == nil && subtle.ConstantTimeCompare(said[:n], i.proofs.server[:]) == 1
}

// take says this side's proof to the server, which has said its own, and takes the descriptors.
func (i *Invitation) take(conn *sys.FD, deadline time.Time) ([]*sys.FD, error) {
	if err := sys.Send(conn, i.proofs.client[:], i.offered()...); err != nil {
		return nil, withdrawn(err)
	}
	if err := i.wait(conn, deadline); err != nil {
		return nil, err
	}
	var said [2]byte
	n, fds, err := sys.Receive(conn, said[:], numFDs)
	switch {
	case err == nil && n == 0:
		err = ErrWithdrawn
	case err == nil && (n != 1 || len(fds) != numFDs):
		err = fmt.Errorf("%d came, with %d bytes; expected: %d, with 1", len(fds), n, numFDs)
	}
	i.Taken = i.Bounce != nil && err == nil && said[0] == saidBounce
	return fds, withdrawn(err)
}

// offered is the descriptor that goes with the proof.
func (i *Invitation) offered() []*sys.FD {
	if i.Bounce == nil {
		return nil
	}
	return []*sys.FD{i.Bounce.fd}
}

// withdrawn tells what comes of a peer that has closed its end from other errors.
func withdrawn(err error) error {
	for _, gone := range []error{syscall.EPIPE, syscall.ECONNRESET, syscall.ENOTCONN} {
		if errors.Is(err, gone) {
			return fmt.Errorf("%w: %w", ErrWithdrawn, err)
		}
	}
	return err
}

// Close closes the socket. Idempotent.
func (i *Invitation) Close() error { return i.listener.Close() }

// Delivery is a server's way to the socket of a client. Close may be called while another method runs.
type Delivery struct {
	proofs proofs
	conn   *sys.UnixConn
}

// Approach connects to the socket of a name, and says this side's proof there. It does not wait. The caller closes the
// delivery.
func Approach(name [message.NameBytes]byte, secret [32]byte) (*Delivery, error) {
	p, err := proofsOf(secret, name)
	if err != nil {
		return nil, err
	}
	conn, err := sys.DialAbstract(socketName(name))
	if errors.Is(err, sys.ErrNoListener) {
		return nil, ErrElsewhere
	}
	if err != nil {
		return nil, err
	}
	if err := sys.Send(conn, p.server[:]); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	nc, err := sys.UnixNet(conn)
	if err != nil {
		return nil, err
	}
	return &Delivery{p, nc}, nil
}

// Await waits until the one at the socket has proved that it is the client. Before, nothing may be sent. With the proof
// may come the descriptor of the client's bounce buffer, which is the caller's; nil: none, or it was not to be had.
func (d *Delivery) Await(deadline time.Time) (bounce *sys.FD, err error) {
	if err := d.conn.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	var said [message.ProofBytes + 1]byte
	n, fds, err := d.conn.ReceiveFDs(said[:], 1)
	if n == 0 && err != nil {
		return nil, fmt.Errorf("the client's proof has not come: %w", err)
	}
	if subtle.ConstantTimeCompare(said[:n], d.proofs.client[:]) != 1 {
		sys.CloseAll(fds...)
		return nil, ErrImpostor
	}
	if len(fds) != 1 {
		sys.CloseAll(fds...)
		return nil, nil
	}
	return fds[0], nil
}

// ErrImpostor means that the socket of a client's name is another process's.
var ErrImpostor = errors.New("who has the socket that the client named is not the client")

// What goes with the server's descriptors.
const (
	saidArena  byte = 1
	saidBounce byte = 2 // and the server copies puts from the bounce buffer
)

// Send sends descriptors of the arena and of a socket, and keeps them: the client gets others. bounce: blocks of puts
// over that socket may lie in the client's bounce buffer. It does not wait.
func (d *Delivery) Send(arena, socket *sys.FD, bounce bool) error {
	said := saidArena
	if bounce {
		said = saidBounce
	}
	return d.conn.SendFDs([]byte{said}, arena, socket)
}

// Taken waits until the client has taken what was sent, and closed its end.
func (d *Delivery) Taken(deadline time.Time) error {
	if err := d.conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	n, err := d.conn.Read(make([]byte, 1))
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("%d bytes came", n)
	}
	return fmt.Errorf("the client has not taken what was sent: %w", err)
}

// Close ends the delivery, and what waits. Idempotent.
func (d *Delivery) Close() error { return d.conn.Close() }

// Conn makes a connection of a socket, which it takes over, also if it fails.
func Conn(socket *sys.FD) (net.Conn, error) {
	at := &net.UnixAddr{Net: "unix"}
	conn, err := sys.NewSocketConn(socket, at, at)
	if err != nil {
		return nil, err
	}
	return conn, nil
}
