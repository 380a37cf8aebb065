package model

// Bounds of the arrays of a State. Configurations stay within them.
const (
	maxProcs    = 3
	maxSlots    = 2
	maxSlabs    = 6
	maxDeferred = 3
)

// retired marks a slab that its owner will never open again. What is written
// there is forgotten, so that states which differ only in it are one state.
const retired = 255

// State is everything that can differ between two moments: the shared words,
// and each process's own variables. It has bytes only, so that it can be
// compared and hashed as plain memory. Operation numbers are stored plus one.
type State struct {
	epoch, set uint8 // members: one word
	base       uint8 // first operation of epoch 1, known from the rendezvous
	joined     uint8 // process that is the last rank in epoch 1
	met        uint8 // processes that have come to the rendezvous
	newSet     uint8 // members that epoch 1 began with

	fences uint8 // fences of live ranks so far
	deaths uint8
	broken uint8 // a property that does not hold: an index into broken
	proc   [maxProcs]Proc
}

// Word is an operation number plus one, and a detail.
type Word struct{ op, detail uint8 }

// Proc is one process: its shared control page and slabs, and its private
// variables.
type Proc struct {
	// Control page and slabs: others read and write these.
	open     [maxSlots]Word // detail: slab
	yReady   [maxSlots]Word // detail: combines published << 1 | released
	quiesced uint8          // epoch + 1
	slab     [maxSlabs]Slab

	// Private.
	dead         uint8
	epoch        uint8 // that it joined
	pc           uint8
	call         uint8 // index into its program
	work         uint8 // slot that pc is about
	ready        uint8 // owners of this round of send
	rest         uint8 // owners or sources that the current loop still visits
	at           uint8 // owner that the current sub-steps are about
	ret          uint8 // pc to go back to when what is deferred is written
	opening      uint8 // slot + 1 that is between reading members and opening
	newA         uint8 // members as read for it
	settling     uint8 // index + 1 into deferred
	deferredSlab uint8 // where it is written
	bad          uint8 // a row of y was not what it should be
	fresh        uint8 // next unused slab
	target       uint8 // rank + 1 that a suspicion has found
	seen         uint8 // members when the suspicion began
	deferred     [maxDeferred]Deferred
	slot         [maxSlots]Slot
}

// Slot is a slot's private side, with core/ep/cpu's names.
type Slot struct {
	// As owner.
	own, served, a, poison uint8

	// As source.
	op, live                       uint8
	dst, pos                       [maxProcs]uint8 // slab + 1, position + 1, by rank
	sent, unsent, awaited, counted uint8
	combines                       uint8
	dispatching, combining         uint8 // pending
	published, need                uint8
	masked                         uint8 // by the caller, for this operation
}

// Deferred is one entry of the list of words still to be written.
type Deferred struct{ op, owners, withY uint8 }

// Slab is memory that serves one operation at a time.
type Slab struct {
	serves, era uint8 // observer: operation + 1 and epoch, or retired
	counter     uint8
	arrive      [maxProcs]uint8
	done        [maxProcs]Word // detail: combines << 1 | final
	layout      [maxProcs]uint8
	row         [maxProcs]uint8
	y           [maxProcs]Word // op: content of the row; detail: combine + 1
}

func bit(r int) uint8 { return 1 << r }

func has(set uint8, r int) bool { return set>>r&1 == 1 }

// counted packs a number of combines and a flag, as protocol.Counted does.
func counted(op, combines uint8, last bool) Word {
	w := Word{op: op, detail: combines << 1}
	if last {
		w.detail |= 1
	}
	return w
}

func (w Word) isLast() bool    { return w.detail&1 == 1 }
func (w Word) combines() uint8 { return w.detail >> 1 }

// content is what process p writes into its row of an operation.
func content(p int, op uint8) uint8 { return op<<2 | uint8(p) }

// member reports whether process p is in members: epoch and bit.
func (m *Model) member(s *State, p int) bool {
	return s.epoch == s.proc[p].epoch && has(s.set, m.rank(p))
}

// out reports whether rank t of the epoch that p joined has left.
func (m *Model) out(s *State, p, t int) bool {
	return s.epoch != s.proc[p].epoch || !has(s.set, t)
}

// rank returns a process's rank: the last process succeeds the last rank.
func (m *Model) rank(p int) int { return min(p, m.Ranks-1) }

// peer returns the process that p knows as rank r.
func (m *Model) peer(s *State, p, r int) int {
	if s.proc[p].epoch > 0 && r == m.Ranks-1 {
		return int(s.joined)
	}
	return r
}

func (m *Model) all() uint8 { return 1<<m.Ranks - 1 }

// slotOf returns the slot of an operation number plus one.
func (m *Model) slotOf(op uint8) int { return int(op-1) % m.Slots }

// isOpen reports whether the own slab serves the operation that is sent.
func (l *Slot) isOpen() bool { return l.served == l.op }
