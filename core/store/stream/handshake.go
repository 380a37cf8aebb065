// Package stream carries messages of the block store over one connection: a session of
// core/wire, bytes in and out, and a bound for every wait. It knows no message but its head.
package stream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/moewire/moewire/core/wire"
)

// ErrSilent means that the other side has ended the connection during the handshake and
// said nothing at all: so a server does to a client that has another key, and so it looks when
// a server ends.
var ErrSilent = errors.New("the connection was ended during the handshake, as it is where keys differ")

// Handshake begins a session over a new connection, until the deadline. The caller owns the
// connection and closes it upon an error.
func Handshake(conn net.Conn, role wire.Role, config wire.Config, deadline time.Time) (*wire.Session, error) {
	config.Apart = true // blocks have tags
	h, err := wire.NewHandshake(role, config)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if err := shake(conn, h); err != nil {
		return nil, err
	}
	return h.Session(), conn.SetDeadline(time.Time{})
}

func shake(conn net.Conn, h *wire.Handshake) error {
	if hello := h.Start(); hello != nil {
		if _, err := conn.Write(hello); err != nil {
			return fmt.Errorf("handshake: %w", err)
		}
	}
	var in [wire.MaxFrameBytes]byte
	for heard := false; !h.Done(); heard = true {
		n := min(h.Need(), len(in))
		if _, err := io.ReadFull(conn, in[:n]); err != nil {
			return silent(err, heard)
		}
		_, out, err := h.Step(in[:n])
		if len(out) > 0 {
			if _, wrote := conn.Write(out); wrote != nil && err == nil {
				err = wrote
			}
		}
		if err != nil {
			return fmt.Errorf("handshake: %w", err)
		}
	}
	return nil
}

// silent tells a connection that was ended from one that failed. Who has said something that
// fits has the same key.
func silent(err error, heard bool) error {
	if errors.Is(err, io.EOF) && !heard {
		return ErrSilent
	}
	return fmt.Errorf("handshake: %w", err)
}
