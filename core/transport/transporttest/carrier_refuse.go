package transporttest

import (
	"bytes"
	"errors"
	"math"

	"github.com/moewire/moewire/core/transport"
)

// carrierBadRequests posts what the carrier can see to be wrong.
func carrierBadRequests(c *carrierTest) {
	c.start(2)
	a, b := c.pair(0, 1)
	l := c.transports[0].Limits()
	m, foreign := c.memory(0, 4096, 0), c.memory(1, 4096, transport.AccessWrite|transport.AccessRead)
	closed := c.memory(0, 64, 0)
	if err := closed.region.Close(); err != nil {
		c.Fatal(err)
	}
	type request = transport.SendRequest
	for name, q := range map[string]request{
		"no operation":      {},
		"operation 5":       {Op: transport.OpRecv},
		"negative offset":   {Op: transport.OpSend, Local: m.pieces(-1, 1)},
		"negative length":   {Op: transport.OpSend, Local: m.pieces(1, -1)},
		"across the end":    {Op: transport.OpSend, Local: m.pieces(4095, 2)},
		"behind the end":    {Op: transport.OpSend, Local: m.pieces(4097, 0)},
		"length goes round": {Op: transport.OpSend, Local: m.pieces(1, math.MaxInt)},
		"no region":         {Op: transport.OpSend, Local: []transport.Piece{{Bytes: 1}}},
		"other transport's": {Op: transport.OpSend, Local: foreign.pieces(0, 1)},
		"closed region":     {Op: transport.OpSend, Local: closed.pieces(0, 1)},
		"too many pieces":   {Op: transport.OpSend, Local: m.cut(0, 4096, l.NumPieces+1)},
		"inline too long":   {Op: transport.OpSend, Inline: true, Local: m.pieces(0, min(4096, l.InlineBytes+1))},
		"read inline":       {Op: transport.OpRead, Inline: true, Local: m.pieces(0, 1), Remote: foreign.region.Remote()},
	} {
		if name == "inline too long" && l.InlineBytes >= 4096 {
			continue
		}
		if _, err := a.trySend(q); err == nil || errors.Is(err, transport.ErrWouldBlock) || errors.Is(err, transport.ErrState) {
			c.Errorf("%s: %v", name, err)
		}
	}
	mustPostBeforeBad(c, a, b, m)
}

// mustPostBeforeBad posts a good request and a bad one in one call.
func mustPostBeforeBad(c *carrierTest, a, b *end, m *memory) {
	c.Helper()
	received := b.recv(nil)
	good, bad := a.newID(transport.OpSend), a.newID(transport.OpSend)
	n, err := a.ep.PostSend([]transport.SendRequest{
		{ID: good, Op: transport.OpSend}, {ID: bad, Op: transport.OpSend, Local: m.pieces(4096, 1)},
		{ID: bad, Op: transport.OpSend},
	})
	if n != 1 || err == nil {
		c.Errorf("a bad request behind a good one: %d posted, %v", n, err)
	}
	a.unpost(bad)
	a.awaitOK(good, 0)
	b.awaitOK(received, 0)
}

func carrierBadReceives(c *carrierTest) {
	c.start(2)
	a, b := c.pair(0, 1)
	m, foreign := c.memory(1, 64, 0), c.memory(0, 64, 0)
	for name, pieces := range map[string][]transport.Piece{
		"negative offset":   m.pieces(-1, 1),
		"across the end":    m.pieces(0, 65),
		"no region":         {{Bytes: 1}},
		"other transport's": foreign.pieces(0, 1),
		"too many pieces":   m.cut(0, 64, c.transports[1].Limits().NumPieces+1),
	} {
		if _, err := b.tryRecv(pieces); err == nil || errors.Is(err, transport.ErrWouldBlock) || errors.Is(err, transport.ErrState) {
			c.Errorf("%s: %v", name, err)
		}
	}
	id := b.recv(nil)
	a.send(transport.SendRequest{Op: transport.OpSend})
	b.awaitOK(id, 0)
}

// carrierRemoteRefuses sends requests that only the peer can see to be wrong.
func carrierRemoteRefuses(c *carrierTest) {
	c.start(2)
	m := c.memory(0, refusingBytes, 0)
	peer := c.refusing()
	for _, r := range peer.badRequests() {
		for _, op := range r.ops {
			mustRefuse(c, r.name, transport.SendRequest{Op: op, Local: m.pieces(0, r.n), Remote: r.remote, RemoteOff: r.off})
		}
	}
	for _, kept := range []*memory{peer.open, peer.readOnly, peer.writeOnly, peer.neither, peer.closed} {
		kept.want(c, "refused", make([]byte, refusingBytes))
	}
}

const refusingBytes = 4096

// refusing is the peer's memory that bad requests go to.
type refusing struct {
	open, readOnly, writeOnly, neither *memory
	closed                             *memory                // registered again: the first registration was closed
	old                                transport.RemoteRegion // the first registration
}

func (c *carrierTest) refusing() *refusing {
	const all = transport.AccessRead | transport.AccessWrite
	r := &refusing{
		open:      c.memory(1, refusingBytes, all),
		readOnly:  c.memory(1, refusingBytes, transport.AccessRead),
		writeOnly: c.memory(1, refusingBytes, transport.AccessWrite),
		neither:   c.memory(1, refusingBytes, 0),
		closed:    c.memory(1, refusingBytes, all),
	}
	r.old = r.closed.region.Remote()
	if err := r.closed.region.Close(); err != nil {
		c.Fatal(err)
	}
	again, err := c.transports[1].Register(r.closed.mem, all)
	if err != nil {
		c.Fatal(err)
	}
	r.closed.region = again // its memory is there; its old key is worth nothing
	return r
}

