package model

import "github.com/moewire/moewire/tests/model/search"

// Where a process can stand between two accesses to shared memory. What lies
// between two of these places touches private variables, or words that no
// other process can look at in between, and is one step.
const (
	pcIdle    = iota // between calls
	pcDWait          // waits in a dispatch, or collects open owners
	pcReserve        // send: at an owner
	pcPlace
	pcLayout
	pcArrive
	pcRWait    // waits for the readers of the previous combine
	pcOutputs  // outputs are in y, y_ready is not set
	pcCWait    // waits for the outputs of others
	pcReduce   // reads rows of y
	pcPost     // has read the last one
	pcFinish   // sets done after a combine
	pcRelease  // sets the released bit
	pcFinal    // sets the final done
	pcDeferred // writes deferred words at an owner
	pcDeferredArrive
	pcDeferredDone
	pcLeave
	pcBlame // knows which rank to fence
	pcMeet  // has prepared for an update
	pcJoin  // a new process before the rendezvous
	pcSettled
	pcFencing // mutant: has checked, takes the bit out later
	pcEnd     // has made all its calls
	pcFenced  // was told that it is fenced
)

// Move is one step of one process, and the state it leads to.
type Move = search.Move[State]

// mover collects the moves of one process in one state.
type mover struct {
	*Model
	from  State
	p     int
	moves []Move
}

// do records a step and returns the state for it to change.
func (v *mover) do(step Step, arg int) (*State, *Proc) {
	v.moves = append(v.moves, Move{Proc: v.p, Step: uint8(step), Arg: arg, To: v.from})
	s := &v.moves[len(v.moves)-1].To
	return s, &s.proc[v.p]
}

// Next returns every step that is possible in a state. The slice is reused.
func (v *mover) Next(s *State) []Move {
	v.moves = v.moves[:0]
	for p := range v.procs() {
		v.from, v.p = *s, p
		v.steps()
	}
	if v.Patient {
		v.deadlines(s)
	}
	for i := range v.moves {
		m := &v.moves[i]
		v.settleDown(&m.To, m.Proc)
	}
	return v.moves
}

// steps collects the moves of the process v.p.
func (v *mover) steps() {
	q := &v.from.proc[v.p]
	if q.dead == 1 || q.pc == pcEnd || q.pc == pcFenced {
		return
	}
	v.die(q)
	v.quiesceEarly(q)
	if q.opening != 0 {
		v.openSlot()
		return
	}
	if q.pc == pcIdle {
		v.progress()
		v.maybe(q)
		v.begin()
		q = &v.from.proc[v.p]
	}
	v.stepAt(q)
}

// stepAt is what core/ep/cpu does at each place.
func (v *mover) stepAt(q *Proc) {
	switch q.pc {
	case pcDWait:
		v.stepDispatch()
	case pcReserve:
		v.reserve()
	case pcPlace:
		v.place()
	case pcLayout:
		v.publish()
	case pcArrive:
		v.arrive()
	case pcRWait:
		v.readers()
	case pcOutputs:
		v.publishOutputs()
	case pcCWait:
		v.outputsReady()
	case pcReduce:
		v.reduce()
	case pcPost:
		v.afterReduce()
	case pcFinish:
		v.finishCombine()
	default:
		v.stepOther(q)
	}
}

func (v *mover) stepOther(q *Proc) {
	switch q.pc {
	case pcRelease:
		v.release()
	case pcFinal:
		v.releaseDone()
	case pcDeferred:
		v.settleCheck()
	case pcSettled:
		v.settlePublish()
	case pcDeferredArrive:
		v.settleArrive()
	case pcDeferredDone:
		v.settleDone()
	case pcLeave:
		v.leave()
	case pcBlame:
		v.blamed()
	case pcFencing:
		v.fenceLate()
	case pcMeet, pcJoin:
		v.update(q)
	}
}

// waits does what a rank may do in any wait, besides what it waits for: it does the
// bookkeeping, gives up on a rank, or learns that it is out itself.
func (v *mover) waits(waiting uint8) {
	v.progress()
	v.fenced()
	v.giveUp(waiting)
}

// fenced: a rank that sees itself out of members ends its call and writes
// nothing more.
func (v *mover) fenced() {
	if v.member(&v.from, v.p) || v.Mutation == bitAlone && has(v.from.set, v.rank(v.p)) {
		return
	}
	_, q := v.do(stepFenced, -1)
	v.stop(q)
}

// stop ends a process that found itself out: quiesceNow belongs to the same
// moment, as it writes nothing between the two.
func (v *mover) stop(q *Proc) {
	v.quiesceNow(q)
	keepShared(q, pcFenced)
}

// keepShared forgets the private variables of a process that makes no more
// steps, so that states which differ only there are one.
func keepShared(q *Proc, pc uint8) {
	*q = Proc{
		open: q.open, yReady: q.yReady, quiesced: q.quiesced, slab: q.slab,
		epoch: q.epoch, dead: q.dead, pc: pc,
	}
}
