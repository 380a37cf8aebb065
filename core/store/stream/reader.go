package stream

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/wire"
)

// ErrStopped means that Stop was called and the message before is complete.
var ErrStopped = errors.New("no more messages are wanted")

const (
	readBytes  = 12 << 10 // of what is read ahead, and copied once more: a small message whole
	checkBytes = 256 << 10
)

// Limits bound how long a write may take, and a message from its first byte on.
type Limits struct {
	Idle   time.Duration // without a byte
	Total  time.Duration // altogether
	Report time.Duration // how often a write that goes on says so; 0: Idle/4. A Reader has no use for it
}

// Reader reads the messages of one connection: Next, then as much of the payload as is
// wanted by Read, then End. For one goroutine, but for Stop and Progress. It allocates
// nothing. After an error the connection is of no use.
type Reader struct {
	session *wire.Session
	source  source
	in      *bufio.Reader
	waits   waiter // nil: a connection that does not
	left    int64  // of the payload
	apart   int64  // of that, the end that the digest does not cover
	frame   [wire.MaxFrameBytes]byte

	digest *wire.Digest // else the payload is encrypted
	opener *wire.Decryptor
	plain  []byte    // of the last chunk, what was not read yet
	place  [1][]byte // of the next chunk
	chunk  [wire.ChunkBytes]byte
	cipher [wire.EncryptedChunkBytes]byte
}

// waiter is a connection with a reader that may wait on its own thread, as sys.SocketConn is.
type waiter interface {
	Linger(on bool)
	Await(d time.Duration) bool
}

// NewReader reads from a connection after its handshake.
func NewReader(conn net.Conn, session *wire.Session, limits Limits) *Reader {
	r := &Reader{session: session}
	r.source.conn, r.source.limits = conn, limits
	r.waits, _ = conn.(waiter)
	r.in = bufio.NewReaderSize(&r.source, readBytes)
	if session.Protection() == wire.ProtectEncrypt {
		r.opener = session.NewDecryptor()
	} else {
		r.digest = session.NewDigest()
	}
	return r
}

// Progress is when the last byte came: nanoseconds since some moment (Now); 0: none has.
func (r *Reader) Progress() int64 { return r.source.progress.Load() }

// Buffered reports whether bytes of the next message are there already.
func (r *Reader) Buffered() bool { return r.in.Buffered() > 0 }

// Linger makes waits begin on the reader's own thread. That is for a peer that answers at once, where nothing else has
// to run on that thread.
func (r *Reader) Linger(on bool) {
	if r.waits != nil {
		r.waits.Linger(on)
	}
}

// Arrives waits on this thread, for a moment and d at most, for the head of the next message, so that Next does not
// wait for it. It is for connections with a reader that may wait there. The error is one of Next.
func (r *Reader) Arrives(d time.Duration) (there bool, err error) {
	for !r.hasFrame() {
		if !r.waits.Await(d) {
			return false, nil
		}
		r.source.inside = false
		if _, err := r.in.Peek(r.in.Buffered() + 1); err != nil {
			return false, err
		}
	}
	return true, nil
}

// hasFrame reports whether a whole frame was read ahead, or a length that no frame has: Next returns that error.
func (r *Reader) hasFrame() bool {
	if r.in.Buffered() < wire.LengthBytes {
		return false
	}
	prefix, _ := r.in.Peek(wire.LengthBytes)
	n, err := wire.FrameBytes(prefix)
	return err != nil || r.in.Buffered() >= n
}

// Stop makes Next return ErrStopped once no message is half read. Safe for concurrent use.
func (r *Reader) Stop() {
	r.source.stopped.Store(true)
	_ = r.source.conn.SetReadDeadline(time.Unix(1, 0)) // wakes the reader
}

// Next waits for a message. Its payload is to be read, or skipped by End. Head.Extra is valid
// until the next Next.
func (r *Reader) Next() (wire.Head, error) {
	r.source.inside = false
	if r.source.stopped.Load() {
		return wire.Head{}, ErrStopped
	}
	if _, err := r.in.Peek(1); err != nil {
		return wire.Head{}, err
	}
	r.source.begin()
	if _, err := io.ReadFull(r.in, r.frame[:wire.LengthBytes]); err != nil {
		return wire.Head{}, cut(err)
	}
	n, err := r.session.FrameBytes(r.frame[:])
	if err != nil {
		return wire.Head{}, err
	}
	if _, err := io.ReadFull(r.in, r.frame[wire.LengthBytes:n]); err != nil {
		return wire.Head{}, cut(err)
	}
	head, err := r.session.OpenHead(r.frame[:n])
	if err == nil {
		r.start(&head)
	}
	return head, err
}

