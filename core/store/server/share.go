package server

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/local"
	"github.com/moewire/moewire/core/store/message"
)

// Arena is where the blocks of a store lie, one behind the other, as medium.Memory and medium.Files are.
type Arena interface {
	// Size is how many bytes it has.
	Size() int64
	// Share makes a descriptor by which it can be read and not be changed. The caller closes it.
	Share() (*sys.FD, error)
}

// share gives the arena's descriptor to a client that waits for it on this host. Miss: the client does not wait here, or
// there is no arena that it may have. OK: the client has to prove itself now, and then the descriptors come. Until the client has them it
// gets no others: descriptors that no client takes wait in the kernel, which bounds them for all of a user's processes.
func (c *conn) share(j *job) message.Status {
	arena := c.server.cfg.Arena
	switch {
	case arena == nil, c.rights.IsLimited(): // its holder can read all namespaces
		return message.Miss
	case c.handover.Load() != nil:
		return message.WouldBlock
	}
	h, err := c.approach(arena, [message.NameBytes]byte(j.in))
	switch {
	case errors.Is(err, local.ErrElsewhere):
		return message.Miss
	case sys.IsShortage(err), errors.Is(err, sys.ErrAgain): // of descriptors, or of room at the client's socket
		j.say(err.Error())
		return message.WouldBlock
	case err != nil:
		return j.refusal(err)
	}
	c.handover.Store(h)
	deadline := time.Now().Add(c.server.cfg.Handshake)
	c.others.Add(1)
	safego.Go("store: arena", func() {
		defer c.others.Done()
		c.hand(h, deadline)
	}, c.report)
	said := message.Shared{ArenaBytes: uint64(arena.Size()), HoldUs: uint64(c.server.cfg.Hold / time.Microsecond)}
	j.out = said.Append(j.out)
	return message.OK
}

// handover is what a client is about to get: the arena, and a socket; at its other end there may be a session as over
// one that was accepted; and what it gives for that one.
type handover struct {
	delivery            *local.Delivery
	arena, ours, theirs *sys.FD
	bounce              *local.View // nil: nothing, or nothing that this side takes
}

// approach makes what a client gets, and a way to it.
func (c *conn) approach(arena Arena, name [message.NameBytes]byte) (*handover, error) {
	d, err := local.Approach(name, c.invited)
	if err != nil {
		return nil, err
	}
	h := &handover{delivery: d}
	if h.arena, err = arena.Share(); err == nil {
		h.ours, h.theirs, err = sys.StreamPair()
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func (h *handover) close() {
	_ = h.delivery.Close()
	sys.CloseAll(h.arena, h.ours, h.theirs)
	if h.bounce != nil {
		_ = h.bounce.Close()
	}
}

// hand waits for the client's proof, sends what it gets, and waits until the client has it.
func (c *conn) hand(h *handover, deadline time.Time) {
	defer h.close()
	bounce, err := h.delivery.Await(deadline)
	if err == nil {
		h.bounce = c.view(bounce)
		err = c.give(h)
	}
	sent := err == nil
	if sent {
		err = h.delivery.Taken(deadline)
	}
	if err != nil {
		c.notHanded(err)
	}
	if !sent || err == nil { // else they are in the kernel: the client has had its share
		c.handover.Store(nil)
	}
}

// view maps the bounce buffer of a client that has proved itself. nil: there is none, or the client has to send blocks.
func (c *conn) view(bounce *sys.FD) *local.View {
	if bounce == nil {
		return nil
	}
	v, err := local.ViewBounce(bounce)
	if err != nil {
		c.server.logRare(&c.server.unshared, fmt.Sprintf("%v has to send its puts: its bounce buffer: %v", c.nc.RemoteAddr(), err))
		return nil
	}
	return v
}

// give sends what a client gets that has proved itself.
func (c *conn) give(h *handover) error {
	had := c.shared.Swap(true) // it may ask for places as soon as it has the arena
	if err := h.delivery.Send(h.arena, h.theirs, h.bounce != nil); err != nil {
		c.shared.Store(had)
		return err
	}
	sys.CloseAll(h.arena, h.theirs)
	nc, err := sys.UnixNet(h.ours)
	if err == nil {
		c.server.admit(&localConn{nc, c.nc.RemoteAddr(), h.bounce})
		h.bounce = nil
	}
	return nil // the arena is there: the session may stay where it is
}

// notHanded counts and logs why a client has not got the arena.
func (c *conn) notHanded(err error) {
	switch {
	case errors.Is(err, net.ErrClosed): // with the connection
		return
	case errors.Is(err, local.ErrImpostor):
		c.server.counters.Unauthenticated.Add(1)
	}
	c.server.logRare(&c.server.unshared, fmt.Sprintf("%v has not got the arena: %v", c.nc.RemoteAddr(), err))
}

// localConn is a connection that deliver has made: its client has the arena. It goes by the address of the
// connection over which it came, for it has none itself.
type localConn struct {
	*sys.UnixConn
	of     net.Addr
	bounce *local.View // the client's, in which blocks of puts lie; nil: none. discard ends it
}

func (c *localConn) RemoteAddr() net.Addr { return c.of }

// isLocal reports whether a connection is such a one.
func isLocal(nc net.Conn) bool {
	_, is := nc.(*localConn)
	return is
}

// bounceOf is the bounce buffer of a connection's client; nil: it has none.
func bounceOf(nc net.Conn) *local.View {
	if n, is := nc.(*localConn); is {
		return n.bounce
	}
	return nil
}

// discard ends a connection that nothing uses any more, with what its client has given for it.
func discard(nc net.Conn) {
	_ = nc.Close()
	if v := bounceOf(nc); v != nil {
		_ = v.Close()
	}
}

// places answers a get with where blocks lie. Nothing keeps them there: the client makes the tag of what it has
// copied, and so notices if they were gone.
func (c *conn) places(j *job) {
	for i := range j.keys {
		e := entryOf(&j.leases[i])
		e.Handle = place(&j.leases[i])
		j.out = e.AppendLookup(j.out)
		c.server.counters.BytesOut.Add(uint64(e.Bytes))
	}
	j.end()
}

// place is where a block lies; 0 for none.
func place(l *Lease) uint64 {
	if !l.Held() {
		return 0
	}
	return uint64(l.Place())
}
