package transporttest

import (
	"bytes"

	"github.com/moewire/moewire/core/transport"
)

// cut divides n bytes at off into pieces of about equal lengths, one of them
// empty if there are three or more.
func (m *memory) cut(off, n, pieces int) []transport.Piece {
	var list []transport.Piece
	for k := range pieces {
		length := n / pieces
		switch {
		case k == pieces-1:
			length = n
		case k == 1 && pieces > 2:
			length = 0
		}
		list = append(list, m.piece(off, length))
		off, n = off+length, n-length
	}
	return list
}

// want checks registered memory and the bytes around it.
func (m *memory) want(c *carrierTest, what string, want []byte) {
	c.Helper()
	c.poll() // orders what the carrier has written before what we read
	if !bytes.Equal(m.mem, want) {
		at := 0
		for m.mem[at] == want[at] {
			at++
		}
		c.Errorf("%s: byte %d of %d is %#x, not %#x", what, at, len(want), m.mem[at], want[at])
	}
	guard := make([]byte, guardBytes)
	if !bytes.Equal(m.all[:guardBytes], guard) || !bytes.Equal(m.all[guardBytes+len(m.mem):], guard) {
		c.Errorf("%s: bytes outside of the region have changed", what)
	}
}

func carrierSendPieces(c *carrierTest) {
	c.start(2)
	a, b := c.pair(0, 1)
	most := c.transports[0].Limits().NumPieces
	for i, shape := range []struct{ bytes, out, in int }{
		{1, 1, 1}, {1000, 1, most}, {1000, most, 1}, {4096, most, most}, {4095, min(2, most), min(3, most)}, {3, 1, 1},
	} {
		from, to := c.memory(0, 5000, 0), c.memory(1, 5000, 0)
		c.fill(from.mem, uint64(i))
		before := bytes.Clone(from.mem)
		// More room than is needed: what is behind stays as it was.
		id := b.recv(to.cut(7, shape.bytes+100, shape.in))
		sent := a.send(transport.SendRequest{Op: transport.OpSend, Local: from.cut(11, shape.bytes, shape.out)})
		got := b.awaitOK(id, shape.bytes)
		if got.HasImm || got.Op != transport.OpRecv {
			c.Errorf("a send is received as %+v", got)
		}
		a.awaitOK(sent, shape.bytes)
		want := make([]byte, 5000)
		copy(want[7:], before[11:11+shape.bytes])
		to.want(c, "received", want)
		from.want(c, "sent", before)
	}
}

func carrierSendOfNothing(c *carrierTest) {
	c.start(2)
	a, b := c.pair(0, 1)
	to := c.memory(1, 64, 0)
	for _, local := range [][]transport.Piece{nil, to.pieces(0, 64), to.pieces(5, 0)} {
		id := b.recv(local)
		sent := a.send(transport.SendRequest{Op: transport.OpSend})
		b.awaitOK(id, 0)
		a.awaitOK(sent, 0)
	}
	to.want(c, "receives of nothing", make([]byte, 64))
}

// carrierInline changes the memory as soon as it was posted.
func carrierInline(c *carrierTest) {
	c.start(2)
	n := min(c.transports[0].Limits().InlineBytes, 256)
	if n == 0 {
		return // without inline data there is nothing to keep
	}
	a, b := c.pair(0, 1)
	from := c.memory(0, n, 0)
	to := c.memory(1, n, transport.AccessWrite)
	pieces := min(2, c.transports[0].Limits().NumPieces)
	for i := range 8 {
		q := transport.SendRequest{Op: transport.OpSend, Inline: true, Local: from.cut(0, n, pieces)}
		if i%2 == 1 {
			q.Op, q.Imm, q.Remote = transport.OpWriteImm, uint32(i), to.region.Remote()
		}
		c.fill(from.mem, uint64(i))
		want := bytes.Clone(from.mem)
		id := b.recv(to.pieces(0, n))
		sent := a.send(q)
		clear(from.mem)
		b.awaitOK(id, n)
		a.awaitOK(sent, n)
		to.want(c, "inline", want)
	}
}

