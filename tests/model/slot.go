package model

// progress is the bookkeeping that every call and every step of a wait does:
// it drops lost ranks, opens slots that every rank has finished with, and
// writes what is deferred. No call waits for it, so each of these is possible, not due.
func (v *mover) progress() {
	q := &v.from.proc[v.p]
	v.settle(q)
	for j := range v.Slots {
		l := &q.slot[j]
		if l.live == 1 && l.isOpen() || v.neverComes(q, l) {
			continue
		}
		v.dropFromSlot(q, j)
		if v.unfinished(q, l) == 0 || v.Mutation == noDoneWait {
			v.reopen(j)
		}
	}
}

// neverComes: no rank calls the operation that the slot would be opened for.
func (v *mover) neverComes(q *Proc, l *Slot) bool {
	return l.served+uint8(v.Slots) > v.base(q)+v.lastOp(q.epoch)
}

// unfinished returns the ranks of A without a final done.
func (v *mover) unfinished(q *Proc, l *Slot) (ranks uint8) {
	for t := range v.Ranks {
		done := q.slab[l.own].done[t]
		finished := done.op == l.served && done.isLast()
		if v.Mutation == anyDoneReopens {
			finished = done.op == l.served
		}
		if has(l.a, t) && !finished {
			ranks |= bit(t)
		}
	}
	return ranks
}

// reopen has found every done word, and reads members into A. The done words
// stay as they are until this rank opens the slot, so that it does not matter
// when each of them was looked at.
func (v *mover) reopen(j int) {
	_, q := v.do(stepReopen, j)
	q.opening, q.newA = uint8(j+1), v.ranksIn(v.from.epoch, q)
}

// ranksIn returns the members of the epoch that q joined.
func (v *mover) ranksIn(epoch uint8, q *Proc) uint8 {
	if epoch != q.epoch {
		return bit(v.rank(v.p))
	}
	return v.from.set
}

// again marks, in A, that a mutant has one more step to make after open.
const again = 128

// openSlot lets peers write into the slab for the slot's next operation.
func (v *mover) openSlot() {
	s, q := v.do(stepOpenSlot, int(v.from.proc[v.p].opening)-1)
	l := &q.slot[q.opening-1]
	if l.a&again != 0 {
		v.openedTooEarly(s, q, l)
		return
	}
	if l.poison == 1 && v.Mutation != noPoison {
		v.replaceSlab(s, q, l)
	}
	l.served += uint8(v.Slots)
	l.a, l.poison = q.newA, 0
	b := &q.slab[l.own]
	v.clean(b)
	b.serves, b.era = l.served, q.epoch
	q.open[q.opening-1] = Word{l.served, l.own}
	if v.Mutation == countersLate || v.Mutation == membersAfterOpen {
		l.a |= again
		return
	}
	q.opening, q.newA = 0, 0
}

// openedTooEarly is what a mutant does after open, and should do before.
func (v *mover) openedTooEarly(s *State, q *Proc, l *Slot) {
	l.a &^= again
	if v.Mutation == countersLate {
		q.slab[l.own].counter = 0
	} else {
		l.a = s.set
	}
	q.opening, q.newA = 0, 0
}

// clean zeroes the counters, and forgets contents that equal no valid ones.
func (v *mover) clean(b *Slab) {
	if v.Mutation != countersLate {
		b.counter = 0
	}
	if v.Mutation != layoutView {
		b.layout = [maxProcs]uint8{}
	}
	b.row, b.y = [maxProcs]uint8{}, [maxProcs]Word{}
}

// replaceSlab gives the slot a fresh slab: the old one may still be written.
func (v *mover) replaceSlab(s *State, q *Proc, l *Slot) {
	if int(q.fresh) == maxSlabs {
		panic("model: more fresh slabs than maxSlabs")
	}
	if v.Suspicions == 0 && v.Deaths == 0 {
		s.violate(needlessPoison)
	}
	q.slab[l.own] = Slab{serves: retired}
	l.own = q.fresh
	q.fresh++
}

// poisons decides whether a lost rank may still write into the slab: not if
// its done is there, its process is known to be dead, or it is quiesced.
func (v *mover) poisons(owner *Proc, l *Slot, t int) bool {
	lost := &v.from.proc[v.peer(&v.from, v.p, t)]
	switch v.Mutation {
	case poisonByArrive:
		return owner.slab[l.own].arrive[t] != l.served
	case poisonByAnyDone:
		return owner.slab[l.own].done[t].op != l.served
	}
	return lost.quiesced <= owner.epoch
}

// dropFromSlot drops ranks that are out of the set from the ranks that a slot waits
// for. A death is known at any later moment, or not yet.
func (v *mover) dropFromSlot(q *Proc, j int) {
	l := &q.slot[j]
	missing := v.unfinished(q, l) &^ bit(v.rank(v.p))
	for t := range v.Ranks {
		if !has(missing, t) || !v.out(&v.from, v.p, t) {
			continue
		}
		s, to := v.do(stepDropLost, t)
		to.slot[j].a &^= bit(t)
		if v.poisons(q, l, t) {
			to.slot[j].poison = 1
		}
		if s.proc[v.peer(s, v.p, t)].dead == 1 && to.slot[j].poison == 1 && l.poison == 0 {
			_, known := v.do(stepDropDead, t)
			known.slot[j].a &^= bit(t)
		}
	}
}

// dropFromDispatch stops waiting for a rank that is out: it gets no rows, and
// its own do not count unless they are here already.
func (v *mover) dropFromDispatch(q *Proc, l *Slot) {
	arrived := v.arrived(q, l)
	if v.Mutation == dropsData {
		arrived = bit(v.rank(v.p))
	}
	lost := l.unsent | l.awaited&^arrived
	for t := range v.Ranks {
		if t == v.rank(v.p) || !has(lost, t) || !v.out(&v.from, v.p, t) {
			continue
		}
		_, to := v.do(stepDropLost, t)
		k := &to.slot[q.work]
		k.unsent &^= bit(t)
		if has(k.awaited&^arrived, t) {
			k.awaited &^= bit(t)
			k.counted &^= bit(t)
		}
	}
}

// dropFromCombine stops waiting for readers, or for outputs, of ranks that
// are out.
func (v *mover) dropFromCombine(q *Proc, l *Slot, waiting uint8, outputs bool) {
	for t := range v.Ranks {
		if t == v.rank(v.p) || !has(waiting, t) || !v.out(&v.from, v.p, t) {
			continue
		}
		s, to := v.do(stepDropLost, t)
		v.lost(s)
		k := &to.slot[q.work]
		if outputs {
			k.need &^= bit(t)
		} else {
			k.counted &^= bit(t)
			k.need &^= bit(t)
		}
	}
}
