//go:build linux

package sys

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
)

// Conn is a connection of package net that a forked child closes, as it does an FD. What the kernel has made and
// this process has not noted yet, which takes microseconds, a child keeps: the other side sees the end then when
// both processes have ended.
type Conn struct {
	*net.TCPConn
	raw  int
	once sync.Once
	err  error
}

// numDials bounds how often DialNet begins again because of forks.
const numDials = 8

// DialNet connects. A connection that a fork has copied before it was noted is given up for another one.
func DialNet(ctx context.Context, addr string) (*Conn, error) {
	var d net.Dialer
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
	noteFD(raw)
	return &Conn{TCPConn: nc, raw: raw}, nil
}

func rawOf(nc syscall.Conn) (raw int, err error) {
	c, err := nc.SyscallConn()
	if err != nil {
		return 0, err
	}
	err = c.Control(func(fd uintptr) { raw = int(fd) })
	return raw, err
}

// Close ends the connection for both sides, also where a child has a copy of it. Idempotent.
func (c *Conn) Close() error {
	c.once.Do(func() {
		_ = c.CloseWrite()
		c.err = closeNoted(c.raw, func(int) error { return c.TCPConn.Close() })
	})
	return c.err
}

// Listener is a listener of package net that a forked child closes, and so the connections that it gives.
type Listener struct {
	*net.TCPListener
	raw  int
	once sync.Once
	err  error
}

// ListenNet listens.
func ListenNet(addr string) (*Listener, error) {
	defer holdForks().release()
	nl, err := net.Listen("tcp", addr)
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
	return &Listener{TCPListener: l, raw: raw}, nil
}

// Accept waits for a connection, which is a Conn.
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
