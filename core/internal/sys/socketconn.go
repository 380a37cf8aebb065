//go:build linux

package sys

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// SocketConn is a connection over a stream socket that Go's poller does not watch: the poller wakes a thread of its own
// for whatever comes, also where another thread waits for it. What has to wait does so on its own thread for a moment,
// if it may (Linger), and then by way of the poller. Reads are for one goroutine at a time, and so are writes; all else
// is safe for concurrent use.
type SocketConn struct {
	fd            *FD
	local, remote net.Addr
	users         atomic.Int64 // calls that run, and the owner: the last one closes the descriptor
	closed        atomic.Bool
	reads, writes side
	ends          gate
	out           *Vector
}

// NewSocketConn takes a connected socket over, also if it fails. The addresses are what it says of itself.
func NewSocketConn(fd *FD, local, remote net.Addr) (*SocketConn, error) {
	if err := unix.SetNonblock(fd.Raw(), true); err != nil {
		_ = fd.Close()
		return nil, wrap("fcntl F_SETFL", err)
	}
	c := &SocketConn{fd: fd, local: local, remote: remote, out: NewVector(maxWritten)}
	c.users.Store(1)
	c.reads.events, c.writes.events = unix.POLLIN, unix.POLLOUT
	c.writes.lingers.Store(true)
	countThreads()
	return c, nil
}

// Socket makes a SocketConn of a connection, which it takes over, also if it fails.
func (c *Conn) Socket() (*SocketConn, error) {
	fd, err := c.dup()
	local, remote := c.LocalAddr(), c.RemoteAddr()
	c.once.Do(func() { c.err = closeNoted(c.raw, func(int) error { return c.TCPConn.Close() }) })
	if err != nil {
		return nil, err
	}
	return NewSocketConn(fd, local, remote)
}

func (c *Conn) dup() (*FD, error) {
	defer holdForks().release()
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd *FD
	if ctl := raw.Control(func(n uintptr) { fd, err = Duplicate(int(n)) }); ctl != nil {
		return nil, ctl
	}
	return fd, err
}

// enter keeps the descriptor open until leave.
func (c *SocketConn) enter() bool {
	for n := c.users.Load(); n > 0; n = c.users.Load() {
		if c.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

func (c *SocketConn) leave() error {
	if c.users.Add(-1) > 0 {
		return nil
	}
	c.reads.gate.close()
	c.writes.gate.close()
	c.ends.close()
	return c.fd.Close()
}

// Close ends the connection for both sides, also where a child has a copy of it, and whatever waits. Idempotent.
func (c *SocketConn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	_ = unix.Shutdown(c.fd.Raw(), unix.SHUT_RDWR) // this side holds the descriptor
	return c.leave()
}

// Read waits for bytes, until its deadline.
func (c *SocketConn) Read(p []byte) (int, error) {
	if !c.enter() {
		return 0, net.ErrClosed
	}
	defer func() { _ = c.leave() }()
	if len(p) == 0 {
		return 0, c.cause(nil) // the kernel would wait for a byte
	}
	for {
		if c.reads.isOver() {
			return 0, os.ErrDeadlineExceeded
		}
		n, err := receiveNow(c.fd.Raw(), p)
		switch {
		case err == nil && n == 0:
			return 0, c.cause(io.EOF)
		case err == nil:
			return n, nil
		case err != ErrAgain:
			return 0, c.cause(err)
		}
		if err := c.wait(&c.reads); err != nil {
			return 0, err
		}
	}
}

// cause is why a call has failed.
func (c *SocketConn) cause(err error) error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	return err
}

// Write writes all of p, until its deadline.
func (c *SocketConn) Write(p []byte) (int, error) {
	if !c.enter() {
		return 0, net.ErrClosed
	}
	defer func() { _ = c.leave() }()
	defer c.out.Reset()
	c.out.Add(p)
	return c.writeSome()
}

// WriteBuffers writes all of a list, until its deadline. It takes off the list what it has written.
func (c *SocketConn) WriteBuffers(list *net.Buffers) (done int64, err error) {
	if !c.enter() {
		return 0, net.ErrClosed
	}
	defer func() { _ = c.leave() }()
	defer c.out.Reset()
	for len(*list) > 0 {
		c.out.fill(*list)
		n, err := c.writeSome()
		use(list, n)
		done += int64(n)
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// writeSome writes what is in the vector.
func (c *SocketConn) writeSome() (done int, err error) {
	for c.out.Bytes() > 0 {
		if c.writes.isOver() {
			return done, os.ErrDeadlineExceeded
		}
		n, err := sendNow(c.fd.Raw(), c.out)
		done += n
		switch {
		case err == nil:
			continue
		case err != ErrAgain:
			return done, c.cause(err)
		}
		if err := c.wait(&c.writes); err != nil {
			return done, err
		}
	}
	return done, nil
}

// LocalAddr is this side's address.
func (c *SocketConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the other side's.
func (c *SocketConn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline is both of the others.
func (c *SocketConn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline holds for a read that waits, too; one that waits on its own thread sees it a moment later.
func (c *SocketConn) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.reads, t) }

// SetWriteDeadline is the same for writes.
func (c *SocketConn) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.writes, t) }

func (c *SocketConn) setDeadline(s *side, t time.Time) error {
	if !c.enter() {
		return net.ErrClosed
	}
	defer func() { _ = c.leave() }()
	s.set(t)
	return c.cause(nil)
}
