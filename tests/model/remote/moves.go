package remote

import "github.com/moewire/moewire/tests/model/search"

// Where a rank can stand between two steps. Each step is under Buffer.mu, and
// no other rank can look at what it changes. So one step may do much.
const (
	pcIdle   = iota // between calls
	pcWait          // in a dispatch or a combine
	pcLeave         // waits for its messages to be taken, then leaves
	pcMeet          // has prepared for an update
	pcEnd           // has made all its calls; its messages are still taken
	pcClosed        // has left
	pcFenced
)

// Step names a step by the function of core/ep/cpu that makes it.
type Step uint8

const (
	stepReceive Step = iota
	stepReopen
	stepSettle
	stepFlush
	stepBegin
	stepDispatch
	stepCancel
	stepCombine
	stepRelease
	stepLeave
	stepFenced
	stepLearn
	stepFence
	stepDie
	stepCut
	stepMeet
	stepInstall
)

var stepNames = [...]string{
	stepReceive:  "receive: a message of",
	stepReopen:   "reopen: slot",
	stepSettle:   "settle: at",
	stepFlush:    "flush",
	stepBegin:    "begins a call, with rows for",
	stepDispatch: "stepDispatch",
	stepCancel:   "Cancel",
	stepCombine:  "stepCombine",
	stepRelease:  "Release",
	stepLeave:    "leaves",
	stepFenced:   "sees itself out",
	stepLearn:    "learns of the next set",
	stepFence:    "takes out",
	stepDie:      "dies; so many of its messages arrive:",
	stepCut:      "loses its link with",
	stepMeet:     "all have met",
	stepInstall:  "Install",
}

// Move is one step of one rank, and the state it leads to.
type Move = search.Move[State]

// mover collects the moves in one state.
type mover struct {
	*Model
	from  State
	p     int
	moves []Move
}

// try makes a step on a copy, and keeps the copy if the step reports true.
func (v *mover) try(step Step, arg int, do func(s *State, q *Proc) bool) {
	v.moves = append(v.moves, Move{Proc: v.p, Step: uint8(step), Arg: arg, To: v.from})
	s := &v.moves[len(v.moves)-1].To
	if !do(s, &s.proc[v.p]) {
		v.moves = v.moves[:len(v.moves)-1]
	}
}

// Next returns every step that is possible in a state. The slice is reused.
func (v *mover) Next(s *State) []Move {
	v.moves, v.from = v.moves[:0], *s
	for v.p = range v.Ranks {
		if s.proc[v.p].dead == 0 {
			v.steps(&s.proc[v.p])
		}
	}
	v.rendezvous()
	return v.moves
}

// steps collects the moves of the rank v.p.
func (v *mover) steps(q *Proc) {
	v.die()
	if q.pc == pcClosed {
		return
	}
	v.learn()
	switch {
	case q.pc == pcMeet:
		v.try(stepInstall, -1, v.install)
		return
	case q.pc == pcFenced:
		v.comesBack(q)
		return
	case !v.from.member(v.p):
		v.try(stepFenced, -1, v.fenced)
		return
	}
	v.cut()
	v.progress(q)
	switch q.pc {
	case pcIdle:
		v.begin(q)
	case pcWait:
		v.wait(q)
	case pcLeave:
		v.try(stepLeave, -1, v.leave)
	}
}

// progress is what a rank does at every step, and while its caller computes.
func (v *mover) progress(q *Proc) {
	for t := range v.Ranks {
		v.try(stepReceive, t, func(s *State, q *Proc) bool { return v.receive(s, q, t) })
	}
	for j := range v.Slots {
		v.try(stepReopen, j, func(s *State, q *Proc) bool { return v.reopen(s, q, j) })
	}
	for i := range q.deferred {
		for r := range v.Ranks {
			if has(q.deferred[i].owners, r) {
				v.try(stepSettle, r, func(s *State, q *Proc) bool { return v.settleAt(s, q, i, r) })
			}
		}
	}
	v.try(stepFlush, -1, v.flush)
}

// begin starts the next call of the program.
func (v *mover) begin(q *Proc) {
	calls := v.program(q, v.p)
	if int(q.call) == len(calls) {
		v.try(stepBegin, -1, func(_ *State, q *Proc) bool {
			q.pc = pcEnd
			return true
		})
		return
	}
	switch c := calls[q.call]; c.Kind {
	case Dispatch, Cancelled:
		v.startDispatch(q)
	case Maybe:
		v.try(stepRelease, -1, v.releaseInstead)
		v.try(stepBegin, -1, v.startCombine)
	case Combine:
		v.try(stepBegin, -1, v.startCombine)
	default:
		v.try(stepBegin, -1, func(_ *State, q *Proc) bool {
			q.pc = pcLeave
			return true
		})
	}
}

// wait goes on with a call, gives it up, or takes out a rank that it waits for.
func (v *mover) wait(q *Proc) {
	kind := v.program(q, v.p)[q.call].Kind
	if q.slot[q.work].dispatching == 1 {
		v.try(stepDispatch, -1, v.stepDispatch)
		if kind == Cancelled {
			v.try(stepCancel, -1, v.cancel)
		}
	} else {
		v.try(stepCombine, -1, v.stepCombine)
	}
	for t := range v.Ranks {
		v.try(stepFence, t, func(s *State, q *Proc) bool { return v.fence(s, q, t) })
	}
}

// endCall goes on behind the present call.
func (q *Proc) endCall() {
	q.pc, q.work = pcIdle, 0
	q.call++
}
