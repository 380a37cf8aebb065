package tcp

import (
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// receiver is the receiving half of a socket: it cuts what arrives into
// messages and brings payloads to their places.
type receiver struct {
	buf  []byte // headers, short payloads, and what arrives with them
	r, w int    // of buf, what is not consumed
	vec  *sys.Vector

	digest *wire.Digest    // or
	crypt  *wire.Decryptor // under wire.ProtectEncrypt

	// The message of which the payload is arriving, if active.
	active bool
	drop   bool // it is not wanted: the region was closed meanwhile
	m      message
	bytes  int // of the payload
	left   int // that have not come, as they are on the wire
	all    [numPieces][]byte
	num    int
	rest   [numPieces][]byte // what of all has not been filled
	from   int               // first of rest
	region *region           // of all, if it can be closed meanwhile

	fed   int // bytes of the payload that the digest has seen
	piece int // of all, where these end
	off   int // in that piece

	bulk  bool // the last payload was a long one
	least int  // bytes for which the kernel wakes us; 0: not set

	forgotten int // bytes, after a refusal
}

func (x *receiver) init(s *wire.Session) {
	x.vec = sys.NewVector(numPieces + 1)
	x.buf = make([]byte, bufferBytes)
	if s.Protection() == wire.ProtectEncrypt {
		x.buf = make([]byte, 4*bufferBytes) // all goes through it
		x.crypt = s.NewDecryptor()
		return
	}
	x.digest = s.NewDigest()
}

var (
	errEnded  = errors.New("tcp: the peer has closed the connection")
	errRegion = errors.New("region is closed")
)

// receive reads what has arrived, up to a turn; it returns whether there may
// be more.
func (c *conn) receive() (more bool) {
	for moved := 0; moved < turnBytes; {
		c.readable.Store(false) // before the call: the poller may set it during it
		n, asked, err := c.read()
		if err == sys.ErrAgain {
			c.expect()
			return false
		}
		if err != nil {
			c.lost(err)
			return false
		}
		moved += n
		if c.ep.refused {
			if !c.forget(n) {
				return false
			}
		} else if err := c.consume(); err != nil {
			c.lost(err)
			return false
		}
		if len(c.ep.conns) == 0 {
			return false // ended
		}
		if n < asked && !c.ended.Load() {
			c.expect()
			return false // the socket is empty
		}
		c.readable.Store(true)
	}
	return true
}

// expect has the kernel wake us only when enough of a long payload is there: a goroutine
// that wakes up for every packet of it does little else.
func (c *conn) expect() {
	x := &c.rx
	least := 1
	if x.active && x.left >= longBytes {
		least = min(x.left, leastBytes)
	}
	if least == max(x.least, 1) {
		return
	}
	if sys.SetLeast(c.fd, least) == nil {
		x.least = least
	}
}

// lost ends the endpoint, if consume has not yet. A peer that refuses a request says so
// on one socket and then ends all of them: so the bytes that the others have come first.
func (c *conn) lost(err error) {
	ep := c.ep
	if ep.linger {
		ep.mu.Lock()
		ep.closeConns()
		ep.mu.Unlock()
		return
	}
	if ep.losing {
		return // the goroutine that is draining goes on
	}
	ep.losing = true
	for i := 0; i < len(ep.conns); i++ {
		if other := ep.conns[i]; other != c {
			other.drain()
		}
	}
	ep.losing = false
	ep.fail(err)
}

// drain reads what has arrived, bounded like what is forgotten.
func (c *conn) drain() {
	for range lingerBytes / turnBytes {
		if !c.receive() {
			return
		}
	}
}

// forget drops what comes after a refusal. The socket stays open so that the
// refusal arrives: closing it with bytes unread would reset the connection.
func (c *conn) forget(n int) bool {
	x := &c.rx
	x.r, x.w = 0, 0
	x.forgotten += n
	if x.forgotten > lingerBytes {
		c.lost(errEnded)
		return false
	}
	return true
}

// read makes one call: into the payload's place, and behind it into buf.
func (c *conn) read() (n, asked int, err error) {
	x := &c.rx
	x.vec.Reset()
	if c.ep.refused {
		x.active, x.r, x.w = false, 0, 0
	}
	straight := 0
	if x.active && !x.drop && x.crypt == nil {
		if x.region != nil {
			x.region.mu.RLock()
			defer x.region.mu.RUnlock()
			x.drop = x.region.closed
		}
		if !x.drop {
			straight = x.left
			for _, p := range x.rest[x.from:x.num] {
				x.vec.Add(p)
			}
		}
	}
	x.vec.Add(x.buf[x.w:x.fillLimit(straight)])
	asked = x.vec.Bytes()
	n, err = sys.ReceiveVector(c.fd, x.vec)
	if n == 0 && err == nil {
		return 0, asked, errEnded
	}
	if err != nil {
		if err != sys.ErrAgain {
			err = fmt.Errorf("tcp: connection broke: %w", err)
		}
		return 0, asked, err
	}
	into := min(n, straight)
	x.advance(into)
	x.left -= into
	x.w += n - into
	return n, asked, nil
}

// fillLimit is how far buf may be filled: among long payloads only by the next
// header, because what follows that goes to its own place.
func (x *receiver) fillLimit(straight int) int {
	if straight >= longBytes || !x.active && x.bulk && x.crypt == nil {
		return min(len(x.buf), x.w+2*wire.MaxFrameBytes)
	}
	return len(x.buf)
}

// consume goes through what is in buf, and ends payloads that are complete.
func (c *conn) consume() error {
	x := &c.rx
	for !c.ep.refused && c.ep.is(transport.StateReady) {
		if x.active {
			if err := c.takePayload(); err != nil {
				return err
			}
			if x.active {
				break // more has to come
			}
			continue
		}
		ok, err := c.takeHead()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
	}
	x.w = copy(x.buf, x.buf[x.r:x.w])
	x.r = 0
	return nil
}

// takePayload moves payload out of buf, and ends it when it is complete.
func (c *conn) takePayload() error {
	x := &c.rx
	n := min(x.left, x.w-x.r)
	if n > 0 {
		if err := x.put(x.buf[x.r:][:n]); err != nil {
			return err
		}
		x.r += n
		x.left -= n
	}
	if x.left > 0 {
		if x.crypt == nil {
			x.feedWhole()
		}
		return nil
	}
	return c.endPayload()
}

// endPayload checks the payload before it is reported.
func (c *conn) endPayload() error {
	x := &c.rx
	err := x.check()
	x.active = false
	clear(x.all[:x.num])
	clear(x.rest[:x.num])
	x.region = nil
	if err == errRegion {
		c.ep.refuse(&x.m)
		return nil
	}
	if err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	c.ep.complete(&x.m, x.bytes)
	return nil
}

// takeHead opens the next header in buf, if it is there as a whole.
func (c *conn) takeHead() (ok bool, err error) {
	x := &c.rx
	have := x.buf[x.r:x.w]
	if len(have) < wire.LengthBytes {
		return false, nil
	}
	n, err := c.session.FrameBytes(have)
	if err != nil {
		return false, fmt.Errorf("tcp: %w", err)
	}
	if len(have) < n {
		return false, nil
	}
	h, err := c.session.OpenHead(have[:n])
	if err != nil {
		return false, fmt.Errorf("tcp: %w", err)
	}
	x.r += n
	m, ok := decodeMessage(&h)
	if !ok {
		c.ep.violate("a message with impossible fields")
		return false, nil
	}
	return true, c.begin(&m, &h)
}

// begin acts on a genuine header.
func (c *conn) begin(m *message, h *wire.Head) error {
	x, n := &c.rx, int(h.PayloadBytes)
	list, r, v := c.ep.arrive(m, n, x.all[:0])
	if v == violation {
		c.ep.violate("a message that cannot come now")
		return nil
	}
	if v == refuse {
		c.ep.refuse(m)
		return nil
	}
	if c.ep.is(transport.StateError) || m.code == codeAck {
		return nil
	}
	if n == 0 {
		c.ep.complete(m, 0)
		return nil
	}
	x.m, x.bytes, x.left, x.region = *m, n, int(c.session.PayloadWireBytes(h)), r
	x.num, x.from, x.active, x.drop = len(list), 0, true, false
	x.bulk, x.fed, x.piece, x.off = n >= longBytes, 0, 0, 0
	copy(x.rest[:], list)
	if x.crypt != nil {
		return x.crypt.Begin(h, x.all[:x.num])
	}
	x.digest.Begin(h)
	return nil
}
