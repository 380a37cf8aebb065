package model

// release sets the released bit of y_ready, if the own slab is open, and then
// goes on to the final done words.
func (v *mover) release() {
	_, q := v.do(stepReleaseAs, -1)
	l := &q.slot[q.work]
	if l.isOpen() && v.Mutation != noReleasedBit {
		q.yReady[q.work] = counted(l.op, l.combines+l.published, true)
	}
	q.pc = pcFinal
	v.releaseOwn(q, l)
}

// releaseOwn sets the final done in the own slab: only this rank looks at it.
func (v *mover) releaseOwn(q *Proc, l *Slot) {
	me := v.rank(v.p)
	if has(q.rest, me) {
		q.slab[l.dst[me]-1].done[me] = counted(l.op, l.combines, true)
		q.rest &^= bit(me)
	}
	if q.rest == 0 {
		v.endRelease(q)
	}
}

// releaseDone sets the final done at one owner, in the slab that was written
// to.
func (v *mover) releaseDone() {
	q0 := &v.from.proc[v.p]
	r := int(v.nextOf(q0.rest))
	s, q := v.do(stepReleaseDone, r)
	l := &q.slot[q.work]
	v.setDone(s, l, r, counted(l.op, l.combines, true))
	q.rest &^= bit(r)
	if q.rest == 0 {
		v.endRelease(q)
	}
}

// endRelease forgets the source's side of the slot. The call that asked for
// it begins again, and finds the slot free.
func (v *mover) endRelease(q *Proc) {
	l := &q.slot[q.work]
	*l = Slot{own: l.own, served: l.served, a: l.a, poison: l.poison, op: l.op}
	q.pc, q.work, q.rest, q.at, q.bad, q.ready = pcIdle, 0, 0, 0, 0, 0
}
