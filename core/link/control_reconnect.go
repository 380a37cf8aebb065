package link

import (
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/wire"
)

// A connection may break though both processes live: a device in between forgets it, a
// route changes, an attacker forges a reset. So it is reconnected, between the same two
// ids, and goes on behind the last message that has arrived. The end of a process looks
// the same at first. But then the system refuses a new connection, because no socket
// listens there any more. That refusal, and not the end of a connection, says that the
// process has ended. Where another process has taken the port, its liveness port says it.
//
// The higher rank dials, as in the beginning. The lower one only asks whether
// the other still listens.

// Bounds of new attempts.
const (
	retryFirst = time.Millisecond
	retryMost  = 100 * time.Millisecond
	// firstTries is how often a connection is begun with a rank that has never answered.
	// The listener drops pending connections when there are too many, and a network may
	// have come back a moment ago.
	firstTries = 8
	// firstFor bounds them, too: a dial without an answer takes seconds.
	firstFor = 2 * time.Second
)

// dial begins to connect, or asks a higher rank whether it is there.
func (c *Controls) dial(p *conn) (err error) {
	if p.rank < c.cfg.Rank {
		if p.hands, err = wire.NewHandshake(wire.RoleClient, c.wire(p.id)); err != nil {
			return err
		}
	}
	p.fd, err = sys.DialTCP(p.addr, sys.TCPOptions{NoDelay: true})
	if err != nil && !errors.Is(err, sys.ErrInProgress) {
		return err
	}
	p.dialling = true
	if p.tries > 0 {
		p.until = time.Now().Add(c.cfg.HandshakeTimeout)
	}
	return c.register(p)
}

func (c *Controls) finishDial(p *conn) {
	p.dialling = false
	if err := sys.FinishDial(p.fd); err != nil {
		c.refused(p, err)
		return
	}
	if p.hands == nil { // a socket listens there, and the rank will come if it is the peer
		c.detach(p)
		c.later(p)
		return
	}
	c.writeHandshake(p, p.hands.Start())
}

// refused: a dial has failed. Where a network has just come back, the system may
// still say for a moment that there is no way.
func (c *Controls) refused(p *conn, err error) {
	c.detach(p)
	if sys.IsShortage(err) {
		c.lacks(err)
	}
	if p.failure = err; p.failed.IsZero() {
		p.failed = time.Now()
	}
	noListener := errors.Is(err, sys.ErrNoListener)
	switch {
	case noListener && p.cause != nil:
		c.ended(p, EndExited, fmt.Errorf("%w; then %w", p.cause, err))
	case p.met, !noListener && p.tries < firstTries && time.Since(p.failed) < firstFor:
		c.later(p)
	default:
		c.ended(p, EndBroken, err)
	}
}

// broke notes that a connection to a rank has ended, without a shutdown notice if not
// after one.
func (c *Controls) broke(p *conn, err error) {
	gone := errors.Is(err, errEOF) || errors.Is(err, sys.ErrReset)
	c.detach(p)
	switch {
	case p.over:
	case p.shutdown:
		c.ended(p, EndShutdown, err)
	case errors.Is(err, errNumbers):
		c.ended(p, EndBroken, err)
	case p.addr.IsValid() && (p.met || (gone || garbled(err)) && p.tries < firstTries):
		p.cause = err
		c.later(p)
	case gone:
		c.ended(p, EndExited, err)
	default:
		c.ended(p, EndBroken, err)
	}
}

// garbled reports whether a frame of a handshake is none that its signer has sent: it
// was changed on its way, perhaps. (A peer with another key says nothing at all.)
func garbled(err error) bool {
	return errors.Is(err, wire.ErrMAC) || errors.Is(err, wire.ErrKeyID) || errors.Is(err, wire.ErrLength)
}

// timeout says that nothing was heard in time, and what a dial before said.
func (p *conn) timeout() error {
	if p.failure == nil {
		return sys.ErrTimeout
	}
	return fmt.Errorf("%w, after an attempt that failed: %v", sys.ErrTimeout, p.failure)
}

// later tries again: at once at first.
func (c *Controls) later(p *conn) {
	p.retry = time.Now()
	if p.tries++; p.tries > 1 {
		p.retry = p.retry.Add(min(retryFirst<<min(p.tries, 16), retryMost))
	}
}

// reconnect dials again where connections broke, and gives up those that do not come about.
// It returns when to look again, at the latest.
func (c *Controls) reconnect(now, latest time.Time) time.Time {
	for _, p := range c.peers {
		if p == nil || p.over {
			continue
		}
		if p.fd != nil {
			if !p.until.IsZero() && now.After(p.until) {
				c.broke(p, p.timeout())
			}
		} else if !p.retry.IsZero() && !now.Before(p.retry) {
			if err := c.dial(p); err != nil {
				c.refused(p, err)
			}
		}
		if p.fd == nil && !p.over && !p.retry.IsZero() && p.retry.Before(latest) {
			latest = p.retry
		}
	}
	return latest
}

// detach closes the present connection.
func (c *Controls) detach(p *conn) {
	delete(c.tokens, p.token)
	sys.CloseAll(p.fd)
	p.forget()
}

// ended notes the end of all connections with a rank.
func (c *Controls) ended(p *conn, how Ending, err error) {
	if p.over {
		return
	}
	p.over = true
	p.down()
	c.detach(p)
	c.endProbe(p)
	if !c.leaving {
		c.handler.Ended(p.rank, how, fmt.Errorf("link: control connection to rank %d: %w", p.rank, err))
	}
}

// partFor bounds how long Close waits until every peer has the shutdown notice. It is
// longer than a lost packet takes to be sent again.
const partFor = 500 * time.Millisecond

// part sends a shutdown notice behind all that was said before. What is heard from here
// on is dropped.
func (c *Controls) part(now time.Time) {
	c.leaving, c.until = true, now.Add(partFor)
	for _, p := range c.peers {
		if p != nil && !p.over && !p.push(codeShutdown, nil) {
			c.ended(p, EndShutdown, errEOF) // a peer that has never been there
		}
	}
}

// parted reports whether every peer has the shutdown notice.
func (c *Controls) parted() bool {
	for _, p := range c.peers {
		if p != nil && !p.over && !p.receivedAll() {
			return false
		}
	}
	return true
}

// leaveRest ends the connections of peers that have not taken the shutdown notice. It
// still arrives, unless unread bytes are left here: then the system would cut it off.
func (c *Controls) leaveRest() {
	for _, p := range c.peers {
		if p != nil && p.session != nil && !p.over {
			if c.read(p); p.fd != nil {
				_ = sys.ShutdownWrite(p.fd)
			}
		}
	}
}
