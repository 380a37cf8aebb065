package link

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/wire"
)

// conn is one control connection, from the first byte of its handshake on.
type conn struct {
	rank     int // -1 while it is a stranger's
	addr     netip.AddrPort
	id       wire.PeerID
	fd       *sys.FD
	token    uint64
	until    time.Time // a stranger's
	dialling bool
	over     bool // Ended was called
	bye      bool // the peer has said it

	// The goroutine's own.
	hands   *wire.Handshake
	session *wire.Session
	split   wire.Splitter
	digest  *wire.Digest
	head    wire.Head // of the message whose payload is coming
	payload []byte
	missing int

	mu     sync.Mutex // guards what follows
	up     bool
	queue  []byte // sealed, not written
	sealed []byte
}

var errEOF = errors.New("the connection has ended")

func (p *conn) isUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.up
}

func (p *conn) down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.up, p.queue = false, nil
}

// push seals a message behind those that wait.
func (p *conn) push(code uint8, message []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.up || len(p.queue)+len(message)+wire.MaxFrameBytes > maxQueuedBytes {
		return false
	}
	frame, err := p.session.Seal(p.sealed[:0], &wire.Head{Code: code}, message)
	if err != nil {
		return false // of a session that is used up; the silence will tell
	}
	p.sealed = frame
	p.queue = append(append(p.queue, frame...), message...)
	return true
}

// waiting is what has not been written.
func (p *conn) waiting() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue
}

// written forgets the first n bytes. Only the goroutine takes bytes off.
func (p *conn) written(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue[:0], p.queue[n:]...)
}

// wire says how handshakes go.
func (c *Controls) wire(peer wire.PeerID) wire.Config {
	return wire.Config{
		Keys: c.cfg.Keys, Self: c.cfg.ID, Peer: peer, Ordered: true, MaxPayloadBytes: MaxControlBytes,
		Codes: wire.Codes(codeMessage, codeBye), Guard: c.guard, Counters: c.cfg.Counters,
		Accept: func(p wire.Peer) ([]byte, error) {
			if rank, known := c.who[p.ID]; !known || peer == (wire.PeerID{}) && rank < c.cfg.Rank {
				return nil, wire.ErrPeer
			}
			return nil, nil
		},
	}
}

// dial begins to connect.
func (c *Controls) dial(p *conn) (err error) {
	if p.hands, err = wire.NewHandshake(wire.RoleClient, c.wire(p.id)); err != nil {
		return err
	}
	p.fd, err = sys.DialTCP(p.addr, sys.TCPOptions{NoDelay: true})
	if err != nil && !errors.Is(err, sys.ErrInProgress) {
		return err
	}
	p.dialling = true
	return c.register(p)
}

func (c *Controls) finishDial(p *conn) {
	p.dialling = false
	if err := sys.FinishDial(p.fd); err != nil {
		c.ended(p, err)
		return
	}
	c.say(p, p.hands.Start())
}

// say writes bytes of a handshake, which fit any socket's buffer.
func (c *Controls) say(p *conn, out []byte) {
	for len(out) > 0 {
		n, err := sys.Write(p.fd, out)
		if err != nil {
			c.leave(p, err)
			return
		}
		out = out[n:]
	}
}

// leave ends a connection, whoever's it is.
func (c *Controls) leave(p *conn, err error) {
	if p.rank < 0 {
		c.drop(p)
		return
	}
	c.ended(p, err)
}

// accept takes all connections that are there. The oldest stranger makes room
// for a new one.
func (c *Controls) accept() {
	for {
		fd, err := sys.Accept(c.door)
		if err != nil {
			return
		}
		_ = sys.SetTCP(fd, sys.TCPOptions{NoDelay: true})
		if len(c.strangers) == maxStrangers {
			c.drop(c.strangers[0])
		}
		hands, err := wire.NewHandshake(wire.RoleServer, c.wire(wire.PeerID{}))
		p := &conn{rank: -1, fd: fd, hands: hands, until: time.Now().Add(c.cfg.HandshakeTimeout)}
		if err == nil {
			err = c.register(p)
		}
		if err != nil {
			sys.CloseAll(fd)
			continue
		}
		c.strangers = append(c.strangers, p)
	}
}

// read takes everything that has come.
func (c *Controls) read(p *conn) {
	for p.fd.Raw() >= 0 && !p.over {
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

// take is given bytes of the stream; a stranger becomes a peer on the way.
func (c *Controls) take(p **conn, in []byte) error {
	for len(in) > 0 && (*p).session == nil {
		n, out, err := (*p).hands.Step(in)
		c.say(*p, out)
		if err != nil {
			return err
		}
		if (*p).fd.Raw() < 0 || (*p).over {
			return errEOF
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

// greet finds out whose connection this is.
func (c *Controls) greet(p **conn) error {
	q := *p
	if q.rank < 0 {
		peer := c.peers[c.who[q.hands.Peer().ID]]
		if peer.fd != nil {
			return wire.ErrPeer // it is here already
		}
		c.forget(q)
		peer.fd, peer.token, peer.hands = q.fd, q.token, q.hands
		c.tokens[peer.token] = peer
		*p, q = peer, peer
	}
	q.session = q.hands.Session()
	q.hands = nil
	q.digest = q.session.NewDigest()
	q.mu.Lock()
	q.up = true
	q.mu.Unlock()
	c.lock()
	c.handler.Up(q.rank)
	return nil
}

// parse takes the next piece of a message, or of its payload.
func (c *Controls) parse(p *conn, in []byte) (rest []byte, err error) {
	if p.missing == 0 {
		frame, rest, err := p.split.Next(in)
		if err != nil || frame == nil {
			return rest, err
		}
		if p.head, err = p.session.OpenHead(frame); err != nil {
			return nil, err
		}
		p.digest.Begin(&p.head)
		p.payload, p.missing = p.payload[:0], int(p.head.PayloadBytes)
		if p.missing == 0 {
			return rest, c.message(p)
		}
		return rest, nil
	}
	n := min(p.missing, len(in))
	p.digest.Write(in[:n])
	p.payload = append(p.payload, in[:n]...)
	if p.missing -= n; p.missing == 0 {
		err = c.message(p)
	}
	return in[n:], err
}

// message is called when a whole one has come.
func (c *Controls) message(p *conn) error {
	if err := p.digest.Check(); err != nil {
		return err
	}
	if p.head.Code == codeBye {
		p.bye = true
		return nil
	}
	c.handler.Heard(p.rank, p.payload)
	return nil
}

// write writes what waits, as far as the socket takes it.
func (c *Controls) write(p *conn) {
	for !p.over {
		out := p.waiting()
		if len(out) == 0 {
			return
		}
		n, err := sys.Write(p.fd, out)
		if errors.Is(err, sys.ErrAgain) {
			return // the socket says when there is room
		}
		if err != nil {
			c.writeFailed(p, err)
			return
		}
		p.written(n)
	}
}

// writeFailed lets what has arrived be read before the end is told.
func (c *Controls) writeFailed(p *conn, err error) {
	c.read(p)
	if !p.over {
		c.ended(p, err)
	}
}
