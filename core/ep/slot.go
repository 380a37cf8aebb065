package ep

import (
	"math/bits"
	"time"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/membership"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
)

// slot is one of the S places for operations. It has two sides: as owner,
// `served` is the operation that peers may write into our slab for; as source,
// `op` is the operation that we send and combine. They differ while our slab
// waits for its reopening. Guarded by Buffer.mu.
type slot struct {
	index int

	// As owner.
	own      transport.Segment
	ownID    int
	served   uint64
	a        uint64      // A(served): members when it was opened, one bit each
	shown    layout.Slab // what the caller was shown of operation shownFor
	shownFor uint64

	// As source.
	op       uint64
	live     bool // the handle is valid
	slab     layout.Slab
	params   params
	plan     plan
	dst      []transport.Segment // the slab that we wrote to at each owner
	sent     uint64              // owners that have our arrive
	unsent   uint64              // owners that still get rows
	awaited  uint64              // sources whose arrive we wait for
	counted  uint64              // sources whose rows count
	broken   bool                // a row did not fit: the ranks disagree
	dispatch dispatchCall
	combine  combineCall
	quiet    call // waiting for the readers of the last combine
	combines int  // finished

	warm []warmth // per owner
}

// warmth remembers how many rows per expert were prefaulted for which shape.
type warmth struct {
	shape layout.Shape
	rows  int64
}

// call is the waiting side of one operation.
type call struct {
	st       *op.Op // nil: never begun for this operation
	spare    *op.Op // an ended st that nobody else holds
	holders  int    // tasks and pending operations that refer to st
	timeout  time.Duration
	deadline time.Time // zero: not started, or none
	sent     bool      // the caller was told so: the next phase's deadline counts
}

type dispatchCall struct {
	call
	args DispatchArgs
	res  Result
}

type combineCall struct {
	call
	args      CombineArgs
	active    uint64
	published bool
	need      uint64 // owners whose outputs we wait for
	rows      []device.ReduceJob
	weights   []float32 // copy of the caller's
}

func (c *call) begin(timeout time.Duration) {
	c.retire()
	if c.spare == nil {
		c.spare = new(op.Op)
	}
	c.st, c.spare = c.spare, nil
	*c.st = op.Op{}
	c.timeout, c.deadline, c.sent = timeout, time.Time{}, false
}

// retire forgets an ended operation. Its memory is reused only if nobody can
// still ask what became of it.
func (c *call) retire() {
	if c.st != nil && c.holders == 0 {
		c.spare = c.st
	}
	c.st, c.holders = nil, 0
}

func (c *call) pending() bool { return c.st != nil && c.st.State() == op.Pending }

func (c *call) end(state op.State, err error) {
	if c.st != nil {
		c.st.End(state, err)
	}
}

func (s *slot) init(index, ranks int) {
	s.index = index
	s.dst = make([]transport.Segment, ranks)
	s.warm = make([]warmth, ranks)
}

func (s *slot) endCalls(state op.State, err error) {
	s.dispatch.end(state, err)
	s.combine.end(state, err)
	s.quiet.end(state, err)
}

// isOpen reports whether our slab serves the operation that we send.
func (s *slot) isOpen() bool { return s.own != nil && s.served == s.op }

// openSlot lets peers write into our slab for operation i. A(i) is read
// before the word is set: whoever is not in it cannot start to write.
func (b *Buffer) openSlot(s *slot, i uint64) {
	s.a = membership.Set(b.dom.Members().Load()).Ranks()
	s.served = i
	b.peers[b.self].open[s.index].Store(layout.Word(i, uint16(s.ownID)))
	b.wakeAll()
}

// progress does what needs no waiting, for every slot: it opens slots whose
// operation everybody has finished with, and writes words that are owed. Every
// call does this first, so that one thread can drive several ranks.
func (b *Buffer) progress() {
	for more := true; more; {
		more = b.reopen()
		if len(b.owed) > 0 {
			more = b.settle() || more
		}
	}
}

// reopen reports whether it opened a slot.
func (b *Buffer) reopen() (opened bool) {
	for j := range b.slots {
		s := &b.slots[j]
		if s.own == nil || (s.live && s.isOpen()) || b.unfinished(s) != 0 {
			continue
		}
		b.clean(s)
		b.openSlot(s, s.served+uint64(len(b.slots)))
		opened = true
	}
	return opened
}

// unfinished returns the ranks of A(served) whose final done is missing.
func (b *Buffer) unfinished(s *slot) (ranks uint64) {
	for rest := s.a; rest != 0; rest &= rest - 1 {
		done := s.own.Word(layout.Done(bits.TrailingZeros64(rest))).Load()
		if !layout.IsFor(done, s.served) || !layout.IsLast(done) {
			ranks |= rest & -rest
		}
	}
	return ranks
}

// clean zeroes the counters that the served operation used. Its shape is what
// its sources said it was: they may have disagreed.
func (b *Buffer) clean(s *slot) {
	most := int64(0)
	for rest := s.a; rest != 0; rest &= rest - 1 {
		n, p := loadParams(s.own, bits.TrailingZeros64(rest))
		if n == s.served {
			most = max(most, int64(p.experts)/int64(b.ranks))
		}
	}
	most = min(most, layout.MaxLocalExperts)
	if b.cfg.DebugFill && s.shownFor == s.served && s.shown.LocalExperts > 0 {
		b.fill(s)
	}
	for l := range int(most) {
		s.own.Word(layout.Counter(l)).Store(0)
	}
}

// fill overwrites what the served operation left, so that a view which is
// used after its release shows NaN instead of plausible numbers.
func (b *Buffer) fill(s *slot) {
	for l := range s.shown.LocalExperts {
		n := min(int64(s.own.Word(layout.Counter(int(l))).Load()), s.shown.RowsPerExpert)
		s.shown.Head(l, n, func(r layout.Region) { fillBytes(s.own.Bytes(r.Off, r.Bytes)) })
	}
}

func fillBytes(p []byte) {
	for i := range p {
		p[i] = 0xff
	}
}
