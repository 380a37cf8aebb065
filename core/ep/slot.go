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
	own    transport.Segment
	ownID  int
	served uint64
	a      uint64 // A(served): members when it was opened, one bit each

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
	escaped  bool   // somebody outside holds st
	timeout  time.Duration
	deadline time.Time // zero: not started, or none
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
}

func (c *call) begin(timeout time.Duration) {
	c.retire()
	if c.spare == nil {
		c.spare = new(op.Op)
	}
	c.st, c.spare = c.spare, nil
	*c.st = op.Op{}
	c.timeout, c.deadline = timeout, time.Time{}
}

// retire forgets an ended operation, keeping its memory if it can be reused.
func (c *call) retire() {
	if c.st != nil && !c.escaped {
		c.spare = c.st
	}
	c.st, c.escaped = nil, false
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

// reopen opens every slot whose operation everybody has finished with. Every
// call does this, so that one thread can drive several ranks.
func (b *Buffer) reopen() {
	for j := range b.slots {
		s := &b.slots[j]
		if s.own == nil || (s.live && s.isOpen()) || !b.finished(s) {
			continue
		}
		b.clean(s)
		b.openSlot(s, s.served+uint64(len(b.slots)))
	}
}

// finished reports whether all of A(served) have set their final done.
func (b *Buffer) finished(s *slot) bool {
	for rest := s.a; rest != 0; rest &= rest - 1 {
		done := s.own.Word(layout.Done(bits.TrailingZeros64(rest))).Load()
		if !layout.IsFor(done, s.served) || !layout.IsLast(done) {
			return false
		}
	}
	return true
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
	if b.cfg.DebugFill {
		b.fill(s, most)
	}
	for l := range int(most) {
		s.own.Word(layout.Counter(l)).Store(0)
	}
}

// fill overwrites what the served operation left, so that a view which is
// used after its release shows NaN instead of plausible numbers.
func (b *Buffer) fill(s *slot, experts int64) {
	lay := &s.slab
	if s.op != s.served || experts != lay.LocalExperts {
		return // the shape is not ours: the operation failed, nobody has views
	}
	for l := range experts {
		n := min(int64(s.own.Word(layout.Counter(int(l))).Load()), lay.RowsPerExpert)
		first := l * lay.RowsPerExpert
		fillBytes(s.own.Bytes(lay.RowsOff+first*lay.RowBytes, n*lay.RowBytes))
		fillBytes(s.own.Bytes(lay.YOff+first*2*lay.Hidden, n*2*lay.Hidden))
		fillBytes(s.own.Bytes(lay.SrcInfoOff+first*4, n*4))
		for g := int64(0); lay.FP8 && g < lay.Hidden/layout.QuantBlock; g++ {
			row := (l*lay.Hidden/layout.QuantBlock + g) * lay.RowsPerExpert
			fillBytes(s.own.Bytes(lay.ScalesOff+row*4, n*4))
		}
	}
}

func fillBytes(p []byte) {
	for i := range p {
		p[i] = 0xff
	}
}
