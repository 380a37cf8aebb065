package model

import "math/bits"

// deadlines: in a patient model a deadline fires only when no rank can go on
// without one: it is long compared with every step. Several may fire together.
func (v *mover) deadlines(s *State) {
	if !v.Patient || v.canGoOn(s) {
		return
	}
	for p := range v.procs() {
		v.from, v.p = *s, p
		if v.waitingOf(p) == 0 || v.from.proc[p].pc == pcBlame {
			continue
		}
		_, q := v.do(stepDeadline, -1)
		q.ret, q.seen, q.pc = q.pc, s.set, pcBlame
	}
}

// canGoOn reports whether some rank has a step other than dying, or than a
// suspicion that still has its reason.
func (v *mover) canGoOn(s *State) bool {
	for i := range v.moves {
		m := &v.moves[i]
		if Step(m.Step) != stepDie && !v.blames(s, m.Proc) {
			return true
		}
	}
	return false
}

func (v *mover) blames(s *State, p int) bool {
	q := &s.proc[p]
	v.from = *s
	return q.pc == pcBlame && q.seen == s.set && v.waitingOf(p) != 0
}

// waitingOf returns the ranks that process p waits for, as it stands in v.from; an idle
// process begins its next call. 0: it is not in a wait.
func (v *mover) waitingOf(p int) uint8 {
	me := v.p
	v.p = p
	defer func() { v.p = me }()
	q := &v.from.proc[p]
	if q.dead == 1 || q.opening != 0 {
		return 0
	}
	if q.pc == pcIdle {
		v.begin()
	}
	pc := q.pc
	if pc == pcBlame {
		pc = q.ret
	}
	return v.waitingAt(pc, q) &^ bit(v.rank(p))
}

func (v *mover) waitingAt(pc uint8, q *Proc) uint8 {
	l := &q.slot[q.work]
	switch {
	case pc == pcDWait && q.ready == 0:
		return v.dispatchWaits(q, l)
	case pc == pcRWait:
		return v.reading(q, l)
	case pc == pcCWait:
		ready, _ := v.outputs(q, l)
		return l.need &^ ready
	}
	return 0
}

// blamed is what follows a deadline: a look along the chain of waits, and
// the fence of the rank that it finds, from the very word that members was before. If
// another rank was fenced meanwhile, every deadline is fresh.
func (v *mover) blamed() {
	q := &v.from.proc[v.p]
	if q.target == 0 {
		v.blame(v.waitingOf(v.p))
		return
	}
	if t := int(q.target) - 1; v.from.set == q.seen || v.Mutation == fenceAnyWord && has(v.from.set, t) {
		s, to := v.do(stepFence, t)
		v.takeOut(s, t)
		endBlame(to)
		return
	}
	_, to := v.do(stepExtend, -1)
	endBlame(to)
}

func endBlame(q *Proc) { q.pc, q.ret, q.seen, q.target = q.ret, 0, 0, 0 }

// blame finds the rank to fence: the first rank on the chain of waits that does
// not wait, or whose beat stands still. Waiting ranks publish the lowest rank
// that they wait for.
func (v *mover) blame(waiting uint8) {
	if waiting == 0 { // its words have come after all
		_, q := v.do(stepExtend, -1)
		endBlame(q)
		return
	}
	at := bits.TrailingZeros8(waiting)
	for passed := bit(v.rank(v.p)); v.Mutation != blameWaitedFor; {
		next := v.waitingOf(v.peer(&v.from, v.p, at))
		if next == 0 {
			break
		}
		if has(passed, at) {
			v.from.violate(circle)
			break
		}
		passed |= bit(at)
		at = bits.TrailingZeros8(next)
	}
	_, q := v.do(stepBlame, at)
	q.target = uint8(at + 1)
}
