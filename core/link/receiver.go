package link

import (
	"sync/atomic"

	"github.com/moewire/moewire/core/transport"
)

// receiver is the receiving half of a link. next and release are for one
// goroutine at a time; arrived is the poller's.
type receiver struct {
	cfg     *Config
	ep      transport.Endpoint
	ring    transport.Region
	remote  transport.RemoteRegion // of the peer's ring: a grant has to name one
	tag     uint32                 // this side's
	peerTag uint32
	depth   uint64
	longest int64

	// By number modulo depth: length and arrivedBit, 0 until it is there.
	slots    []atomic.Uint64
	released atomic.Uint64 // messages
	seen     uint64        // the poller's: messages that have arrived without a gap
	early    []bool        // the poller's, by number modulo depth: those behind it
	pos      int64         // where the next one may begin

	granting atomic.Bool   // a grant is under way, or none may be; the goroutine that sets it sends
	granted  atomic.Uint64 // the latest
	again    [1]transport.RecvRequest
	// A completion may be polled before the call that posted has returned.
	byReader, byPoller, byMaker [1]transport.SendRequest
}

// A slot has the length in its lower half, the message's number above.
const (
	arrivedBit = 1 << 63
	wrappedBit = 1 << 62
	lengthBits = 32
	lengthMask = 1<<lengthBits - 1
)

func (r *receiver) init(depth int) {
	r.depth = uint64(depth)
	r.slots = make([]atomic.Uint64, depth)
	r.early = make([]bool, depth)
}

// arrived files a message; false: there can be no such message.
func (r *receiver) arrived(kind uint32, n uint64, bytes uint32) bool {
	released := r.released.Load()
	gap := ahead(n, released)
	if gap >= r.depth || released+gap < r.seen || bytes == 0 || int64(bytes) > r.longest {
		return false
	}
	v := arrivedBit | n<<lengthBits | uint64(bytes)
	if kind == immWrapped {
		v |= wrappedBit
	}
	at := (released + gap) % r.depth
	if !r.slots[at].CompareAndSwap(0, v) {
		return false
	}
	for r.early[at] = true; r.early[r.seen%r.depth]; r.seen++ {
		r.early[r.seen%r.depth] = false
	}
	return true
}

// forget forgets what has arrived behind a gap, and returns how much is there
// without one. Nothing arrives meanwhile.
func (r *receiver) forget() (have uint64) {
	for i, early := range r.early {
		if early {
			r.early[i] = false
			r.slots[i].Store(0)
		}
	}
	return r.seen
}

// where says where the message in front lies.
func (r *receiver) where() (at, n int64) {
	v := r.slots[r.released.Load()%r.depth].Load()
	if v == 0 {
		return 0, 0
	}
	n, at = int64(v&lengthMask), r.pos
	if off := at & (r.cfg.RingBytes - 1); v&wrappedBit != 0 {
		at += r.cfg.RingBytes - off
	}
	return at, n
}

// next says where in the ring the message in front lies; n is 0 if it is not
// there yet. bad: what is there cannot be.
func (r *receiver) next() (off, n int64, bad bool) {
	at, n := r.where()
	off = at & (r.cfg.RingBytes - 1)
	number := r.released.Load()
	switch {
	case n == 0:
		return 0, 0, false
	case off+n > r.cfg.RingBytes || r.slots[number%r.depth].Load()>>lengthBits&numberMask != number&numberMask:
		return 0, 0, true
	}
	return off, n, false
}

// release gives the memory of the message in front back; false if there is none.
func (r *receiver) release() bool {
	at, n := r.where()
	if n == 0 {
		return false
	}
	r.pos = at + align(n)
	number := r.released.Load()
	r.slots[number%r.depth].Store(0)
	r.released.Store(number + 1)
	return true
}

// grant tells the peer how much was released, unless it knows, or a grant is
// under way: its end sends the next one. An error is that of the endpoint beside
// it, which may not be the link's any more. Safe for concurrent use.
func (r *receiver) grant(posts *[1]transport.SendRequest) (on transport.Endpoint, err error) {
	for r.released.Load() != r.granted.Load() && r.granting.CompareAndSwap(false, true) {
		before := r.granted.Load()
		n := min(r.released.Load(), before+maxGranted)
		if n == before {
			r.granting.Store(false)
			continue // more may have been released before that
		}
		number := imm(immGrant, r.peerTag, grantOf(before, n-before))
		posts[0] = transport.SendRequest{
			ID: requestID(idGrant, n), Op: transport.OpWriteImm, Imm: number, Remote: r.remote,
		}
		r.granted.Store(n) // before it can end
		on = r.ep
		if _, err = on.PostSend(posts[:]); err != nil {
			r.granted.Store(before)
			r.granting.Store(false)
		}
		return on, err
	}
	return nil, nil
}

// repost replaces a receive that was used up.
func (r *receiver) repost() (on transport.Endpoint, err error) {
	r.again[0] = transport.RecvRequest{ID: requestID(idReceive, 0)}
	_, err = r.ep.PostRecv(r.again[:])
	return r.ep, err
}
