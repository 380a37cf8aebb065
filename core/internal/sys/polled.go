//go:build linux

package sys

import (
	"errors"
	"io"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxWritten is how many pieces one call writes.
const maxWritten = 128

// receiveNow and sendNow never wait. So Go's scheduler is not told of these calls: to be ready for one that waits takes it
// as long as the call takes, and where nothing has run it wakes a thread.

// receiveNow takes what has come over a stream socket; ErrAgain when nothing has; 0 without an error at its end.
func receiveNow(fd int, p []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))),
			uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, ErrAgain
		default:
			return 0, wrap("recvfrom", errno)
		}
	}
}

// sendNow writes what it can and advances the vector, which is not empty, by it; ErrAgain when the socket is full.
func sendNow(fd int, v *Vector) (int, error) {
	v.msg.Iov = &v.iov[0]
	v.msg.SetIovlen(len(v.iov))
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&v.msg)),
			unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		switch errno {
		case 0:
			v.Advance(int(n))
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, ErrAgain
		default:
			return 0, wrap("sendmsg", errno)
		}
	}
}

// fill makes the vector the beginning of a list.
func (v *Vector) fill(list net.Buffers) {
	v.Reset()
	for _, p := range list[:min(len(list), v.Free())] {
		v.Add(p)
	}
}

// use takes the first n bytes off a list, and the empty pieces behind them.
func use(list *net.Buffers, n int) {
	for len(*list) > 0 && len((*list)[0]) <= n {
		n -= len((*list)[0])
		(*list)[0], *list = nil, (*list)[1:]
	}
	if n > 0 {
		(*list)[0] = (*list)[0][n:]
	}
}

// polled reads and writes a socket that Go's poller watches. Reads are for one goroutine at a time, and so are writes.
type polled struct {
	conn syscall.RawConn

	receive  func(uintptr) bool
	into     []byte
	received int
	lost     error // why receive has failed

	send func(uintptr) bool
	out  *Vector
	sent int
	cut  error // why send has failed
}

func newPolled(c syscall.Conn) (*polled, error) {
	conn, err := c.SyscallConn()
	p := &polled{conn: conn, out: NewVector(maxWritten)}
	p.receive, p.send = p.tryReceive, p.trySend // once: each makes a closure
	return p, err
}

// Read waits for bytes, until the deadline of reads.
func (p *polled) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	p.into = b
	err := p.conn.Read(p.receive)
	p.into = nil
	switch {
	case err != nil:
		return 0, err
	case p.lost == nil && p.received == 0:
		return 0, io.EOF
	}
	return p.received, p.lost
}

// tryReceive reports whether there is no more to be waited for.
func (p *polled) tryReceive(fd uintptr) bool {
	p.received, p.lost = receiveNow(int(fd), p.into)
	return p.lost != ErrAgain
}

// WriteBuffers writes all of a list, until the deadline of writes. It takes off the list what it has written.
func (p *polled) WriteBuffers(list *net.Buffers) (done int64, err error) {
	defer p.out.Reset()
	for len(*list) > 0 {
		p.out.fill(*list)
		p.sent, p.cut = 0, nil
		err := p.conn.Write(p.send)
		use(list, p.sent)
		done += int64(p.sent)
		if err = errors.Join(err, p.cut); err != nil {
			return done, err
		}
	}
	return done, nil
}

// trySend reports whether there is no more to be waited for.
func (p *polled) trySend(fd uintptr) bool {
	for p.out.Bytes() > 0 && p.cut == nil {
		n, err := sendNow(int(fd), p.out)
		if err == ErrAgain {
			return false
		}
		p.sent, p.cut = p.sent+n, err
	}
	return true
}
