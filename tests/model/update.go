package model

// prepare begins a membership update: it ends every operation, and from then
// on this process writes nothing more in its epoch.
func (v *mover) prepare(q *Proc) {
	q.deferred = [maxDeferred]Deferred{}
	for j := range v.Slots {
		l := &q.slot[j]
		*l = Slot{own: l.own, served: l.served, a: l.a, poison: l.poison}
	}
	q.pc, q.work = pcMeet, 0
}

// update is the rendezvous, and what follows it.
func (v *mover) update(q *Proc) {
	came := bit(v.p)
	switch {
	case v.from.epoch > q.epoch && v.from.met&came != 0:
		v.installed(q)
	case v.from.met&came == 0 && q.pc == pcJoin:
		s, _ := v.do(stepMeet, -1)
		s.met |= came
	case q.pc == pcJoin:
	case v.from.met&came == 0:
		v.fenced()
		v.leaveToMeet()
	default:
		v.install()
	}
}

// leaveToMeet: a rank that prepares leaves the old epoch, so that no rank waits for it
// there, and is quiesced.
func (v *mover) leaveToMeet() {
	if !v.member(&v.from, v.p) {
		return
	}
	s, q := v.do(stepPrepare, -1)
	s.met |= bit(v.p)
	v.quiesceNow(q)
	if v.Mutation != prepareStays {
		s.set &^= bit(v.rank(v.p))
	}
}

// install begins the new epoch by one compare-and-swap, when every rank has
// come that will come. It ends the old epoch for the others.
func (v *mover) install() {
	present := v.from.met
	if !v.Survive {
		if present != v.all()&^bit(v.Ranks-1)|bit(v.Ranks) {
			return
		}
		present = v.all()
	} else if v.from.set&^present != 0 && int(v.from.fences) >= v.Suspicions {
		return
	}
	s, _ := v.do(stepInstall, -1)
	s.base = v.firstOp(s)
	s.epoch, s.set, s.newSet = 1, present, present
	s.joined = uint8(v.procs() - 1)
}

// firstOp is the new epoch's base: above every operation that any participant has
// opened. Words of higher numbers are nowhere in their memory.
func (v *mover) firstOp(s *State) (base uint8) {
	if v.Mutation == restartOps {
		return 0
	}
	for p := range v.Ranks {
		if !has(s.met, p) {
			continue
		}
		for j := range v.Slots {
			served := s.proc[p].slot[j].served
			if v.Mutation == baseTooLow {
				served -= uint8(v.Slots)
			}
			base = max(base, served)
		}
	}
	for int(base)%v.Slots != 0 {
		base++ // only to keep the slots of the model's programs in order
	}
	return base
}

// installed is a process that learns of the new epoch: it applies the poison
// rule to what it opened in the old one, and its slots open by reopen.
func (v *mover) installed(q *Proc) {
	_, to := v.do(stepInstalled, -1)
	to.epoch, to.call, to.pc = v.from.epoch, 0, pcIdle
	for j := range v.Slots {
		l := &to.slot[j]
		if q.pc == pcJoin {
			l.own = uint8(j)
			to.fresh = uint8(v.Slots)
		} else if v.awaitsDone(q, l) {
			l.poison = 1
		}
		l.a, l.served = 0, v.from.base+uint8(j)+1-uint8(v.Slots)
	}
}

// awaitsDone reports whether a process of the old epoch may still write into a
// slab that was opened with it.
func (v *mover) awaitsDone(q *Proc, l *Slot) bool {
	if v.Mutation == noUpdatePoison {
		return false
	}
	for t := range v.Ranks {
		if has(v.unfinished(q, l), t) && t != v.rank(v.p) && v.mayWrite(q, t) {
			return true
		}
	}
	return v.Mutation != updateLiftsPoison && l.poison == 1
}

// mayWrite: neither quiesced nor known to be dead, as far as owner q knows.
func (v *mover) mayWrite(q *Proc, t int) bool {
	lost := &v.from.proc[t]
	if v.Mutation == updateLiftsPoison {
		return false // its rank number is a member again
	}
	return lost.quiesced <= q.epoch
}