func carrierWrite(c *carrierTest) {
	c.start(2)
	a, b := c.pair(0, 1)
	const size = 9000
	from := c.memory(0, size, 0)
	to := c.memory(1, size, transport.AccessWrite)
	want := make([]byte, size)
	most := c.transports[0].Limits().NumPieces
	for i, s := range []struct{ off, n, pieces int }{
		{0, size, 1}, {0, 0, 0}, {17, 0, 1}, {1, 1, 1}, {size - 1, 1, 1}, {size - 4097, 4097, most}, {4095, 2, 1}, {0, 4096, most},
	} {
		c.fill(from.mem, uint64(i))
		id := a.send(transport.SendRequest{
			Op: transport.OpWrite, Local: from.cut(0, s.n, s.pieces),
			Remote: to.region.Remote(), RemoteOff: uint64(s.off),
		})
		a.awaitOK(id, s.n)
		copy(want[s.off:], from.mem[:s.n])
		to.want(c, "written", want)
	}
	if len(b.done) > 0 {
		c.Error("plain writes are seen by the peer")
	}
}

func carrierWriteImm(c *carrierTest) {
	c.start(2)
	a, b := c.pair(0, 1)
	from := c.memory(0, 1000, 0)
	to := c.memory(1, 1000, transport.AccessWrite)
	unused := c.memory(1, 1000, 0)
	want := make([]byte, 1000)
	for i, n := range []int{0, 1, 1000} {
		c.fill(from.mem, uint64(i))
		id := b.recv(unused.pieces(0, 1000*(i%2)))
		imm := uint32(0xfffffff0 + i)
		sent := a.send(transport.SendRequest{
			Op: transport.OpWriteImm, Imm: imm, Local: from.pieces(0, n), Remote: to.region.Remote(),
		})
		got := b.awaitOK(id, n)
		if got.Op != transport.OpRecvImm || !got.HasImm || got.Imm != imm {
			c.Errorf("immediate %#x arrives as %+v", imm, got)
		}
		copy(want, from.mem[:n])
		to.want(c, "written with an immediate, as it arrives", want)
		a.awaitOK(sent, n)
	}
	unused.want(c, "memory of receives that writes have used up", make([]byte, 1000))
}

func carrierRead(c *carrierTest) {
	c.start(2)
	a, b := c.pair(0, 1)
	const size = 9000
	from := c.memory(1, size, transport.AccessRead)
	c.fill(from.mem, 1)
	source := bytes.Clone(from.mem)
	most := c.transports[0].Limits().NumPieces
	for _, s := range []struct{ off, n, pieces int }{
		{0, size, 1}, {0, 0, 0}, {1, 1, 1}, {size - 1, 1, 1}, {size - 4097, 4097, most}, {4095, 2, 1},
	} {
		to := c.memory(0, size, 0)
		id := a.send(transport.SendRequest{
			Op: transport.OpRead, Local: to.cut(0, s.n, s.pieces),
			Remote: from.region.Remote(), RemoteOff: uint64(s.off),
		})
		a.awaitOK(id, s.n)
		want := make([]byte, size)
		copy(want, source[s.off:s.off+s.n])
		to.want(c, "read", want)
	}
	from.want(c, "memory that was read", source)
	if len(b.done) > 0 {
		c.Error("reads are seen by the peer")
	}
}

// carrierLargest moves as much as one request can.
func carrierLargest(c *carrierTest) {
	c.start(2)
	n := c.harness.MaxRequestBytes
	if n == 0 {
		n = 16 << 20
	}
	n = int(min(int64(n), c.transports[0].Limits().MaxRequestBytes))
	a, b := c.pair(0, 1)
	from := c.memory(0, n, transport.AccessRead)
	to := c.memory(1, n, transport.AccessRead|transport.AccessWrite)
	c.fill(from.mem, 3)
	want := bytes.Clone(from.mem)
	a.awaitOK(a.send(transport.SendRequest{Op: transport.OpWrite, Local: from.pieces(0, n), Remote: to.region.Remote()}), n)
	to.want(c, "a write of the largest size", want)

	clear(to.mem)
	b.awaitOK(b.send(transport.SendRequest{Op: transport.OpRead, Local: to.pieces(0, n), Remote: from.region.Remote()}), n)
	to.want(c, "a read of the largest size", want)

	clear(to.mem)
	id := b.recv(to.pieces(0, n))
	a.send(transport.SendRequest{Op: transport.OpSend, Local: from.pieces(0, n)})
	b.awaitOK(id, n)
	to.want(c, "a send of the largest size", want)
}
