package stream

import (
	"errors"
	"net"
	"os"
	"time"

	"github.com/moewire/moewire/core/wire"
)

const (
	outBytes   = 64 << 10
	smallBytes = 8 << 10        // payloads up to here are copied behind their frame
	writeBytes = 1<<20 + 16<<10 // at a time, what Limits are for: 1 MiB of blocks and their table
	maxPieces  = 512            // at a time
)

// Writer writes messages to one connection, several small ones at a time: Append, then Flush.
// For one goroutine at a time. It allocates nothing. After an error the connection is of no
// use.
type Writer struct {
	conn    net.Conn
	session *wire.Session
	sealer  *wire.Encryptor
	limits  Limits
	wrote   func()
	out     []byte // sealed, not written yet

	pieces  [maxPieces + 1][]byte
	buffers net.Buffers // of pieces; WriteTo uses it up
}

// NewWriter writes to a connection after its handshake. The limits are those of a write of at most
// 1 MiB and a table; one that goes beyond them fails. wrote, if not nil, is called whenever bytes have gone.
func NewWriter(conn net.Conn, session *wire.Session, limits Limits, wrote func()) *Writer {
	if limits.Report == 0 {
		limits.Report = limits.Idle / 4
	}
	w := &Writer{conn: conn, session: session, limits: limits, wrote: wrote}
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
	err := w.writeAll(append(w.pieces[:0], w.out))
	w.out = w.out[:0]
	return err
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

// writeAll writes a list that lies in w.pieces.
func (w *Writer) writeAll(list [][]byte) error {
	if len(list) == 0 {
		return nil
	}
	w.buffers = list
	err := w.push()
	clear(w.pieces[:len(list)])
	return err
}

// push writes w.buffers. It looks from time to time whether bytes have gone: what a slow connection takes
// bit by bit is no silence.
func (w *Writer) push() error {
	now := time.Now()
	last, until := now, now.Add(w.limits.Total)
	for {
		at := earliest(now.Add(w.limits.Report), last.Add(w.limits.Idle), until)
		if err := w.conn.SetWriteDeadline(at); err != nil {
			return err
		}
		n, err := w.writeBuffers()
		now = time.Now()
		if n > 0 {
			last = now
			w.report()
		}
		over := now.Sub(last) >= w.limits.Idle || !now.Before(until)
		if err == nil || over || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// vectored is a connection of another package than net that takes several pieces at a time.
type vectored interface {
	WriteBuffers(list *net.Buffers) (int64, error)
}

func (w *Writer) writeBuffers() (int64, error) {
	if conn, is := w.conn.(vectored); is {
		return conn.WriteBuffers(&w.buffers)
	}
	return w.buffers.WriteTo(w.conn)
}

func earliest(a time.Time, others ...time.Time) time.Time {
	for _, b := range others {
		if b.Before(a) {
			a = b
		}
	}
	return a
}

func (w *Writer) report() {
	if w.wrote != nil {
		w.wrote()
	}
}
