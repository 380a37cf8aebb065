package shmem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// offer is a connection that a peer has made, which waits for Connect.
type offer struct {
	conn *conn
	from nonce
	peer *peer
}

// Connect brings two endpoints together: the one with the smaller number dials, and both
// send what the other has to map.
func (e *Endpoint) Connect(remote []byte, deadline time.Time) error {
	if err := e.beginConnect(); err != nil {
		return err
	}
	err := e.meet(remote, deadline)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.connecting = false
	if err == nil && e.State() != transport.StateNew {
		err = fmt.Errorf("retired meanwhile: %w", transport.ErrState)
	}
	if err != nil {
		e.enterError()
		return fmt.Errorf("connect: %w", err)
	}
	_ = e.lane.fd.Close() // the peer has its own
	e.setState(transport.StateReady)
	e.toRun() // what has come before was not looked at
	return nil
}

func (e *Endpoint) beginConnect() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.State(); s != transport.StateNew || e.connecting {
		return fmt.Errorf("connect in state %d: %w", s, transport.ErrState)
	}
	e.connecting = true
	return nil
}

func (e *Endpoint) meet(remote []byte, deadline time.Time) error {
	to, err := decodeAddress(remote)
	if err != nil {
		return err
	}
	if time.Until(deadline) <= 0 {
		return fmt.Errorf("deadline: %w", os.ErrDeadlineExceeded)
	}
	switch bytes.Compare(e.name[:], to.endpoint[:]) {
	case 0:
		return errors.New("remote is this endpoint itself")
	case -1:
		err = e.call(to, deadline)
	default:
		err = e.expect(to)
	}
	if err != nil {
		return err
	}
	timer := time.NewTimer(time.Until(deadline)) // what dialing has left of it
	defer timer.Stop()
	select {
	case err = <-e.met:
		return err
	case <-e.aborted:
		return fmt.Errorf("retired meanwhile: %w", transport.ErrState)
	case <-timer.C:
		return fmt.Errorf("the peer has not answered%s: %w", &e.t.connManager.refused, os.ErrDeadlineExceeded)
	}
}

// call dials and says hello.
func (e *Endpoint) call(to address, deadline time.Time) error {
	fd, err := dial(socketName(to.listener), deadline)
	if err != nil {
		return err
	}
	c, err := newConn(fd)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.State() != transport.StateNew {
		sys.CloseAll(c.fd, c.pidfd)
		return fmt.Errorf("retired meanwhile: %w", transport.ErrState)
	}
	c.owner, e.conn, e.wanted = e, c, &to
	if err := e.greet(c, kindHello, to.endpoint); err != nil {
		return err
	}
	return e.t.connManager.watch(c)
}

// dial waits for room in the listener's backlog, for so long as that.
func dial(name string, deadline time.Time) (*sys.FD, error) {
	for {
		fd, err := sys.DialAbstract(name)
		if !errors.Is(err, sys.ErrAgain) {
			return fd, err
		}
		if !time.Now().Before(deadline) {
			return nil, fmt.Errorf("dial: %w", os.ErrDeadlineExceeded)
		}
		time.Sleep(time.Millisecond)
	}
}

// greet sends what the peer has to map. Under the lock.
func (e *Endpoint) greet(c *conn, kind messageKind, to nonce) error {
	return send(c.fd, message{kind: kind, from: e.name, to: to, slot: e.slot}, e.t.rings.fd, e.t.table.shared.fd, e.lane.fd)
}

// expect waits for the peer's hello, which may have come.
func (e *Endpoint) expect(from address) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wanted = &from
	for i, o := range e.offers {
		if o.from == from.endpoint {
			e.offers = slices.Delete(e.offers, i, i+1)
			e.accept(o)
			break
		}
	}
	return nil
}

// accept answers a hello. Under the lock.
func (e *Endpoint) accept(o *offer) {
	e.conn, e.peer = o.conn, o.peer
	e.finishConnect(e.greet(o.conn, kindWelcome, o.from))
}

// finishConnect ends the wait of Connect.
func (e *Endpoint) finishConnect(err error) {
	select {
	case e.met <- err:
	default: // it was told
	}
}

