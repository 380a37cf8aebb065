package server

import (
	"errors"
	"net"
	"time"

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

// share sends the arena's descriptor to a client that waits for it on this host. Once per connection.
// Miss: the client does not wait here, or there is no arena.
func (c *conn) share(j *job) message.Status {
	arena := c.server.cfg.Arena
	switch {
	case arena == nil:
		return message.Miss
	case c.shared: // descriptors that nobody takes wait in the kernel, which bounds them for all of a user's processes
		return message.Quota
	}
	err := c.deliver(arena, [message.NameBytes]byte(j.in))
	switch {
	case errors.Is(err, local.ErrElsewhere):
		return message.Miss
	case err != nil:
		return j.refusal(err)
	}
	c.shared = true
	said := message.Shared{ArenaBytes: uint64(arena.Size()), HoldUs: uint64(c.server.cfg.Hold / time.Microsecond)}
	j.out = said.Append(j.out)
	return message.OK
}

// deliver sends the arena, and a socket at whose other end there may be a session as over one that was accepted.
func (c *conn) deliver(arena Arena, name [message.NameBytes]byte) error {
	fd, err := arena.Share()
	if err != nil {
		return err
	}
	defer func() { _ = fd.Close() }()
	ours, theirs, err := sys.StreamPair()
	if err != nil {
		return err
	}
	err = errors.Join(local.Deliver(name, c.invited, fd, theirs), theirs.Close())
	if err != nil {
		return errors.Join(err, ours.Close())
	}
	nc, err := sys.UnixNet(ours)
	if err == nil {
		c.server.admit(&nearConn{nc, c.nc.RemoteAddr()})
	}
	return err
}

// nearConn is a connection that deliver has made: its client has the arena. It goes by the address of the
// connection over which it came, for it has none itself.
type nearConn struct {
	*sys.UnixConn
	of net.Addr
}

func (c *nearConn) RemoteAddr() net.Addr { return c.of }

// near reports whether a connection is such a one.
func near(nc net.Conn) bool {
	_, is := nc.(*nearConn)
	return is
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
