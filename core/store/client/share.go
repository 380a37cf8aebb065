package client

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/local"
	"github.com/moewire/moewire/core/store/message"
)

// Carrier says what brings blocks. Everything else goes over the connection.
type Carrier uint8

// The carriers.
const (
	// CarrierAuto is CarrierSHM at servers of this host, else CarrierTCP. A server where the better one
	// itself has failed stays with TCP for as long as the client lives.
	CarrierAuto Carrier = iota
	// CarrierSHM reads blocks where they lie at the server, which copies those of puts from a bounce buffer. A server
	// where blocks cannot be read refuses the client.
	CarrierSHM
	// CarrierTCP has blocks sent.
	CarrierTCP
)

// errElsewhere means that there is no arena of the server on this host.
var errElsewhere = errors.New("the server is on another host, or has nothing that a client can read by itself")

// noCarrier is why the arena of a server cannot be used, though the server is well.
type noCarrier struct{ error }

func (e noCarrier) Unwrap() error { return e.error }

// notNow is why the arena cannot be had at this moment: it says nothing of shared memory.
type notNow struct{ error }

func (e notNow) Unwrap() error { return e.error }

// failure tells what is used up, or late, from what does not work.
func failure(err error) error {
	if sys.IsShortage(err) || errors.Is(err, sys.ErrTimeout) || errors.Is(err, local.ErrWithdrawn) {
		return notNow{err}
	}
	return noCarrier{err}
}

// share gets the server's arena, if it is wanted. An error ends the link.
func (l *link) share(deadline time.Time) error {
	wanted := l.peer.client.cfg.Carrier
	if wanted == CarrierTCP || wanted == CarrierAuto && l.peer.latch(nil) {
		return nil
	}
	found, err := l.invite(halfOf(deadline), func(name []byte) (message.Status, []byte, error) {
		l.table = append(l.table[:0], name...)
		return l.first(message.Share, message.SharedBytes)
	})
	var refused noCarrier
	var later notNow
	switch {
	case err == nil:
		l.attach(found)
		return nil
	case wanted == CarrierSHM && (errors.Is(err, errElsewhere) || errors.As(err, &refused) || errors.As(err, &later)):
		l.peer.client.counts.Refused.Add(1)
		return fmt.Errorf("%w: %s: shared memory: %v", ErrRefused, l.peer.name, err) // a refusal, whatever the cause
	case errors.Is(err, errElsewhere):
		return nil
	case errors.As(err, &refused):
		l.peer.latch(err)
		return nil
	case errors.As(err, &later):
		l.lacks = err
		l.peer.later(err) // before a block comes: a client that is closed soon has heard of it
		return nil
	}
	return err
}

// halfOf is in the middle between now and a deadline: where nothing comes, there is time for something else.
func halfOf(deadline time.Time) time.Time { return time.Now().Add(time.Until(deadline) / 2) }

// given is what a server has given.
type given struct {
	message.Shared
	view      *local.View
	localConn net.Conn      // a shorter way to the server
	bounce    *local.Bounce // for puts over that one; nil: they are sent
}

// invite asks the server for its arena, by way of ask, which says a name to it.
func (l *link) invite(deadline time.Time, ask func(name []byte) (message.Status, []byte, error)) (found given, err error) {
	invitation, err := local.Invite(l.invited)
	if err != nil {
		return found, failure(err)
	}
	invitation.Stop = l.peer.client.stop
	defer func() { _ = invitation.Close() }()
	status, reply, err := ask(invitation.Name[:])
	switch {
	case err != nil:
		return found, err
	case status == message.Miss:
		return found, errElsewhere
	case status == message.Closing: // it ends
		return found, fmt.Errorf("the arena was refused: %v", status)
	case status == message.WouldBlock:
		return found, notNow{fmt.Errorf("%v %s", status, reply)}
	case status.Refuses():
		return found, noCarrier{fmt.Errorf("%v %s", status, reply)}
	}
	if err := found.Decode(reply); err != nil {
		return found, err
	}
	return found, l.await(&found, invitation, deadline)
}

// await waits for what the server gives, and offers it a bounce buffer.
func (l *link) await(found *given, invitation *local.Invitation, deadline time.Time) error {
	invitation.Bounce = bounceBuffer()
	defer func() {
		if found.bounce == nil {
			closeBounce(invitation.Bounce)
		}
	}()
	fd, socket, err := invitation.Await(deadline)
	switch {
	case errors.Is(err, local.ErrStopped):
		return ErrClosed
	case err != nil:
		return failure(err)
	}
	if found.localConn, err = local.Conn(socket); err != nil {
		return failure(errors.Join(err, fd.Close()))
	}
	found.view, err = local.NewView(fd, int64(found.ArenaBytes), l.opened.Storage == storageMemory)
	if err != nil {
		return failure(errors.Join(fmt.Errorf("the server's arena: %w", err), found.localConn.Close()))
	}
	if invitation.Taken {
		found.bounce = invitation.Bounce
	}
	return nil
}

// attach gives the link the arena, and the way that has come with it.
func (l *link) attach(found given) {
	l.view, l.localConn, l.bounce, l.arenaBytes = found.view, found.localConn, found.bounce, found.ArenaBytes
	l.hold = time.Duration(min(found.HoldUs, 1<<32)) * time.Microsecond
}

// storageMemory is what a server says if its arena is memory.
const storageMemory = 1

// latch reports whether blocks of the server come by TCP from now on: with an error they do, which is said once.
func (p *peer) latch(err error) bool {
	if err != nil && p.latched.CompareAndSwap(nil, err) {
		p.client.counts.Latched.Add(1)
		p.client.cfg.Warn(fmt.Sprintf("%s: blocks come by TCP from now on, not by shared memory: %v", p.name, err))
	}
	return p.latched.Load() != nil
}

// Carriers says by name of each server that there is what brings its blocks: "shm" or "tcp".
func (c *Client) Carriers() map[string]string {
	found := map[string]string{}
	for _, p := range c.peers {
		switch l, _ := p.live(); {
		case l == nil:
		case l.hasView() && !p.latch(nil):
			found[p.name] = "shm"
		default:
			found[p.name] = "tcp"
		}
	}
	return found
}

// placed reports whether a part asks for where blocks lie.
func (l *link) placed(t *part) bool {
	if l.view == nil || t.again {
		return false
	}
	if t.code != message.Get {
		return t.code == message.Lookup
	}
	return l.brings()
}

// brings reports whether shared memory brings blocks, where there is some.
func (l *link) brings() bool {
	return l.peer.client.cfg.Carrier == CarrierSHM || !l.peer.latch(nil)
}
