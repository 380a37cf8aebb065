package wire

import (
	"fmt"
	"io"
	"net"
	"time"
)

// Client makes a session over a connection, before a deadline. It takes no
// byte that comes after the handshake. The connection stays the caller's, also
// on an error (close it then); its deadline is cleared on success.
func Client(conn net.Conn, deadline time.Time, config Config) (*Session, Peer, error) {
	return shake(conn, deadline, RoleClient, config)
}

// Server is the other side of Client.
func Server(conn net.Conn, deadline time.Time, config Config) (*Session, Peer, error) {
	return shake(conn, deadline, RoleServer, config)
}

func shake(conn net.Conn, deadline time.Time, role Role, config Config) (*Session, Peer, error) {
	h, err := NewHandshake(role, config)
	if err != nil {
		return nil, Peer{}, err
	}
	defer h.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, Peer{}, fmt.Errorf("wire: handshake: %w", err)
	}
	if err := h.drive(conn); err != nil {
		return nil, Peer{}, fmt.Errorf("wire: handshake: %w", err)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, Peer{}, fmt.Errorf("wire: handshake: %w", err)
	}
	return h.Session(), h.Peer(), nil
}

// drive reads what is needed and writes what comes of it.
func (h *Handshake) drive(conn io.ReadWriter) error {
	if out := h.Start(); out != nil {
		if _, err := conn.Write(out); err != nil {
			return err
		}
	}
	var buf [maxHelloFrameBytes]byte
	for !h.Done() {
		n := h.Need()
		if _, err := io.ReadFull(conn, buf[:n]); err != nil {
			return err
		}
		_, out, err := h.Step(buf[:n])
		if out != nil {
			if _, werr := conn.Write(out); werr != nil && err == nil {
				err = werr
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
