package link

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/wire"
)

// conn is what there is between this rank and another one: one TCP connection
// at a time, from the first byte of its handshake on, and what outlives it.
type conn struct {
	rank int // -1 while it is not authenticated
	addr netip.AddrPort
	id   wire.PeerID

	// The goroutine's own, of all connections.
	met        bool      // one was up
	over       bool      // Ended was called, or nothing is to be said any more
	shutdown   bool      // the peer has sent its shutdown notice
	cause      error     // why the last one broke
	tries      int       // to make another one
	failure    error     // of the last dial that failed
	failed     time.Time // when the first one did
	retry      time.Time // when to try next; zero: the peer comes, or is there
	received   uint64    // messages of the peer
	receivedAt time.Time // when the last frame of the peer came
	probe      probe     // of its liveness port

	// The goroutine's own, of the present connection.
	fd           *sys.FD // nil: there is none
	token        uint64
	until        time.Time // when it has to be up
	dialling     bool
	hands        *wire.Handshake
	session      *wire.Session
	split        wire.Splitter
	payload      payload
	begun        bool   // this side has said how much it has received
	resumed      bool   // the peer has
	acknowledged uint64 // how much of received the peer was told of
	out          []byte // sealed
	sent         int    // of out

	mu  sync.Mutex // guards what follows
	up  bool
	box outbox
}

// Errors of what is no conversation between two of us.
var (
	errEOF     = errors.New("the connection has ended")
	errNumbers = errors.New("the peer violates the protocol: its numbers of messages cannot be")
)

func (p *conn) isUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.up
}

func (p *conn) down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.up, p.box = false, outbox{}
}

// push puts a message behind those that wait.
func (p *conn) push(code uint8, message []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.up || code != codeShutdown && len(p.box.buf)+entryBytes+len(message) > maxQueuedBytes {
		return false
	}
	p.box.add(code, message)
	if code == codeShutdown {
		p.up = false // nothing comes after it
	}
	return true
}

// arrived notes how much the peer has received.
func (p *conn) arrived(n uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.box.arrived(n) {
		return errNumbers
	}
	return nil
}

func (p *conn) resume(n uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resumed || !p.box.resume(n) {
		return errNumbers
	}
	p.resumed = true
	return nil
}

// receivedAll: the peer has received all that was said.
func (p *conn) receivedAll() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.box.num == 0
}

// forget makes the state of a connection that of none.
func (p *conn) forget() {
	p.fd, p.token, p.until, p.dialling = nil, 0, time.Time{}, false
	p.hands.Close()
	p.hands, p.session, p.payload, p.split = nil, nil, payload{}, wire.Splitter{}
	p.begun, p.resumed = false, false
	p.out, p.sent = p.out[:0], 0
}

// frame seals something behind what is sealed already. Every frame tells how
// much this side has received.
func (p *conn) frame(code uint8, message []byte) (err error) {
	p.out, err = p.payload.seal(p.out, &wire.Head{Code: code, Request: p.received}, message)
	if err == nil {
		p.acknowledged = p.received
	}
	return err
}

// sealedBytes is about how much is sealed at a time.
const sealedBytes = 16 << 10

// seal takes what is to be written next; nothing if there is nothing.
func (p *conn) seal() error {
	p.out, p.sent = p.out[:0], 0
	if !p.begun {
		p.begun = true
		if err := p.frame(codeResume, nil); err != nil {
			return err
		}
	}
	if !p.resumed {
		return nil // where to go on is not known yet
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.out) < sealedBytes {
		code, message, ok := p.box.take()
		if !ok {
			return nil
		}
		if err := p.frame(code, message); err != nil {
			return err
		}
	}
	return nil
}

// write writes what waits, as far as the socket takes it.
func (c *Controls) write(p *conn) {
	for p.session != nil {
		if p.sent == len(p.out) {
			if err := p.seal(); err != nil { // of a session that is used up
				c.broke(p, err)
				return
			}
			if len(p.out) == 0 {
				return
			}
		}
		n, err := sys.Write(p.fd, p.out[p.sent:])
		if errors.Is(err, sys.ErrAgain) {
			return // the socket says when there is room
		}
		if err != nil {
			c.writeFailed(p, err)
			return
		}
		p.sent += n
	}
}

// writeFailed lets what has arrived be read before the end is told.
func (c *Controls) writeFailed(p *conn, err error) {
	token := p.token
	if c.read(p); p.fd != nil && p.token == token {
		c.broke(p, err)
	}
}

// unacknowledged is how many messages may come before a peer is told.
const unacknowledged = 8

// acknowledge tells peers that have got nothing else how much has come.
func (c *Controls) acknowledge(atLeast uint64) {
	for _, p := range c.peers {
		if p == nil || p.session == nil || !p.begun || p.received-p.acknowledged < atLeast || p.sent < len(p.out) {
			continue
		}
		p.out, p.sent = p.out[:0], 0
		if err := p.frame(codeAck, nil); err != nil {
			c.broke(p, err)
			continue
		}
		c.write(p)
	}
}

// read takes everything that has come.
func (c *Controls) read(p *conn) {
	for token := p.token; p.fd != nil && p.token == token; {
		n, err := sys.Read(p.fd, c.buf)
		switch {
		case errors.Is(err, sys.ErrAgain):
			return
		case err == nil && n == 0:
			err = errEOF
		case err == nil:
			err = c.take(&p, c.buf[:n])
		}
		if err != nil {
			c.leave(p, err)
			return
		}
	}
}

// take is given bytes of the stream; a pending connection becomes a peer's on the way.
func (c *Controls) take(p **conn, in []byte) error {
	for len(in) > 0 && (*p).session == nil {
		if (*p).hands == nil {
			return errEOF // a peer that was only probed says nothing
		}
		n, out, err := (*p).hands.Step(in)
		c.writeHandshake(*p, out)
		if err != nil {
			return err
		}
		if (*p).fd == nil {
			return nil // it has ended, and that was told
		}
		in = in[n:]
		if (*p).hands.Done() {
			if err := c.greet(p); err != nil {
				return err
			}
		}
	}
	for len(in) > 0 {
		var err error
		if in, err = c.parse(*p, in); err != nil {
			return err
		}
	}
	return nil
}

// parse takes the next piece of a message, or of its payload.
func (c *Controls) parse(p *conn, in []byte) (rest []byte, err error) {
	if p.payload.missing == 0 {
		var frame []byte
		if frame, rest, err = p.split.Next(in); err != nil || frame == nil {
			return rest, err
		}
		err = p.payload.begin(frame)
	} else {
		rest, err = p.payload.take(in)
	}
	if err == nil && p.payload.missing == 0 {
		err = c.message(p)
	}
	return rest, err
}

// message is called when a whole one has come.
func (c *Controls) message(p *conn) error {
	if err := p.payload.check(); err != nil {
		return err
	}
	head := &p.payload.head
	if p.over {
		return nil // it has the rest of our numbers with the first frame
	}
	p.receivedAt = time.Now()
	if head.Code == codeResume {
		return p.resume(head.Request)
	}
	if !p.resumed {
		return errNumbers
	}
	if err := p.arrived(head.Request); err != nil {
		return err
	}
	switch head.Code {
	case codeShutdown:
		p.received++
		p.shutdown = true
		if err := p.frame(codeAck, nil); err == nil {
			c.write(p) // a peer that leaves waits for it
		}
		return errEOF
	case codeMessage:
		p.received++
		if !c.leaving {
			c.handler.Received(p.rank, p.payload.bytes)
		}
	}
	return nil
}
