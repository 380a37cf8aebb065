package shm

import (
	"errors"
	"syscall"

	"github.com/moewire/moewire/core/internal/sys"
)

var errEnded = errors.New("closed the connection while connecting")

// receive takes the message that is there. Where the sender closed with
// something unread, the kernel reports that first and the message after it.
func receive(conn *sys.FD) (message, []*sys.FD, error) {
	buf := make([]byte, messageBytes+maxTextBytes)
	n, fds, err := sys.Receive(conn, buf, 2)
	if errors.Is(err, syscall.ECONNRESET) {
		n, fds, err = sys.Receive(conn, buf, 2)
	}
	switch {
	case errors.Is(err, syscall.ECONNRESET), err == nil && n == 0:
		err = errEnded
	case err == nil:
		var msg message
		if msg, err = parseMessage(buf[:n]); err == nil {
			return msg, fds, nil
		}
	case isUndelivered(err):
		msg, _ := parseMessage(buf[:n]) // the message is whole: its sender can be told
		return msg, nil, err
	}
	sys.CloseAll(fds...)
	return message{}, nil, err
}

// isUndelivered reports whether a message has come without its descriptors, for
// which this process has no place.
func isUndelivered(err error) bool { return sys.IsShortage(err) || errors.Is(err, sys.ErrNotDelivered) }
