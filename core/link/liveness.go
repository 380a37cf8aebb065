package link

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/moewire/moewire/core/internal/accept"
	"github.com/moewire/moewire/core/internal/sys"
)

// Each rank listens at a second port, its liveness port, at which nothing is ever said.
// It answers one question: whether the system of the rank's host refuses connections
// there. Then the process has ended, since the socket lives as long as the process (a
// forked child closes its copy, see sys.ForkTable). The answer counts only where a
// connection came about before: a firewall may refuse, too. A connection that comes about
// proves nothing, neither here nor at the listener: the process may be stopped, and any
// process may listen at a port that has become free. Only a peer that has authenticated
// is known to live.
//
// The listener's own port cannot do this alone: where another process has taken
// it, it never refuses again, and a given port is closed between rendezvous.

const (
	// probeTicks is after how many ticks of silence a peer's host is asked.
	probeTicks      = 5
	probeFirst      = 20 * time.Millisecond // between two questions
	probeMost       = 200 * time.Millisecond
	probeUnanswered = 10 * time.Second // where none has come about
	probeFor        = time.Second      // no answer means nothing
)

// probe is what is known of a peer's liveness port, and the present question.
type probe struct {
	addr    netip.AddrPort // not valid: there is none
	works   bool           // a connection came about
	fd      *sys.FD        // nil: nothing is asked
	token   uint64
	until   time.Time
	next    time.Time // not before that
	between time.Duration
}

// probeAll asks about the peers that are unresponsive or have lost their connection. It
// returns when to look again, at the latest.
func (c *Controls) probeAll(now, latest time.Time) time.Time {
	for _, p := range c.peers {
		if p == nil || p.over || !p.met || !p.probe.addr.IsValid() {
			continue
		}
		q := &p.probe
		if q.fd != nil && now.After(q.until) {
			c.endProbe(p)
		}
		if q.fd != nil || q.works && !c.missed(p, now) {
			continue
		}
		if !now.Before(q.next) {
			c.ask(p, now)
		}
		if q.fd == nil && q.next.Before(latest) {
			latest = q.next
		}
	}
	return latest
}

// missed reports whether there is reason to ask.
func (c *Controls) missed(p *conn, now time.Time) bool {
	return p.session == nil || now.Sub(p.receivedAt) > probeTicks*c.cfg.Tick
}

// ask begins a question.
func (c *Controls) ask(p *conn, now time.Time) {
	q := &p.probe
	most := probeMost
	if !q.works {
		most = probeUnanswered
	}
	q.between = min(max(2*q.between, probeFirst), most)
	q.until, q.next = now.Add(probeFor), now.Add(q.between)
	fd, err := sys.DialTCP(q.addr, sys.TCPOptions{})
	if fd == nil || err != nil && !errors.Is(err, sys.ErrInProgress) {
		c.answered(p, err)
		return
	}
	c.last++
	if err := c.poller.Add(fd, c.last); err != nil {
		sys.CloseAll(fd)
		return
	}
	q.fd, q.token = fd, c.last
	c.tokens[q.token] = p
}

// finishProbe is called when the socket of a question is ready.
func (c *Controls) finishProbe(p *conn) {
	err := sys.FinishDial(p.probe.fd)
	c.endProbe(p)
	c.answered(p, err)
}

// answered takes the answer. A refusal comes from a system that has ended the
// process; what the process had said before may be here already.
func (c *Controls) answered(p *conn, err error) {
	switch {
	case err == nil:
		p.probe.works, p.probe.between = true, min(p.probe.between, probeMost)
	case p.probe.works && errors.Is(err, sys.ErrNoListener):
		c.dead(p, fmt.Errorf("its host refuses connections to its liveness port: %w", err))
	}
}

// dead ends the conversation with a peer after its process has ended.
func (c *Controls) dead(p *conn, err error) {
	if p.fd != nil && p.session != nil {
		c.read(p)
	}
	c.ended(p, EndExited, err)
}

func (c *Controls) endProbe(p *conn) {
	delete(c.tokens, p.probe.token)
	sys.CloseAll(p.probe.fd)
	p.probe.fd, p.probe.token = nil, 0
}

// takeProbes takes what has come to this rank's own liveness port. What is not
// taken waits in the system, which answers for it: so a failure is none.
func (c *Controls) takeProbes() {
	_ = accept.Take(c.liveness, func(fd *sys.FD) { sys.CloseAll(fd) })
}

// Exited says that the process of a rank has ended, as its host's kernel has told another
// rank. It is like the end of the connection to it.
func (c *Controls) Exited(rank int, err error) {
	if c.peers[rank] == nil {
		return
	}
	c.known[rank].CompareAndSwap(nil, err)
	c.wake()
}

// takeKnown ends the conversations with the peers that are known to be dead.
func (c *Controls) takeKnown() {
	for rank := range c.known {
		if err := c.known[rank].Load(); err != nil && !c.peers[rank].over {
			c.dead(c.peers[rank], err)
		}
	}
}
