package tcp

import (
	"github.com/moewire/moewire/core/internal/sys"
)

// ZeroCopy says whether long payloads are sent without copying them into the
// kernel (MSG_ZEROCOPY). It spares processor time where a network interface
// reads memory by itself, and costs some where nothing does. A request then
// completes only once the kernel does not read its memory any more.
type ZeroCopy uint8

// The values of ZeroCopy.
const (
	// ZeroCopyAuto tries it where the peer is on another host, for each
	// connection until the kernel says that it has copied all the same.
	ZeroCopyAuto ZeroCopy = iota
	// ZeroCopyOn does it wherever the kernel can.
	ZeroCopyOn
	// ZeroCopyOff never does.
	ZeroCopyOff
)

// numPinned bounds the calls of one socket that let the kernel read the caller's memory.
// One more is sent with a copy.
const numPinned = 256

// pinning is the part of a socket that sends without a copy. It is for the holder of io;
// closed and taken under mu, too, because requests end there.
type pinning struct {
	on      bool // now
	allowed bool // the socket was prepared: there may be notices
	auto    bool // off as soon as the kernel copies
	least   int  // bytes of a payload

	vec *sys.Vector // payload to be sent behind the batch
	op  uint64      // request that it is of

	// calls are the requests, +1, of the calls first to next without a notice; 0
	// once there was one.
	calls       [numPinned]uint64
	first, next uint32
	notices     sys.Notices
}

// preparePinning decides whether a new socket sends without copies.
func (c *conn) preparePinning() {
	config, p := &c.t.config, &c.pin
	if config.ZeroCopy == ZeroCopyOff || c.crypt != nil {
		return
	}
	p.auto, p.least = config.ZeroCopy == ZeroCopyAuto, config.ZeroCopyBytes
	if p.auto && sys.IsLocal(c.fd) || sys.AllowPinned(c.fd) != nil {
		return
	}
	p.on, p.allowed, p.vec = true, true, sys.NewVector(numPieces)
}

// fits reports whether a payload shall go without a copy. Answers to reads are
// copies already.
func (p *pinning) fits(m *message, n int64) bool {
	return p.on && m.code != codeReadData && n >= int64(p.least)
}

// left is how many bytes wait for sendPinned.
func (p *pinning) left() int {
	if p.vec == nil {
		return 0
	}
	return p.vec.Bytes()
}

// drop forgets what was to be sent.
func (p *pinning) drop() {
	if p.vec != nil {
		p.vec.Reset()
	}
}

// sendPinned sends payload without a copy, or with one where the kernel does not
// want to keep more memory in place.
func (c *conn) sendPinned() (n int, err error) {
	p, t := &c.pin, c.t
	if p.next-p.first < numPinned {
		n, err = t.sendPinned(c.fd, p.vec)
		if err == nil && n > 0 {
			c.ep.mu.Lock()
			p.calls[p.next%numPinned] = p.op + 1
			p.next++
			c.ep.out.at(p.op).pins++
			c.ep.mu.Unlock()
			t.counters.Pinned.Add(1)
		}
		if err != sys.ErrNoBuffers {
			return n, err
		}
		p.on = p.on && p.first != p.next // not even one: do not ask again
	}
	t.counters.NotPinned.Add(1)
	return sys.SendVector(c.fd, p.vec)
}

// takeNotices hears which memory the kernel reads no more; the caller holds io
// and mu. It returns whether there was a notice.
func (c *conn) takeNotices() (some bool) {
	p := &c.pin
	for {
		n, ok := c.t.nextNotice(c.fd, &p.notices)
		if !ok {
			return some
		}
		some = true
		if n.Copied {
			c.t.counters.PinnedCopied.Add(1)
			p.on = p.on && !p.auto
		}
		for call := n.First; call-n.First <= n.Last-n.First && call-p.first < p.next-p.first; call++ {
			c.unpin(call)
		}
	}
}

// unpin notes the notice of one call.
func (c *conn) unpin(call uint32) {
	p := &c.pin
	entry := &p.calls[call%numPinned]
	op := *entry - 1
	if *entry == 0 {
		return
	}
	*entry = 0
	for p.first != p.next && p.calls[p.first%numPinned] == 0 {
		p.first++
	}
	c.ep.unpinned(op)
}

// unpinned notes that the kernel reads one part less of a request.
func (ep *endpoint) unpinned(n uint64) {
	op := ep.out.at(n)
	if op.pins--; op.pins != 0 {
		return
	}
	if ep.ended {
		ep.flushSends()
	} else {
		ep.completeSends()
	}
}

// handleNotices takes notices that were reported.
func (c *conn) handleNotices() {
	if !c.noticed.Load() {
		return
	}
	c.noticed.Store(false) // before the look: the poller may set it during it
	c.ep.mu.Lock()
	some := c.takeNotices()
	c.ep.mu.Unlock()
	if some {
		c.t.interrupt()
	}
}

// leave closes the socket. While the kernel reads memory of requests, it ends the
// connection instead and keeps the descriptor, for that is where the notices come. The
// caller holds io and mu.
func (c *conn) leave() (left bool) {
	c.pin.drop()
	if c.pin.first != c.pin.next {
		_ = sys.AbortTCP(c.fd)
		c.takeNotices()
	}
	if c.pin.first != c.pin.next {
		return false
	}
	c.close()
	return true
}

// handleLeaving looks after sockets that leave has kept; the caller holds io.
func (ep *endpoint) handleLeaving() {
	rest := ep.leaving[:0]
	for _, c := range ep.leaving {
		if c.handleNotices(); c.pin.first == c.pin.next {
			c.close()
			continue
		}
		rest = append(rest, c)
	}
	clear(ep.leaving[len(rest):])
	ep.leaving = rest
}
