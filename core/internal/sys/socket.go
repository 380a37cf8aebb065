//go:build linux

package sys

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// Sockets here are unix seqpacket sockets (a message is a message) in the
// abstract name space (no file is left behind), non-blocking: wait with
// WaitReadable. Package net is avoided on purpose: with cgo it links
// libresolv into the library.

// ListenAbstract listens under an abstract name of the network namespace.
func ListenAbstract(name string, backlog int) (*FD, error) {
	fd, err := newSocket()
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd.Raw(), &unix.SockaddrUnix{Name: "@" + name}); err != nil {
		return nil, errors.Join(wrap("bind", err), fd.Close())
	}
	if err := unix.Listen(fd.Raw(), backlog); err != nil {
		return nil, errors.Join(wrap("listen", err), fd.Close())
	}
	return fd, nil
}

// DialAbstract connects to an abstract name. It does not wait: ErrAgain when
// the listener's backlog is full, ErrNoListener when there is none.
func DialAbstract(name string) (*FD, error) {
	fd, err := newSocket()
	if err != nil {
		return nil, err
	}
	err = retry(func() error { return unix.Connect(fd.Raw(), &unix.SockaddrUnix{Name: "@" + name}) })
	if err != nil {
		return nil, errors.Join(wrap("connect", err), fd.Close())
	}
	return fd, nil
}

// Accept takes one connection; ErrAgain when there is none.
func Accept(listener *FD) (*FD, error) {
	fd, err := makeNoted(func() (raw int, err error) {
		err = retry(func() (err error) {
			if err = injected("accept4"); err != nil {
				return err
			}
			raw, _, err = unix.Accept4(listener.Raw(), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return err
		})
		return raw, err
	})
	return fd, wrap("accept4", err)
}

func newSocket() (*FD, error) {
	fd, err := makeNoted(func() (int, error) {
		if err := injected("socket"); err != nil {
			return -1, err
		}
		return unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	})
	return fd, wrap("socket", err)
}

// Send sends one message with descriptors attached (may be none); the
// receiver gets copies, the caller keeps its own. It does not wait.
func Send(conn *FD, msg []byte, fds ...*FD) error {
	var rights []byte
	if len(fds) > 0 {
		raw := make([]int, len(fds))
		for i, fd := range fds {
			raw[i] = fd.Raw()
		}
		rights = unix.UnixRights(raw...)
	}
	err := retry(func() error { return unix.Sendmsg(conn.Raw(), msg, rights, nil, unix.MSG_NOSIGNAL) })
	return wrap("sendmsg", err)
}

// Receive takes one message of at most len(buf) bytes and at most maxFDs
// descriptors, which the caller then owns. It does not wait: ErrAgain when
// there is no message; n = 0 without an error is the end of the stream. A
// message that is larger is consumed and gives ErrTooLarge. Where this process has
// no descriptor left for one that came, the message is in buf, its length is n, and
// the error is that shortage (IsShortage).
func Receive(conn *FD, buf []byte, maxFDs int) (n int, fds []*FD, err error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	var oobn, flags int
	err = retry(func() (err error) {
		n, oobn, flags, _, err = unix.Recvmsg(conn.Raw(), buf, oob, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err != nil {
		return 0, nil, wrap("recvmsg", err)
	}
	fds, err = rights(oob[:oobn])
	if err == nil {
		err = truncated(conn, flags, len(fds) < fdCapacity(oob))
	}
	if err == nil && len(fds) > 0 {
		err = injected("recvmsg")
	}
	if err != nil {
		CloseAll(fds...)
		return n, nil, wrap("recvmsg", err)
	}
	return n, fds, nil
}

// fdCapacity is how many descriptors fit control messages: more than were asked for,
// for they are aligned.
func fdCapacity(oob []byte) int { return (len(oob) - unix.CmsgLen(0)) / 4 }

// truncated says why a message is not whole. The kernel gives one flag for two
// causes: no room for a descriptor that came, or no place for it in this process.
func truncated(conn *FD, flags int, room bool) error {
	switch {
	case flags&unix.MSG_TRUNC != 0, flags&unix.MSG_CTRUNC != 0 && !room:
		return ErrTooLarge
	case flags&unix.MSG_CTRUNC == 0:
		return nil
	}
	own, err := Dup(conn)
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return errno
	}
	CloseAll(own)
	return ErrNotDelivered
}

// rights takes ownership of the descriptors in control messages.
func rights(oob []byte) (fds []*FD, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	for i := range msgs {
		raw, e := unix.ParseUnixRights(&msgs[i])
		if e != nil {
			continue // another kind of control message
		}
		for _, r := range raw {
			fds = append(fds, newFD(r))
		}
	}
	return fds, err
}

// CloseAll closes descriptors; nil entries are skipped.
func CloseAll(fds ...*FD) {
	for _, fd := range fds {
		_ = fd.Close()
	}
}
