package op

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// A transfer is an operation of a carrier: one or more work requests, posted
// on one or more queues. It owns its completion. The slots of a Table are only
// where it is carried out: each slot is assigned under a new generation, and
// a work request's number says which slot, which generation and which part.
//
// It ends twice. It is *ended* once, by the first of done, failed, cancelled:
// then all waiters wake up. It is *released* when the last of its work requests
// has completed: only from then on does nothing touch its memory any more.

// Sentinels of transfers.
var (
	// ErrWouldBlock means that every slot is in use. Nothing has happened.
	ErrWouldBlock = errors.New("all transfers are in use")
	// ErrStale means that the slot serves another transfer by now.
	ErrStale = errors.New("transfer was dropped")
	// ErrTimedOut is the error of a wait that ended before its transfer.
	ErrTimedOut = errors.New("deadline passed")
)

// Bounds of a table and of a transfer.
const (
	MaxSlots = 1 << 16
	MaxParts = 1 << 10
)

const partWords = MaxParts / 64

// Ref names a transfer. It is plain data; after Drop it names nothing. The zero Ref
// names nothing either, and no transfer has request number 0.
type Ref struct {
	slot uint32
	gen  uint32
}

// Outcome says what a completion has changed.
type Outcome uint8

// The outcomes of Complete.
const (
	Counted   Outcome = iota // a part of a transfer has ended
	Stale                    // of a transfer that is gone: only the provider counts it
	Duplicate                // of a part that has ended before
	Unknown                  // no such slot or part
)

// TableStats counts. InUse is of this moment.
type TableStats struct {
	InUse                              int
	Capped, Stale, Duplicates, Unknown uint64
}

type transfer struct {
	op       Op
	gen      uint32
	parts    int32
	left     int32 // parts without an end
	inUse    bool
	dropped  bool
	numBytes int64
	imm      uint32
	done     [partWords]uint64 // one bit per ended part
	wake     chan struct{}     // closed when it ends, is released or dropped; nil: no caller waits
}

// Table is where transfers are carried out. Safe for concurrent use; nothing
// but its making, and waits, allocates.
type Table struct {
	mu     sync.Mutex
	slots  []transfer
	free   []uint32
	stats  TableStats
	closed error

	attended atomic.Uint64 // request number 0 of the transfer that Attend was called for
	nudge    func()
	due      bool // nudge is to be called
}

// NewTable makes a table of n slots.
func NewTable(n int) (*Table, error) {
	if n < 1 || n > MaxSlots {
		return nil, fmt.Errorf("op: %d slots, allowed 1 to %d", n, MaxSlots)
	}
	t := &Table{slots: make([]transfer, n), free: make([]uint32, n)}
	for i := range t.free {
		t.free[i] = uint32(n - 1 - i)
		t.slots[i].gen = 1 // the zero Ref names nothing
	}
	return t, nil
}

// Begin assigns a slot to a transfer of some parts.
func (t *Table) Begin(parts int) (Ref, error) {
	if parts < 1 || parts > MaxParts {
		return Ref{}, fmt.Errorf("op: %d parts, allowed 1 to %d", parts, MaxParts)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed != nil {
		return Ref{}, t.closed
	}
	if len(t.free) == 0 {
		t.stats.Capped++
		return Ref{}, ErrWouldBlock
	}
	i := t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	s := &t.slots[i]
	s.op, s.done = Op{}, [partWords]uint64{}
	s.parts, s.left, s.numBytes, s.imm = int32(parts), int32(parts), 0, 0
	s.inUse, s.dropped = true, false
	t.stats.InUse++
	return Ref{slot: i, gen: s.gen}, nil
}

// RequestID is the number to post a part's work request under.
func (r Ref) RequestID(part int) uint64 {
	return uint64(r.gen)<<32 | uint64(r.slot)<<16 | uint64(part)
}

// RefOf is the reverse of RequestID. It takes any number: what the number names may
// not exist.
func RefOf(requestID uint64) Ref {
	return Ref{slot: uint32(requestID >> 16 & 0xffff), gen: uint32(requestID >> 32)}
}

// Complete records a part's end. The carrier reports every completion here, also
// completions of transfers that no longer exist. A part that could not
// be handed to the carrier ends here with the reason.
func (t *Table) Complete(id uint64, err error, numBytes int64, imm uint32) Outcome {
	t.mu.Lock()
	defer t.unlock()
	slot, part := uint32(id>>16&0xffff), int32(id&0xffff)
	if int(slot) >= len(t.slots) {
		t.stats.Unknown++
		return Unknown
	}
	s := &t.slots[slot]
	switch {
	case !s.inUse || s.gen != uint32(id>>32):
		t.stats.Stale++
		return Stale
	case part >= s.parts:
		t.stats.Unknown++
		return Unknown
	case s.done[part/64]>>(part%64)&1 == 1:
		t.stats.Duplicates++
		return Duplicate
	}
	s.done[part/64] |= 1 << (part % 64)
	s.numBytes += numBytes
	if err == nil {
		s.imm = imm
	} else {
		s.op.End(Failed, err)
	}
	t.finish(slot)
	return Counted
}

// finish counts a part that has ended.
func (t *Table) finish(slot uint32) {
	s := &t.slots[slot]
	s.left--
	if s.left <= 0 {
		s.op.End(Done, nil)
	}
	t.wakeWaiters(slot)
	t.reuse(slot)
}

// reuse makes a slot free once neither the carrier nor the transfer's owner needs it.
func (t *Table) reuse(slot uint32) {
	s := &t.slots[slot]
	if s.left > 0 || !s.dropped || !s.inUse {
		return
	}
	s.inUse = false
	s.gen = max(s.gen+1, 1) // repeats after 2^32 - 1 uses of this slot
	t.stats.InUse--
	t.free = append(t.free, slot)
}

func (t *Table) find(r Ref) (*transfer, error) {
	if int(r.slot) >= len(t.slots) || !t.slots[r.slot].inUse || t.slots[r.slot].gen != r.gen || t.slots[r.slot].dropped {
		return nil, ErrStale
	}
	return &t.slots[r.slot], nil
}

// Stats returns the counts of this moment.
func (t *Table) Stats() TableStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stats
}
