package tcp

import (
	"errors"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"

	"github.com/moewire/moewire/core/internal/sys"
)

// arrive looks at a message before its payload and says where that goes.
func (ep *endpoint) arrive(m *message, n int, dst [][]byte) (list [][]byte, r *region, v action) {
	ep.mu.Lock()
	before := ep.out.head
	if !ep.takeTotals(m) {
		ep.mu.Unlock()
		return dst, nil, violation
	}
	completed := ep.out.head != before
	ok := true
	switch m.code {
	case codeAck:
		list = dst
	case codeReadData:
		list, ok = ep.placeRead(m, n, dst)
	case codeSend, codeWrite, codeWriteImm, codeRead:
		list, r, v = ep.begin(m, n, dst)
	case codeRefuse:
		ok = m.op >= ep.out.head && m.op < ep.out.next && m.status != transport.StatusOK
	default:
		ok = false
	}
	ep.mu.Unlock()
	if completed {
		ep.t.interrupt() // the goroutine that waits may be another one than the one that reads
	}
	switch {
	case !ok:
		v = violation
	case m.code == codeRefuse:
		ep.end(ending{status: m.status, op: m.op, named: true, cause: errRefused})
	}
	return list, r, v
}

var (
	errRefused = errors.New("tcp: the peer refused a request")
	errRefuse  = errors.New("tcp: a request of the peer was refused")
)

// complete notes that a payload is in place and genuine.
func (ep *endpoint) complete(m *message, n int) {
	ep.mu.Lock()
	if m.code == codeReadData {
		ep.readLanded(m, n)
	} else {
		ep.landed(m, n)
	}
	ep.mu.Unlock()
	ep.t.interrupt()
}

// refuse answers a request that is not possible. It is the last thing that
// this endpoint says; the caller holds io.
func (ep *endpoint) refuse(m *message) {
	if !ep.refused {
		ep.refused = true
		ep.refusal = message{code: codeRefuse, op: m.op, status: transport.StatusRemote}
		ep.refusedRecv, ep.refusedSend = m.recv, m.code == codeSend
		ep.hasWork.Store(true) // the first socket says it, whichever one is at work
	}
}

// refusalSent ends the endpoint. Its sockets stay until the peer has read that
// and closes them, or Close.
func (ep *endpoint) refusalSent() {
	ep.linger = true
	for _, c := range ep.conns {
		_ = sys.ShutdownWrite(c.fd)
	}
	ep.end(ending{cause: errRefuse, recv: ep.refusedRecv, recvBad: ep.refusedSend})
}

// room is how many bytes of answers to reads still fit the batch.
func (c *conn) room() int {
	if c.staged == nil {
		return c.t.config.segmentBytes
	}
	return len(c.staged) - c.staging
}

// answer puts bytes of a region into the batch. They are copied, because
// others may change them at any time, and the digest has to fit.
func (c *conn) answer(m *message, n int) bool {
	if n == 0 {
		return c.seal(m, nil)
	}
	if c.staged == nil {
		c.staged = make([]byte, c.t.config.segmentBytes)
	}
	dst := c.staged[c.staging:][:n]
	if !c.t.copyOut(dst, m) {
		c.ep.refuse(m)
		return c.frame()
	}
	c.staging += n
	c.list[0] = dst
	return c.seal(m, c.list[:1])
}

// copyOut reads a region for a peer; false if it may not any more.
func (t *Transport) copyOut(dst []byte, m *message) bool {
	r := t.target(m.key, m.off, uint64(m.total), transport.AccessRead)
	if r == nil {
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return false
	}
	copy(dst, r.mem[m.off+uint64(m.at):])
	return true
}

// encrypt makes the bytes that follow a header under wire.ProtectEncrypt.
func (c *conn) encrypt(payload [][]byte) [][]byte {
	if c.head.PayloadBytes == 0 {
		return nil
	}
	if c.sealed == nil {
		most := batchBytes + c.t.config.segmentBytes + batchFrames*wire.ChunkBytes
		c.sealed = make([]byte, 0, wire.EncryptedBytes(int64(most)))
	}
	from := len(c.sealed)
	c.crypt.Begin(&c.head, payload)
	c.sealed = c.crypt.Next(c.sealed)
	c.list[0] = c.sealed[from:]
	return c.list[:1]
}
