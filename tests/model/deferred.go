package model

// settle begins to write what is deferred, wherever the owner has opened. Nothing
// is written to a rank that is out.
func (v *mover) settle(q *Proc) {
	for i := range q.deferred {
		o := &q.deferred[i]
		for r := range v.Ranks {
			if !has(o.owners, r) {
				continue
			}
			word := v.from.proc[v.peer(&v.from, v.p, r)].open[v.slotOf(o.op)]
			switch {
			case word.op == o.op:
				v.settleAt(i, r, word.detail)
			case v.out(&v.from, v.p, r):
				_, to := v.do(stepDropDeferred, r)
				dropDeferred(to, i, r)
			}
		}
	}
}

// settleAt has read the owner's open word: it shows the deferred operation.
func (v *mover) settleAt(i, r int, slab uint8) {
	_, q := v.do(stepSettle, r)
	q.settling, q.deferredSlab, q.at, q.ret, q.pc = uint8(i+1), slab, uint8(r), q.pc, pcDeferred
	if v.Mutation == settleUnchecked {
		q.pc = pcSettled
	}
}

// settleCheck looks at members after the open word, as send does.
func (v *mover) settleCheck() {
	_, q := v.do(stepSettleCheck, int(v.from.proc[v.p].at))
	if !v.looksIn() {
		v.stop(q)
		return
	}
	q.pc = pcSettled
}

// deferredAccess is a step of settle at an owner.
func (v *mover) deferredAccess(step Step) (*Proc, *Deferred, *Slab) {
	s, q := v.do(step, int(v.from.proc[v.p].at))
	o := &q.deferred[q.settling-1]
	b := &s.proc[v.peer(s, v.p, int(q.at))].slab[q.deferredSlab]
	v.writes(s, b, o.op)
	return q, o, b
}

// settlePublish writes a layout without rows.
func (v *mover) settlePublish() {
	q, o, b := v.deferredAccess(stepSettlePublish)
	me := v.rank(v.p)
	if b.serves != retired {
		b.layout[me] = 0
	}
	q.pc = pcDeferredArrive
	if int(q.at) == me { // the own slab: only y_ready is seen by others
		b.arrive[me] = o.op
		v.settleYReady(q, o)
		b.done[me] = counted(o.op, 0, true)
		v.endSettle(q)
	}
}

// settleYReady tells ranks that wait for outputs that none will come.
func (v *mover) settleYReady(q *Proc, o *Deferred) {
	if o.withY == 1 && v.Mutation != settleNoYReady {
		q.yReady[v.slotOf(o.op)] = counted(o.op, 0, true)
	}
}

func (v *mover) settleArrive() {
	q, o, b := v.deferredAccess(stepSettleArrive)
	if b.serves != retired {
		b.arrive[v.rank(v.p)] = o.op
	}
	q.pc = pcDeferredDone
}

func (v *mover) settleDone() {
	q, o, b := v.deferredAccess(stepSettleDone)
	if b.serves != retired {
		b.done[v.rank(v.p)] = counted(o.op, 0, true)
	}
	v.endSettle(q)
}

// endSettle goes back to where the process was.
func (v *mover) endSettle(q *Proc) {
	dropDeferred(q, int(q.settling-1), int(q.at))
	q.pc, q.ret, q.settling, q.deferredSlab, q.at = q.ret, 0, 0, 0, 0
}

// dropDeferred takes an owner out of an entry, and an empty entry off the list.
func dropDeferred(q *Proc, i, r int) {
	q.deferred[i].owners &^= bit(r)
	if q.deferred[i].owners == 0 {
		copy(q.deferred[i:], q.deferred[i+1:])
		q.deferred[maxDeferred-1] = Deferred{}
	}
}