// offered takes a hello, with its connection. On the connection manager's goroutine.
func (e *Endpoint) offered(c *conn, m message, fds []*sys.FD) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.State() != transport.StateNew || e.conn != nil || e.wanted != nil && e.wanted.endpoint != m.from {
		e.t.connManager.drop(c)
		return
	}
	p, err := newPeer(m, fds)
	if err != nil {
		e.t.connManager.drop(c)
		return
	}
	c.owner = e
	o := &offer{c, m.from, p}
	if e.wanted == nil {
		e.dropOldest()
		e.offers = append(e.offers, o)
	} else {
		e.accept(o)
	}
	_ = e.t.connManager.epoll.Rearm(c.fd, c.token)
}

// dropOldest drops the oldest offer of as many as there may be: the peer's may come
// behind those of others. Under the lock.
func (e *Endpoint) dropOldest() {
	if len(e.offers) == maxOffers {
		e.t.connManager.drop(e.offers[0].conn)
		e.offers[0].peer.close()
		e.offers = slices.Delete(e.offers, 0, 1)
	}
}

// handleEvent looks what there is of a connection of this endpoint. On the connection manager's
// goroutine.
func (e *Endpoint) handleEvent(c *conn, token int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.closed {
		return
	}
	err := errGone
	if token == c.token && !c.deaf {
		if err = e.take(c); err == nil || errors.Is(err, sys.ErrAgain) {
			_ = e.t.connManager.epoll.Rearm(c.fd, token)
			return
		}
	}
	e.hungUp(c, err)
}

// hungUp ends what a connection was for. Under the lock.
func (e *Endpoint) hungUp(c *conn, err error) {
	if c != e.conn {
		e.offers = slices.DeleteFunc(e.offers, func(o *offer) bool {
			if o.conn == c {
				e.t.connManager.drop(c)
				o.peer.close()
			}
			return o.conn == c
		})
		return
	}
	e.finishConnect(err)
	switch {
	case !errors.Is(err, errGone): // it breaks the rules, and may be copying
		c.deaf = true
		_ = e.t.connManager.epoll.RearmEnd(c.fd, c.token)
		e.fail(err.Error())
	case e.peer != nil:
		e.peer.gone = true // the goroutine that runs the endpoint loses it
	}
	e.toRun()
}

// toRun leaves the endpoint to the next Poll.
func (e *Endpoint) toRun() {
	e.t.runnable.set(e.slot)
	e.t.bell.wake()
}

// take reads one message. Under the lock.
func (e *Endpoint) take(c *conn) error {
	m, fds, err := receive(c.fd)
	if err != nil {
		return err
	}
	defer sys.CloseAll(fds...)
	switch {
	case c != e.conn:
		return errors.New("a message before the welcome")
	case m.kind == kindWelcome && e.peer == nil && e.wanted != nil && m.from == e.wanted.endpoint:
		e.peer, err = newPeer(m, fds)
		if err == nil {
			e.finishConnect(nil)
		}
	case m.kind == kindAsk && e.peer != nil:
		err = e.answer(m.memory)
	case m.kind == kindMemory && e.peer != nil && len(fds) < 2:
		err = e.takeMemory(m.memory, fds)
	default:
		err = fmt.Errorf("message of kind %d at the wrong time", m.kind)
	}
	return err
}

// answer hands out a memory, or says that there is none. A peer asks for one
// after another, so that there is room in its socket.
func (e *Endpoint) answer(id uint64) error {
	m := message{kind: kindMemory, memory: id}
	return e.t.table.withDescriptor(id, func(fd *sys.FD) error {
		if fd == nil {
			return send(e.conn.fd, m)
		}
		return send(e.conn.fd, m, fd)
	})
}

func (e *Endpoint) takeMemory(id uint64, fds []*sys.FD) error {
	var fd *sys.FD
	if len(fds) == 1 {
		fd = fds[0]
	}
	if err := e.peer.answered(id, fd); err != nil {
		return err
	}
	e.toRun()
	return nil
}
