//go:build linux

package sys

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Conn is a connection of package net that a forked child closes, as it does an FD. What the kernel has made and
// this process has not noted yet, which takes microseconds, a child keeps: the other side sees the end then when
// both processes have ended. Reads are for one goroutine at a time, and so are writes.
type Conn struct {
	*net.TCPConn
	noted
	io *polled
}

// UnixConn is the same over a unix socket.
type UnixConn struct {
	*net.UnixConn
	noted
	io *polled
}

// noted is a descriptor in the table, which is closed once.
type noted struct {
	raw  int
	once sync.Once
	err  error
}

// numDials bounds how often DialNet begins again because of forks.
const numDials = 8

// DialNet connects. A connection that a fork has copied before it was noted is given up for another one. One within
// this host is not paced.
func DialNet(ctx context.Context, addr string) (*Conn, error) {
	d := net.Dialer{Control: unpaceDial}
	return dialing(func() (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) })
}

func dialing(dial func() (net.Conn, error)) (*Conn, error) {
	for range numDials {
		forks := numForks()
		nc, err := dial()
		if err != nil {
			return nil, err
		}
		c, err := noteConn(nc.(*net.TCPConn))
		if err != nil {
			return nil, err
		}
		if numForks() == forks {
			return c, nil
		}
		_ = c.Close()
	}
	return nil, fmt.Errorf("connect: this process has forked during %d attempts", numDials)
}

func noteConn(nc *net.TCPConn) (*Conn, error) {
	defer holdForks().release()
	raw, err := rawOf(nc)
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	io, err := newPolled(nc)
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	noteFD(raw)
	unpaceWithin(nc, raw)
	return &Conn{nc, noted{raw: raw}, io}, nil
}

func rawOf(nc syscall.Conn) (raw int, err error) {
	c, err := nc.SyscallConn()
	if err != nil {
		return 0, err
	}
	err = c.Control(func(fd uintptr) { raw = int(fd) })
	return raw, err
}

// UnixNet makes a connection of a unix socket, which it takes over, also if it fails.
func UnixNet(fd *FD) (*UnixConn, error) {
	f, err := File(fd)
	if err != nil {
		return nil, err
	}
	defer holdForks().release()
	nc, err := net.FileConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	conn, is := nc.(*net.UnixConn)
	if !is {
		return nil, errors.Join(errors.New("no unix socket"), nc.Close())
	}
	raw, err := rawOf(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	io, err := newPolled(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	noteFD(raw)
	return &UnixConn{conn, noted{raw: raw}, io}, nil
}

// Read waits for bytes, until its deadline.
func (c *Conn) Read(p []byte) (int, error) { return c.io.Read(p) }

// WriteBuffers writes all of a list, until its deadline. It takes off the list what it has written.
func (c *Conn) WriteBuffers(list *net.Buffers) (int64, error) { return c.io.WriteBuffers(list) }

// Read is that of a Conn.
func (c *UnixConn) Read(p []byte) (int, error) { return c.io.Read(p) }

// WriteBuffers is that of a Conn.
func (c *UnixConn) WriteBuffers(list *net.Buffers) (int64, error) { return c.io.WriteBuffers(list) }

// SendFDs sends one message with descriptors attached, as Send does. It waits while the other side has no room, until
// the connection's deadline.
func (c *UnixConn) SendFDs(msg []byte, fds ...*FD) error {
	raw := make([]int, len(fds))
	for i, fd := range fds {
		raw[i] = fd.Raw()
	}
	_, _, err := c.WriteMsgUnix(msg, unix.UnixRights(raw...), nil)
	return err
}

// ReceiveFDs takes one message of at most len(buf) bytes and at most maxFDs descriptors, as Receive does. It waits, until
// the connection's deadline.
func (c *UnixConn) ReceiveFDs(buf []byte, maxFDs int) (n int, fds []*FD, err error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return 0, nil, err
	}
	fds, err = rights(oob[:oobn])
	switch {
	case err != nil:
	case flags&unix.MSG_CTRUNC != 0 && len(fds) < fdCapacity(oob):
		err = ErrNotDelivered
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = ErrTooLarge
	case len(fds) > 0:
		err = injected("recvmsg")
	}
	if err != nil {
		CloseAll(fds...)
		return n, nil, wrap("recvmsg", err)
	}
	return n, fds, nil
}

// Close ends the connection for both sides, also where a child has a copy of it. Idempotent.
func (c *Conn) Close() error { return c.end(c.TCPConn) }

// Close is that of a Conn.
func (c *UnixConn) Close() error { return c.end(c.UnixConn) }

func (n *noted) end(conn interface {
	CloseWrite() error
	Close() error
}) error {
	n.once.Do(func() {
		_ = conn.CloseWrite()
		n.err = closeNoted(n.raw, func(int) error { return conn.Close() })
	})
	return n.err
}

// Listener is a listener of package net that a forked child closes, and so the connections that it gives.
type Listener struct {
	*net.TCPListener
	noted
}

// ListenNet listens.
func ListenNet(addr string) (*Listener, error) {
	defer holdForks().release()
	config := net.ListenConfig{Control: unpaceDial}
	nl, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	l := nl.(*net.TCPListener)
	raw, err := rawOf(l)
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	noteFD(raw)
	return &Listener{l, noted{raw: raw}}, nil
}

// Accept waits for a connection, which is a Conn. One within this host is not paced.
func (l *Listener) Accept() (net.Conn, error) {
	nc, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return noteConn(nc)
}

// Close ends the listener, not its connections. Idempotent.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.err = closeNoted(l.raw, func(int) error { return l.TCPListener.Close() })
	})
	return l.err
}
