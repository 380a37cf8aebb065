package model

// die: a process stops forever, between any two of its steps.
func (v *mover) die(q *Proc) {
	if int(v.from.deaths) == v.Deaths || !has(v.Targets, v.p) {
		return
	}
	s, to := v.do(stepDie, -1)
	s.deaths++
	to.dead = 1
	keepShared(to, to.pc)
	to.pc = pcIdle
}

// giveUp: the deadline of a wait fires for one of the ranks waited for.
func (v *mover) giveUp(waiting uint8) {
	if v.Patient {
		return // see deadlines
	}
	for t := range v.Ranks {
		if t != v.rank(v.p) && has(waiting, t) {
			v.fence(t)
		}
	}
}

// fence takes rank t out of members: one compare-and-swap from the word that
// was read, refused when this rank is not in it itself.
func (v *mover) fence(t int) {
	if !v.mayFence(&v.from, t) {
		return
	}
	if v.Mutation == fenceBlindly {
		_, q := v.do(stepFenceLook, t)
		q.target, q.ret, q.pc = uint8(t+1), q.pc, pcFencing
		return
	}
	s, _ := v.do(stepFence, t)
	v.takeOut(s, t)
}

// mayFence is the condition of the compare-and-swap, and the bound on
// suspicions of live ranks.
func (v *mover) mayFence(s *State, t int) bool {
	in := v.member(s, v.p)
	switch v.Mutation {
	case fenceFromOutside:
		in = s.epoch == s.proc[v.p].epoch
	case bitAlone, fenceByBit:
		in = has(s.set, v.rank(v.p))
	}
	if !in || !has(s.set, t) {
		return false
	}
	if v.Suspects != 0 && !has(v.Suspects, t) {
		return false
	}
	return s.proc[v.peer(s, v.p, t)].dead == 1 || int(s.fences) < v.Suspicions
}

// takeOut changes members, and looks whether that was right.
func (v *mover) takeOut(s *State, t int) {
	lost := v.peer(s, v.p, t)
	if s.epoch != s.proc[v.p].epoch {
		s.violate(oldFence)
	}
	if s.proc[lost].dead == 0 {
		s.fences++
		if v.Suspicions == 0 || v.Patient {
			s.violate(wrongTarget)
		}
	}
	s.set &^= bit(t)
	if s.set == 0 {
		s.violate(emptySet)
	}
}

// fenceLate is a mutant's fence: the bit goes, whatever the word is by now.
func (v *mover) fenceLate() {
	s, q := v.do(stepFence, int(v.from.proc[v.p].target)-1)
	t := int(q.target) - 1
	q.pc, q.ret, q.target = q.ret, 0, 0
	v.takeOut(s, t)
}

// quiesceNow promises that this process writes nothing more in its epoch. The
// word is the process's own, and only grows: a later promise covers the earlier
// epochs, and one of a successor does not count for its predecessor.
func (v *mover) quiesceNow(q *Proc) { q.quiesced = q.epoch + 1 }

// quiesceEarly is a mutant: the promise is given when the process learns that it
// is out, while one of its steps still runs.
func (v *mover) quiesceEarly(q *Proc) {
	if v.Mutation == quiescedTooEarly && q.quiesced <= q.epoch && !v.member(&v.from, v.p) {
		_, to := v.do(stepQuiesced, -1)
		v.quiesceNow(to)
	}
}

// leave takes this rank out of members, as Close does after its releases.
func (v *mover) leave() {
	s, q := v.do(stepLeave, -1)
	if v.member(s, v.p) {
		s.set &^= bit(v.rank(v.p))
	}
	v.quiesceNow(q)
	keepShared(q, pcEnd)
}
