package link

import (
	"time"

	"github.com/moewire/moewire/core/internal/accept"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/wire"
)

// wire says how handshakes go.
func (c *Controls) wire(peer wire.PeerID) wire.Config {
	return wire.Config{
		Keys: c.cfg.Keys, Self: c.cfg.ID, Peer: peer, Protection: c.cfg.Protection, Ordered: true, MaxPayloadBytes: MaxControlBytes,
		Codes: wire.Codes(codeMessage, codeShutdown, codeResume, codeAck), Guard: c.guard, Counters: c.cfg.Counters,
		Accept: func(p wire.Peer) ([]byte, error) {
			if rank, known := c.who[p.ID]; !known || peer == (wire.PeerID{}) && rank < c.cfg.Rank {
				return nil, wire.ErrPeer
			}
			return nil, nil
		},
	}
}

// accept takes connections that are there. When that fails, for want of descriptors for
// instance, the listener is left alone until the next tick.
func (c *Controls) accept() {
	if err := accept.Take(c.listener, c.admit); err != nil {
		c.lacks(err)
		_ = c.poller.Remove(c.listener)
		c.resting = true
	}
}

// admit makes a pending connection of a socket.
func (c *Controls) admit(fd *sys.FD) {
	_ = sys.SetTCP(fd, sys.TCPOptions{NoDelay: true})
	hands, err := wire.NewHandshake(wire.RoleServer, c.wire(wire.PeerID{}))
	p := &conn{rank: -1, fd: fd, hands: hands}
	if err == nil {
		err = c.register(p)
	}
	if err != nil {
		c.lacks(err)
		hands.Close()
		sys.CloseAll(fd)
		return
	}
	c.pending.Add(p)
}

// reopen looks at a listener again that was left alone.
func (c *Controls) reopen() {
	if c.resting && c.listener.Raw() >= 0 {
		c.resting = c.poller.AddLevel(c.listener, listenerToken) != nil
	}
}

// greet finds out which rank this connection is from. If that rank has a connection here
// already, it has lost that one and knows it before us. A rank that has sent a shutdown
// notice does not know yet that we have it.
func (c *Controls) greet(p **conn) error {
	q := *p
	if q.rank < 0 {
		peer := c.peers[c.who[q.hands.Peer().ID]]
		if peer.over && !peer.shutdown {
			return wire.ErrPeer
		}
		c.detach(peer)
		c.pending.Remove(q)
		peer.fd, peer.token, peer.hands = q.fd, q.token, q.hands
		c.tokens[peer.token] = peer
		*p, q = peer, peer
	}
	q.session = q.hands.Session()
	q.hands, q.until, q.retry, q.tries = nil, time.Time{}, time.Time{}, 0
	q.payload = newPayload(q.session)
	if q.met {
		c.reconnects.Add(1)
		return nil
	}
	q.met, q.failure = true, nil
	q.mu.Lock()
	q.up = true
	q.mu.Unlock()
	c.handler.Up(q.rank)
	return nil
}

// writeHandshake writes bytes of a handshake, which fit any socket's buffer.
func (c *Controls) writeHandshake(p *conn, out []byte) {
	for len(out) > 0 {
		n, err := sys.Write(p.fd, out)
		if err != nil {
			c.leave(p, err)
			return
		}
		out = out[n:]
	}
}

// leave ends a connection, whichever rank it is to.
func (c *Controls) leave(p *conn, err error) {
	if p.rank < 0 {
		c.pending.Remove(p)
		c.detach(p)
		return
	}
	c.broke(p, err)
}

// register gives a socket a token of its own.
func (c *Controls) register(p *conn) error {
	c.last++
	p.token = c.last
	if err := c.poller.Add(p.fd, p.token); err != nil {
		return err
	}
	c.tokens[p.token] = p
	return nil
}

// CloseListener gives the listener's address up. Connections that break from
// then on are not reconnected from the other side, and look like the end of
// this process. Idempotent.
func (c *Controls) CloseListener() {
	c.closing.Store(true)
	c.wake()
	select {
	case <-c.listenerClosed:
	case <-c.done:
	}
}

// closeListener is CloseListener on the goroutine.
func (c *Controls) closeListener() {
	if c.listener.Raw() >= 0 {
		sys.CloseAll(c.listener)
		close(c.listenerClosed)
	}
}