func (r *Reader) start(head *wire.Head) {
	r.left, r.apart, r.plain = head.PayloadBytes, int64(head.ApartBytes), nil
	if r.digest != nil {
		r.digest.Begin(head)
	} else {
		r.opener.BeginApart(head)
	}
}

// Left is how much of the payload was not read yet.
func (r *Reader) Left() int64 { return r.left }

// Read fills p with the next bytes of the payload. They are not verified before End. It returns
// wire.ErrLength if there are not as many that the digest covers.
func (r *Reader) Read(p []byte) error {
	if int64(len(p)) > r.left-r.apart {
		return wire.ErrLength
	}
	return r.ReadBlock(p)
}

// ReadBlock is Read for bytes of a block. The digest may not cover them: the caller compares
// the block's tag.
func (r *Reader) ReadBlock(p []byte) error {
	if int64(len(p)) > r.left {
		return wire.ErrLength
	}
	covered := int(min(int64(len(p)), max(0, r.left-r.apart)))
	r.left -= int64(len(p))
	if r.digest == nil {
		return r.decrypt(p)
	}
	if err := r.readCovered(p[:covered]); err != nil {
		return err
	}
	if _, err := io.ReadFull(r.in, p[covered:]); err != nil {
		return cut(err)
	}
	return nil
}

// readCovered reads and takes into the digest, as much at a time as stays in the cache.
func (r *Reader) readCovered(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), checkBytes)
		if _, err := io.ReadFull(r.in, p[:n]); err != nil {
			return cut(err)
		}
		r.digest.Write(p[:n])
		p = p[n:]
	}
	return nil
}

// decrypt fills p from whole chunks: straight, where one has room in p.
func (r *Reader) decrypt(p []byte) error {
	for len(p) > 0 {
		if len(r.plain) > 0 {
			n := copy(p, r.plain)
			p, r.plain = p[n:], r.plain[n:]
			continue
		}
		left := r.left + int64(len(p)) // that was not decrypted
		size := int(min(left, wire.ChunkBytes))
		if len(p) >= size {
			if err := r.open(p[:size]); err != nil {
				return err
			}
			p = p[size:]
			continue
		}
		if err := r.open(r.chunk[:size]); err != nil {
			return err
		}
		r.plain = r.chunk[:size]
	}
	return nil
}

// open decrypts the next chunk.
func (r *Reader) open(into []byte) error {
	n := int(wire.EncryptedBytes(int64(len(into))))
	if _, err := io.ReadFull(r.in, r.cipher[:n]); err != nil {
		return cut(err)
	}
	r.place[0] = into
	r.opener.Into(r.place[:])
	err := r.opener.Write(r.cipher[:n])
	r.place[0] = nil
	return err
}

// End skips what is left of the payload, and says whether all of it was genuine, but for what
// the digest does not cover.
func (r *Reader) End() error {
	for r.left > 0 {
		if err := r.skip(); err != nil {
			return err
		}
	}
	if r.digest != nil {
		return r.digest.Check()
	}
	return r.opener.Check()
}

func (r *Reader) skip() error {
	if n := int64(len(r.plain)); n > 0 { // lies in chunk
		r.left, r.plain = r.left-n, nil
		return nil
	}
	return r.ReadBlock(r.chunk[:min(r.left, wire.ChunkBytes)])
}

// cut is the error of a message that has an end too early.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

var start = time.Now()

// Now is the clock of Progress.
func Now() int64 { return int64(time.Since(start)) }

// source bounds waits for bytes: between messages there is no bound.
type source struct {
	conn     net.Conn
	limits   Limits
	inside   bool // a message has begun
	armed    bool
	until    time.Time // of the message
	stopped  atomic.Bool
	progress atomic.Int64
}

func (s *source) begin() {
	s.inside, s.until = true, time.Time{}
}

// Read reads, with a deadline inside of a message.
func (s *source) Read(p []byte) (int, error) {
	for {
		if err := s.arm(); err != nil {
			return 0, err
		}
		n, err := s.conn.Read(p)
		if n > 0 {
			s.progress.Store(Now())
			return n, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || !s.stopped.Load() {
			return n, err
		}
		if !s.inside {
			return 0, ErrStopped
		}
		if time.Now().After(s.until) {
			return 0, err
		}
	}
}

// arm sets the deadline of the next read.
func (s *source) arm() error {
	if s.inside {
		now := time.Now()
		if s.until.IsZero() {
			s.until = now.Add(s.limits.Total)
		}
		at := now.Add(s.limits.Idle)
		if at.After(s.until) {
			at = s.until
		}
		s.armed = true
		return s.conn.SetReadDeadline(at)
	}
	if s.armed {
		s.armed = false
		if err := s.conn.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
	}
	if s.stopped.Load() {
		return ErrStopped
	}
	return nil
}