// badRequest is a request of n bytes that the peer must refuse, whichever of the
// operations it is.
type badRequest struct {
	name   string
	ops    []transport.Opcode
	remote transport.RemoteRegion
	off    uint64
	n      int
}

func (r *refusing) badRequests() []badRequest {
	at := r.open.region.Remote()
	with := func(change func(*transport.RemoteRegion)) transport.RemoteRegion {
		changed := at
		change(&changed)
		return changed
	}
	const size = refusingBytes
	all := []transport.Opcode{transport.OpWrite, transport.OpWriteImm, transport.OpRead}
	writes, read := all[:2], all[2:]
	return []badRequest{
		{"one byte at the end", all, at, size, 1},
		{"two bytes across the end", all, at, size - 1, 2},
		{"all bytes from the second", all, at, 1, size},
		{"half the address space away", all, at, 1 << 63, 1},
		{"offset that goes round", all, at, math.MaxUint64, 2},
		{"one byte before", all, with(func(r *transport.RemoteRegion) { r.Addr-- }), 0, 1},
		{"a size that is a lie", all, with(func(r *transport.RemoteRegion) { r.SizeBytes *= 2 }), size, 1},
		{"a wrong key", all, with(func(r *transport.RemoteRegion) { r.Key ^= 0xff00 }), 0, 1},
		{"a closed region", all, r.old, 0, 1},
		{"no writing", writes, r.readOnly.region.Remote(), 0, 1},
		{"no reading", read, r.writeOnly.region.Remote(), 0, 1},
		{"nothing at all", all, r.neither.region.Remote(), 0, 1},
	}
}

// mustRefuse sends one bad request over endpoints of its own.
func mustRefuse(c *carrierTest, name string, q transport.SendRequest) {
	c.Helper()
	local := q.Local[0].Region.Bytes()
	for i := range local {
		local[i] = 0xee
	}
	a, b := c.pair(0, 1)
	received := b.recv(nil)
	kept := a.recv(nil)
	id := a.send(q)
	if done := a.await(id); done.Status != transport.StatusRemote {
		c.Errorf("%s, operation %d: %+v", name, q.Op, done)
	}
	if done := a.await(kept); done.Status != transport.StatusFlushed {
		c.Errorf("%s, operation %d: a receive of that endpoint ends as %+v", name, q.Op, done)
	}
	c.until("the failure was reported", func() bool { return a.failed == 1 })
	if done, ended := b.done[received]; ended && done.Status == transport.StatusOK {
		c.Errorf("%s, operation %d: the peer has received %+v", name, q.Op, done)
	}
	late := a.send(transport.SendRequest{Op: transport.OpWrite})
	if done := a.await(late); done.Status != transport.StatusFlushed {
		c.Errorf("%s, operation %d: posted afterwards, ends as %+v", name, q.Op, done)
	}
	retire(c, a, b)
}

// retire ends endpoints, so that their number stays small.
func retire(c *carrierTest, ends ...*end) {
	c.Helper()
	for _, e := range ends {
		if err := e.ep.Retire(); err != nil {
			c.Errorf("retire: %v", err)
		}
	}
	c.until("retired endpoints have nothing outstanding", func() bool {
		for _, e := range ends {
			if e.outstanding() > 0 {
				return false
			}
		}
		return true
	})
	for _, e := range ends {
		if err := e.ep.Close(); err != nil {
			c.Errorf("close: %v", err)
		}
	}
}

func carrierReceiveTooShort(c *carrierTest) {
	c.start(2)
	a, b := c.pair(0, 1)
	from, to := c.memory(0, 100, 0), c.memory(1, 100, 0)
	c.fill(from.mem, 1)
	id := b.recv(to.pieces(0, 10))
	sent := a.send(transport.SendRequest{Op: transport.OpSend, Local: from.pieces(0, 11)})
	if done := b.await(id); done.Status != transport.StatusLocal {
		c.Errorf("11 bytes into 10: the receive ends as %+v", done)
	}
	if done := a.await(sent); done.Status == transport.StatusOK {
		c.Errorf("11 bytes into 10: the send ends as %+v", done)
	}
	if !bytes.Equal(to.mem[10:], make([]byte, 90)) {
		c.Error("bytes behind a receive have changed")
	}
}

func carrierNoReceive(c *carrierTest) {
	c.start(2)
	to := c.memory(1, 64, transport.AccessWrite)
	from := c.memory(0, 64, 0)
	for _, op := range []transport.Opcode{transport.OpSend, transport.OpWriteImm} {
		a, b := c.pair(0, 1)
		sent := a.send(transport.SendRequest{Op: op, Local: from.pieces(0, 64), Remote: to.region.Remote()})
		if !c.harness.FlowControl {
			if done := a.await(sent); done.Status != transport.StatusNoReceive {
				c.Errorf("operation %d without a receive: %+v", op, done)
			}
			continue
		}
		// Others pass it by: only what needs a receive waits for one.
		written := a.send(transport.SendRequest{Op: transport.OpWrite, Local: from.pieces(0, 1), Remote: to.region.Remote()})
		a.awaitOK(written, 1)
		if _, ended := a.done[sent]; ended {
			c.Errorf("operation %d without a receive has ended", op)
		}
		id := b.recv(to.pieces(0, 64))
		b.awaitOK(id, 64)
		a.awaitOK(sent, 64)
	}
}
