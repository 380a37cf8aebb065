package tcp

import (
	"fmt"
	"sync/atomic"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// Sizes of what is moved at once. docs/transport-tcp.md has the measurements.
const (
	segmentBytes = 256 << 10 // of payload in one message
	batchBytes   = 128 << 10 // from so many on, the first batch of a turn is written
	bulkBytes    = 512 << 10 // and those behind it, which no caller waits for as long
	batchFrames  = 32        // messages in a batch
	turnBytes    = 1 << 20   // of one socket, before others have their turn
	inlineWork   = 64 << 10  // what PostSend writes itself
	bufferBytes  = 64 << 10  // for headers and short payloads
	longBytes    = 16 << 10  // a payload from here on is read for itself
	leastBytes   = 128 << 10 // of a long payload, before this side wakes up
	lingerBytes  = 64 << 20  // read and forgotten after a refusal
)

// conn is one socket of an endpoint. Everything but the flags is for the holder of the
// endpoint's io.
type conn struct {
	t     *Transport
	ep    *endpoint
	fd    *sys.FD
	index int    // among the sockets of the endpoint
	token uint64 // place in Transport.conns | generation << 32

	// What the poller has reported and the last call has not contradicted.
	readable, writable atomic.Bool
	ended              atomic.Bool // the peer has closed: read up to the end
	noticed            atomic.Bool // there may be notices

	session *wire.Session

	// Sending: a batch of messages, in vec until all is written.
	vec     *sys.Vector
	heads   []byte // their headers
	staged  []byte // bytes that answer reads
	staging int    // of these, used by the batch
	list    [numPieces][]byte
	head    wire.Head
	extra   [extraBytes]byte
	crypt   *wire.Encryptor
	sealed  []byte // encrypted payloads of the batch
	last    bool   // the batch ends with a refusal

	rx  receiver
	pin pinning
}

// newConn makes a socket of the endpoint out of a connection that has finished its
// handshake; the caller holds io.
func (ep *endpoint) newConn(fd *sys.FD, s *wire.Session, index int) (*conn, error) {
	t := ep.t
	c := &conn{
		t: t, ep: ep, fd: fd, index: index, session: s,
		vec:   sys.NewVector(batchFrames * (1 + numPieces)),
		heads: make([]byte, 0, batchFrames*wire.MaxFrameBytes),
	}
	c.rx.init(s)
	if s.Protection() == wire.ProtectEncrypt {
		c.crypt = s.NewEncryptor()
	}
	c.preparePinning()
	t.mu.Lock()
	if len(t.freeConns) == 0 {
		t.mu.Unlock()
		return nil, fmt.Errorf("tcp: more sockets than NumEndpoints*NumSockets: %w", transport.ErrNoResource)
	}
	place := t.freeConns[len(t.freeConns)-1]
	t.freeConns = t.freeConns[:len(t.freeConns)-1]
	t.lastConn++
	c.token = uint64(place) | uint64(t.lastConn&0x7fffffff)<<32
	t.conns[place].Store(c)
	t.mu.Unlock()
	if err := t.poller.Add(fd, c.token); err != nil {
		c.close()
		return nil, fmt.Errorf("tcp: %w", err)
	}
	c.readable.Store(true)
	c.writable.Store(true)
	return c, nil
}

// close closes the socket.
func (c *conn) close() {
	_ = c.fd.Close()
	place := uint32(c.token)
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if c.t.conns[place].CompareAndSwap(c, nil) {
		c.t.freeConns = append(c.t.freeConns, place)
	}
}

// send writes what is due, up to a turn; it returns whether there is more.
func (c *conn) send() (more bool) {
	for moved := 0; moved < turnBytes; {
		if c.unsent() == 0 && !c.fill(moved) {
			return false
		}
		c.writable.Store(false) // before the call: the poller may set it during it
		n, err := c.write()
		if err == sys.ErrAgain {
			return false
		}
		if err != nil {
			c.ep.fail(fmt.Errorf("tcp: connection broke: %w", err))
			return false
		}
		c.writable.Store(true)
		moved += n
		if c.last && c.unsent() == 0 {
			c.ep.refusalSent()
			return false
		}
	}
	return true
}

// unsent is what is left of the batch.
func (c *conn) unsent() int { return c.vec.Bytes() + c.pin.left() }

// write makes one call.
func (c *conn) write() (n int, err error) {
	switch {
	case c.vec.Bytes() == 0:
		return c.sendPinned()
	case c.pin.left() > 0:
		return sys.SendMore(c.fd, c.vec)
	}
	return sys.SendVector(c.fd, c.vec)
}

// fill makes the next batch of a turn that has moved so many bytes; false if
// nothing is due. A payload that goes without a copy ends it.
func (c *conn) fill(moved int) bool {
	limit := batchBytes
	if moved > 0 && c.crypt == nil {
		limit = bulkBytes
	}
	if c.last {
		return false
	}
	c.vec.Reset()
	c.heads, c.sealed, c.staging = c.heads[:0], c.sealed[:0], 0
	frames := 0
	for c.vec.Bytes() < limit && c.pin.left() == 0 && frames < batchFrames && !c.last && c.frame() {
		frames++
	}
	if c.ep.is(transport.StateReady) {
		return frames > 0 || c.acknowledge()
	}
	return false
}

// frame puts the next message into the batch, if there is one.
func (c *conn) frame() bool {
	var m message
	ep := c.ep
	if ep.refused {
		if c.index != 0 {
			return false
		}
		c.last = true
		return c.seal(&ep.refusal, nil)
	}
	ep.mu.Lock()
	if n, ok := ep.in.nextRead(&m, c.room()); ok && (n > 0 || m.total == 0) {
		c.putTotals(&m)
		ep.mu.Unlock()
		return c.answer(&m, n)
	}
	payload, ok := ep.nextOut(&m, c.list[:0])
	if ok {
		c.putTotals(&m)
	}
	ep.mu.Unlock()
	return ok && c.seal(&m, payload)
}

// acknowledge makes a message of its own for what the peer has to know.
func (c *conn) acknowledge() bool {
	ep := c.ep
	ep.mu.Lock()
	due := ep.in.isDue()
	m := message{code: codeAck}
	if due {
		c.putTotals(&m)
	}
	ep.mu.Unlock()
	return due && c.seal(&m, nil)
}

// putTotals puts the totals into a message; the caller holds mu.
func (c *conn) putTotals(m *message) {
	in := &c.ep.in
	m.ack, m.credit = in.base, in.tail
	in.sentAck, in.sentCredit = m.ack, m.credit
}

// seal signs a message and puts it into the batch.
func (c *conn) seal(m *message, payload [][]byte) bool {
	m.encode(&c.extra)
	c.head = wire.Head{Code: m.code, Extra: c.extra[:]}
	from := len(c.heads)
	heads, err := c.session.Seal(c.heads, &c.head, payload...)
	if err != nil {
		c.ep.fail(fmt.Errorf("tcp: %w", err))
		return false
	}
	c.heads = heads
	c.vec.Add(heads[from:])
	if c.crypt != nil {
		payload = c.encrypt(payload)
	}
	into := c.vec
	if c.pin.fits(m, c.head.PayloadBytes) {
		c.pin.vec.Reset()
		into, c.pin.op = c.pin.vec, m.op
	}
	for _, p := range payload {
		into.Add(p)
	}
	return true
}
