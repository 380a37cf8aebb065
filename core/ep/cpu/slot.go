package cpu

import (
	"time"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/suspicion"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/op"
)

// slot is one of the S places for operations. It has two sides: as owner,
// `served` is the operation that peers may write into our slab for; as source,
// `op` is the operation that we send and combine. They differ while our slab
// waits for its reopening. Guarded by Buffer.mu.
type slot struct {
	index int

	// As owner.
	own      *ownSlab // nil until the buffer is sized
	served   uint64
	a        rankset.Set // A(served): members when it was opened
	shown    layout.Slab // what the caller was shown of operation shownFor
	shownFor uint64

	// As source.
	op         uint64
	live       bool // the handle is valid
	slab       layout.Slab
	params     params
	plan       plan
	weights    []float32        // pre-reduced: copy of the caller's, [T, K]
	dst        []domain.Segment // the slab that we wrote to at each owner
	planned    rankset.Set      // owners that the plan has rows for
	notified   rankset.Set      // owners that have our counts (deterministic)
	ordered    bool             // our slab has its order (deterministic)
	sent       rankset.Set      // owners that have our arrive
	placed     rankset.Set      // of these, those that have our rows, too
	unsent     rankset.Set      // owners that still get rows
	awaited    rankset.Set      // sources that we wait for: their arrive is missing
	counted    rankset.Set      // sources that count: with their rows
	located    bool             // nothing is left to send; plan.rows is made, if a combine may come
	lacks      []violation      // owners without room for our rows: the ranks disagree, or their memory was overwritten
	spoiled    rankset.Set      // owners that cannot give our rows back
	dispatch   dispatchCall
	combine    combineCall
	rows       int64   // flat: the number that the caller was told
	received   []int32 // rows reserved per local expert, as they were read
	readerWait call    // waiting for the readers of the last combine
	combines   int     // finished

	warm []warmth // per owner

	remote  []remoteSlot // per rank; nil while there are no remote ones
	scatter scatterList  // of op, for remote owners
}

// warmth remembers how many rows per expert were prefaulted, where and for
// which shape.
type warmth struct {
	seg   domain.Segment
	shape layout.Shape
	rows  int64
}

// call is the waiting side of one operation.
type call struct {
	st        *op.Op // nil: never begun for this operation
	spare     *op.Op // an ended st that no task and no pending operation holds
	holders   int    // tasks and pending operations that refer to st
	timeout   time.Duration
	deadline  time.Time           // zero: not started, or none
	waits     time.Time           // when its first wait of this phase began; zero: not yet
	sent      bool                // the caller knows that PhaseSent is reached: the next phase's deadline counts
	behind    bool                // runs in the background: no caller waits for it now
	queued    bool                // it is among the background's tasks
	suspicion suspicion.Suspicion // finds the ranks to blame for a deadline that has passed
}

type dispatchCall struct {
	call
	args ep.DispatchArgs
	res  ep.Result
}

type combineCall struct {
	call
	args      ep.CombineArgs
	active    rankset.Set
	published bool
	need      rankset.Set // owners that we wait for: their outputs are missing
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
	c.timeout, c.deadline, c.waits, c.sent = timeout, time.Time{}, time.Time{}, false
	c.behind, c.queued = false, false
	c.suspicion.Reset()
}

// retire forgets an ended operation. Its memory is reused only if no holder can
// still ask for its result.
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
	s.dst = make([]domain.Segment, ranks)
	s.warm = make([]warmth, ranks)
}

func (s *slot) endCalls(state op.State, err error) {
	s.dispatch.end(state, err)
	s.combine.end(state, err)
	s.readerWait.end(state, err)
}

// held reports whether a caller may still read the operation's rows: its handle
// is live, and no combine of it has begun.
func (s *slot) held() bool { return s.live && s.combines == 0 && !s.combine.pending() }

func (b *Buffer) numHeld() (n int) {
	for j := range b.slots {
		if b.slots[j].held() {
			n++
		}
	}
	return n
}

// isOpen reports whether our slab serves the operation that we send.
func (s *slot) isOpen() bool { return s.own != nil && s.served == s.op }
