// Package stream carries messages of the block store over one connection: a session of
// core/wire, bytes in and out, and a bound for every wait. It knows no message but its head.
package stream

import (
	"bytes"
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

// First reads the first n bytes of a connection, from which its kind is known; fewer with an
// error.
func First(conn net.Conn, n int, deadline time.Time) ([]byte, error) {
	if err := conn.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	first := make([]byte, n)
	n, err := io.ReadFull(conn, first)
	return first[:n], err
}

// Handshake begins a session over a new connection, until the deadline. The caller owns the
// connection and closes it upon an error.
func Handshake(conn net.Conn, role wire.Role, config wire.Config, deadline time.Time) (*wire.Session, error) {
	return HandshakeAfter(nil, conn, role, config, deadline)
}

// HandshakeAfter is Handshake where the first bytes were read already.
func HandshakeAfter(first []byte, conn net.Conn, role wire.Role, config wire.Config, deadline time.Time) (*wire.Session, error) {
	config.Apart = true // blocks have tags
	h, err := wire.NewHandshake(role, config)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if err := shake(io.MultiReader(bytes.NewReader(first), conn), conn, h); err != nil {
		return nil, err
	}
	return h.Session(), conn.SetDeadline(time.Time{})
}

func shake(from io.Reader, conn net.Conn, h *wire.Handshake) error {
	if hello := h.Start(); hello != nil {
		if _, err := conn.Write(hello); err != nil {
			return fmt.Errorf("handshake: %w", err)
		}
	}
	var in [wire.MaxFrameBytes]byte
	for heard := false; !h.Done(); heard = true {
		n := min(h.Need(), len(in))
		if _, err := io.ReadFull(from, in[:n]); err != nil {
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

// silent tells a connection that was ended from one that failed. A peer that has said something
// that fits has the same key.
func silent(err error, heard bool) error {
	if errors.Is(err, io.EOF) && !heard {
		return ErrSilent
	}
	return fmt.Errorf("handshake: %w", err)
}
