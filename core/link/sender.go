package link

import (
	"fmt"
	"sync/atomic"

	"github.com/moewire/moewire/core/transport"
)

// sender is the sending half of a link. Reserve and post are for one goroutine
// at a time; granted and completed are the poller's.
type sender struct {
	cfg     *Config
	ep      transport.Endpoint
	staging transport.Region
	remote  transport.RemoteRegion
	tag     uint32 // the peer's
	depth   uint64
	longest int64

	sent  atomic.Uint64 // messages posted
	acked atomic.Uint64 // messages that the peer has released, as all grants before say
	busy  []atomic.Bool // by number modulo depth: its write was posted and has not completed
	spans []uint16      // the poller's; by number modulo depth: of a grant that begins there

	posting  atomic.Bool   // a goroutine posts, or none may; the one that sets it has what follows
	posted   atomic.Uint64 // messages handed to the endpoint
	messages []spot        // by number modulo depth; written before sent
	posts    [1]transport.SendRequest
	piece    [1]transport.Piece

	tail  uint64  // messages with free memory again
	begin int64   // where the oldest message that is not free begins
	end   []int64 // by number modulo depth: where it ends
	pos   int64   // the cursor
	lease lease
}

// spot is where a message lies in the ring.
type spot struct {
	off, bytes int64
	wraps      bool
}

// lease is what Reserve has leased.
type lease struct {
	at    int64 // cursor position
	bytes int64 // 0: nothing is leased
	wraps bool
}

func (s *sender) init(depth int) {
	s.depth = uint64(depth)
	s.busy = make([]atomic.Bool, depth)
	s.end = make([]int64, depth)
	s.spans = make([]uint16, depth)
	s.messages = make([]spot, depth)
}

// reclaim frees the memory of messages that were released and written.
func (s *sender) reclaim() {
	for acked := s.acked.Load(); s.tail < acked && !s.busy[s.tail%s.depth].Load(); s.tail++ {
		s.begin = s.end[s.tail%s.depth]
	}
}

// reserve says where in the ring the next message begins.
func (s *sender) reserve(n int64) (off int64, err error) {
	if n < 1 || n > s.longest {
		return 0, fmt.Errorf("a message of %d bytes: 1 to %d are possible", n, s.longest)
	}
	s.lease = lease{}
	s.reclaim()
	if s.sent.Load()-s.tail == s.depth {
		return 0, transport.ErrWouldBlock
	}
	at, wraps := s.place(n)
	if at+align(n)-s.begin > s.cfg.RingBytes {
		return 0, transport.ErrWouldBlock
	}
	s.lease = lease{at: at, bytes: n, wraps: wraps}
	return at & (s.cfg.RingBytes - 1), nil
}

// place says where a message goes. When nothing is outstanding, that is the
// ring's start: so no more memory is touched, again and again, than is used at
// a time.
func (s *sender) place(n int64) (at int64, wraps bool) {
	at, wraps = s.cfg.place(s.pos, n)
	if off := s.pos & (s.cfg.RingBytes - 1); off != 0 && s.tail == s.sent.Load() {
		at, wraps = s.pos+s.cfg.RingBytes-off, true
	}
	if s.tail == s.sent.Load() {
		s.begin = at
	}
	return at, wraps
}

// post hands over the first n bytes of the lease. On an error the message is
// still among those sent: it may be sent again.
func (s *sender) post(n int64) (on transport.Endpoint, err error) {
	number := s.sent.Load()
	m := &s.messages[number%s.depth]
	m.off, m.bytes, m.wraps = s.lease.at&(s.cfg.RingBytes-1), n, s.lease.wraps
	s.pos = s.lease.at + align(n)
	s.end[number%s.depth] = s.pos
	s.lease = lease{}
	s.sent.Store(number + 1)
	return s.pump()
}

// pump posts what was not posted yet, unless another goroutine does, or the link is being
// reconnected: then it is done afterwards. An error is that of the returned endpoint,
// which may not be the link's any more. Safe for concurrent use.
func (s *sender) pump() (on transport.Endpoint, err error) {
	for s.posted.Load() != s.sent.Load() && s.posting.CompareAndSwap(false, true) {
		on, err = s.ep, s.postRest()
		s.posting.Store(false)
		if err != nil {
			return on, err
		}
	}
	return on, nil
}

func (s *sender) postRest() error {
	for number := s.posted.Load(); number != s.sent.Load(); number++ {
		m := &s.messages[number%s.depth]
		kind := uint32(immMessage)
		if m.wraps {
			kind = immWrapped
		}
		s.piece[0] = transport.Piece{Region: s.staging, Off: int(m.off), Bytes: int(m.bytes)}
		s.posts[0] = transport.SendRequest{
			ID: requestID(idMessage, number), Op: transport.OpWriteImm, Imm: imm(kind, s.tag, number),
			Local: s.piece[:], Remote: s.remote, RemoteOff: uint64(m.off),
		}
		// Before it is posted: its end, and the grant for it, may come at once.
		s.busy[number%s.depth].Store(true)
		s.posted.Store(number + 1)
		if _, err := s.ep.PostSend(s.posts[:]); err != nil {
			return err
		}
	}
	return nil
}

// goBack makes what the peer does not have be posted next; false if its numbers
// cannot be. Nothing is outstanding, and nothing is posted or granted meanwhile;
// but there may be more sent.
func (s *sender) goBack(have, released uint64) bool {
	if released < s.acked.Load() || have < released || have > s.posted.Load() {
		return false
	}
	// A carrier may forget to tell of a write that has ended.
	for i := range s.busy {
		s.busy[i].Store(false)
	}
	clear(s.spans)
	s.posted.Store(have)
	s.acked.Store(released)
	return true
}

// granted takes a grant and reports whether it is valid: not for messages that were
// granted already, nor for any that were not posted. It counts once those before it are
// there. So each grant that still uses up a receive is for other messages, which are not
// acked. There are no more of these than receives for grants, in whatever order they are
// seen.
func (s *sender) granted(v uint64) bool {
	acked := s.acked.Load()
	at, num := splitGrant(v, acked)
	if num == 0 || at+num > s.posted.Load()-acked || s.spans[(acked+at)%s.depth] != 0 {
		return false
	}
	s.spans[(acked+at)%s.depth] = uint16(num)
	for num = uint64(s.spans[acked%s.depth]); num != 0; num = uint64(s.spans[acked%s.depth]) {
		for ; num > 0; num-- {
			s.spans[acked%s.depth] = 0
			acked++
		}
	}
	s.acked.Store(acked)
	return true
}

// completed notes the end of a message's write.
func (s *sender) completed(number uint64) bool {
	at := number % s.depth
	return number < s.sent.Load() && s.busy[at].CompareAndSwap(true, false)
}
