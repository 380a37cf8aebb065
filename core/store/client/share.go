package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/store/local"
	"github.com/moewire/moewire/core/store/message"
)

// Carrier says what brings the blocks of a get. Everything else goes over the connection.
type Carrier uint8

// The carriers.
const (
	// CarrierAuto is CarrierSHM at servers of this host, else CarrierTCP. A server where the better one
	// itself has failed stays with TCP for as long as the client lives.
	CarrierAuto Carrier = iota
	// CarrierSHM reads blocks where they lie at the server. A server where that cannot be refuses the client.
	CarrierSHM
	// CarrierTCP has servers send blocks.
	CarrierTCP
)

// errElsewhere means that there is no arena of the server on this host.
var errElsewhere = errors.New("the server is on another host, or has nothing that a client can read by itself")

// noCarrier is why the arena of a server cannot be used, though the server is well.
type noCarrier struct{ error }

func (e noCarrier) Unwrap() error { return e.error }

// share gets the server's arena, if it is wanted. An error ends the link.
func (l *link) share(deadline time.Time) error {
	wanted := l.peer.client.cfg.Carrier
	if wanted == CarrierTCP || wanted == CarrierAuto && l.peer.latch(nil) {
		return nil
	}
	err := l.invite(deadline)
	var refused noCarrier
	switch {
	case err == nil:
		return nil
	case wanted == CarrierSHM && (errors.Is(err, errElsewhere) || errors.As(err, &refused)):
		l.peer.client.counts.Refused.Add(1)
		return fmt.Errorf("%w: %s: shared memory: %v", ErrRefused, l.peer.name, err) // a refusal, whatever the cause
	case errors.Is(err, errElsewhere):
		return nil
	case errors.As(err, &refused):
		l.peer.latch(err)
		return nil
	}
	return err
}

// invite asks the server for its arena.
func (l *link) invite(deadline time.Time) error {
	invitation, err := local.Invite(l.invited)
	if err != nil {
		return noCarrier{err}
	}
	defer func() { _ = invitation.Close() }()
	l.table = append(l.table[:0], invitation.Name[:]...)
	status, reply, err := l.first(message.Share, message.SharedBytes)
	switch {
	case err != nil:
		return err
	case status == message.Miss:
		return errElsewhere
	case status == message.WouldBlock || status == message.Closing: // the server has no time now
		return fmt.Errorf("the arena was refused: %v", status)
	case status.Refuses():
		return noCarrier{fmt.Errorf("%v %s", status, reply)}
	}
	var shared message.Shared
	if err := shared.Decode(reply); err != nil {
		return err
	}
	fd, socket, err := invitation.Await(deadline)
	if err != nil {
		return noCarrier{err}
	}
	if l.near, err = local.Conn(socket); err != nil {
		return noCarrier{errors.Join(err, fd.Close())}
	}
	l.arenaBytes = shared.ArenaBytes
	l.hold = time.Duration(min(shared.HoldUs, 1<<32)) * time.Microsecond
	l.view, err = local.NewView(fd, int64(shared.ArenaBytes), l.opened.Storage == storageMemory)
	if err != nil {
		return noCarrier{errors.Join(err, l.near.Close())}
	}
	return nil
}

// storageMemory is what a server says whose arena is memory.
const storageMemory = 1

// latch reports whether blocks of the server come by TCP from now on: with an error they do, which is said once.
func (p *peer) latch(err error) bool {
	if err != nil && p.latched.CompareAndSwap(nil, &err) {
		p.client.counts.Latched.Add(1)
		p.client.cfg.Warn(fmt.Sprintf("%s: blocks come by TCP from now on, not by shared memory: %v", p.name, err))
	}
	return p.latched.Load() != nil
}

// Carriers says by name of each server that there is what brings its blocks: "shm" or "tcp".
func (c *Client) Carriers() map[string]string {
	found := map[string]string{}
	for _, p := range c.peers {
		p.mu.Lock()
		l := p.link
		p.mu.Unlock()
		switch {
		case l == nil:
		case l.view != nil && !p.latch(nil):
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
	return l.peer.client.cfg.Carrier == CarrierSHM || !l.peer.latch(nil)
}
