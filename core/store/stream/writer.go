package stream

import (
	"net"
	"time"

	"github.com/moewire/moewire/core/wire"
)

const (
	outBytes   = 64 << 10
	smallBytes = 8 << 10 // payloads up to here are copied behind their frame
	writeBytes = 1 << 20 // at a time, so that each wait is for so much at most
	maxPieces  = 512     // at a time
)

// Writer writes messages to one connection, several small ones at a time: Append, then Flush.
// For one goroutine at a time. It allocates nothing. After an error the connection is of no
// use.
type Writer struct {
	conn    net.Conn
	session *wire.Session
	sealer  *wire.Encryptor
	idle    time.Duration
	wrote   func()
	out     []byte // sealed, not written yet

	pieces  [maxPieces + 1][]byte
	buffers net.Buffers // of pieces; WriteTo uses it up
}

// NewWriter writes to a connection whose handshake is over. A write that takes nothing for
// so long fails. wrote, if not nil, is called after every write that has ended.
func NewWriter(conn net.Conn, session *wire.Session, idle time.Duration, wrote func()) *Writer {
	w := &Writer{conn: conn, session: session, idle: idle, wrote: wrote}
	w.out = make([]byte, 0, outBytes+wire.MaxFrameBytes+smallBytes)
	if session.Protection() == wire.ProtectEncrypt {
		w.sealer = session.NewEncryptor()
	}
	return w
}

// Append seals a message. Its payload may be used again when Append has returned.
func (w *Writer) Append(head *wire.Head, payload [][]byte) (err error) {
	if w.out, err = w.session.Seal(w.out, head, payload...); err != nil {
		return err
	}
	switch {
	case w.sealer != nil:
		err = w.encrypt(head, payload)
	case head.PayloadBytes > smallBytes:
		return w.writePieces(payload)
	default:
		for _, p := range payload {
			w.out = append(w.out, p...)
		}
	}
	if err == nil && len(w.out) >= outBytes {
		err = w.Flush()
	}
	return err
}

func (w *Writer) encrypt(head *wire.Head, payload [][]byte) error {
	w.sealer.Begin(head, payload)
	for left := wire.EncryptedBytes(head.PayloadBytes); left > 0; {
		before := len(w.out)
		w.out = w.sealer.Next(w.out)
		left -= int64(len(w.out) - before)
		if left > 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Flush writes what was appended.
func (w *Writer) Flush() error {
	if len(w.out) == 0 {
		return nil
	}
	if err := w.conn.SetWriteDeadline(time.Now().Add(w.idle)); err != nil {
		return err
	}
	_, err := w.conn.Write(w.out)
	w.out = w.out[:0]
	w.report()
	return err
}

func (w *Writer) report() {
	if w.wrote != nil {
		w.wrote()
	}
}

// writePieces writes what was appended and a payload from where it lies.
func (w *Writer) writePieces(payload [][]byte) error {
	list := append(w.pieces[:0], w.out)
	room := writeBytes
	for _, p := range payload {
		for len(p) > 0 {
			n := min(len(p), room)
			list = append(list, p[:n])
			p, room = p[n:], room-n
			if room == 0 || len(list) == len(w.pieces) {
				if err := w.writeAll(list); err != nil {
					return err
				}
				list, room = w.pieces[:0], writeBytes
			}
		}
	}
	err := w.writeAll(list)
	w.out = w.out[:0]
	return err
}

func (w *Writer) writeAll(list [][]byte) error {
	if len(list) == 0 {
		return nil
	}
	if err := w.conn.SetWriteDeadline(time.Now().Add(w.idle)); err != nil {
		return err
	}
	w.buffers = list
	_, err := w.buffers.WriteTo(w.conn)
	clear(w.pieces[:len(list)])
	w.report()
	return err
}
