package model

// readers waits for the ranks that may still read the outputs of the previous
// combine of this handle; then the outputs go to y.
func (v *mover) readers() {
	q := &v.from.proc[v.p]
	l := &q.slot[q.work]
	waiting := v.reading(q, l)
	if waiting == 0 || v.Mutation == ignoreReaders {
		v.copyOutputs()
	}
	v.dropFromCombine(q, l, waiting, false)
	v.waits(waiting)
}

// reading returns the ranks that have not finished the previous combine.
func (v *mover) reading(q *Proc, l *Slot) (ranks uint8) {
	if l.combines == 0 {
		return 0
	}
	for t := range v.Ranks {
		done := q.slab[l.own].done[t]
		enough := done.combines() >= l.combines
		if v.Mutation == doneEqual {
			enough = done.combines() == l.combines
		}
		if has(l.counted, t) && (done.op != l.op || !enough && !done.isLast()) {
			ranks |= bit(t)
		}
	}
	return ranks
}

func (v *mover) copyOutputs() {
	s, q := v.do(stepCopyOutputs, -1)
	l := &q.slot[q.work]
	v.checkRows(s, v.p, l, false)
	b := &q.slab[l.own]
	for i, row := range b.row {
		b.y[i] = Word{row, l.combines + 1}
	}
	q.pc = pcOutputs
	if !v.Fine { // no rank reads y before y_ready
		v.publishAt(s, q)
	}
}

// publishOutputs sets y_ready.
func (v *mover) publishOutputs() {
	s, q := v.do(stepPublishOutputs, -1)
	v.publishAt(s, q)
}

func (v *mover) publishAt(s *State, q *Proc) {
	l := &q.slot[q.work]
	q.yReady[q.work] = counted(l.op, l.combines+1, false)
	l.published = 1
	q.pc = pcCWait
	if v.kind(s, q, v.p) == CombineSend {
		v.endCall(q)
	}
}

// outputsReady waits for the outputs of every owner that is needed.
func (v *mover) outputsReady() {
	q := &v.from.proc[v.p]
	l := &q.slot[q.work]
	ready, refused := v.outputs(q, l)
	if refused != 0 {
		v.notCombined(q, l, refused)
	}
	if l.need&^ready == 0 {
		_, to := v.do(stepOutputsReady, -1)
		to.rest = l.need
		to.pc = pcReduce
		if v.Mutation == doneBeforeRead {
			to.pc = pcFinish
			to.rest = l.sent
		}
		if to.rest == 0 {
			to.pc = pcPost
		}
	}
	v.dropFromCombine(q, l, l.need&^ready, true)
	v.waits(l.need &^ ready)
}

// outputs returns the owners that have their outputs ready, and those that released
// the operation without this combine.
func (v *mover) outputs(q *Proc, l *Slot) (ready, refused uint8) {
	for r := range v.Ranks {
		word := v.from.proc[v.peer(&v.from, v.p, r)].yReady[q.work]
		switch {
		case !has(l.need, r):
		case word.op == l.op && (word.combines() > l.combines || v.Mutation == noCombineCount):
			ready |= bit(r)
		case word.op == l.op && word.isLast() || word.op > l.op:
			refused |= bit(r)
		}
	}
	return ready, refused
}

// notCombined ends a combine because some owner will never publish its outputs. The
// handle is released at once. A rank that is out gets "fenced" instead.
func (v *mover) notCombined(q *Proc, l *Slot, refused uint8) {
	if !v.member(&v.from, v.p) && v.Mutation != refusedUnchecked {
		return // fenced is the only way on
	}
	for r := range v.Ranks {
		if has(refused, r) && !v.out(&v.from, v.p, r) {
			s, to := v.do(stepNotCombined, r)
			if !v.MayRelease {
				s.violate(unexpectedError)
			}
			if v.from.proc[v.peer(&v.from, v.p, r)].yReady[q.work].op != l.op {
				s.violate(overtaken)
			}
			v.toRelease(to, int(to.work))
			return
		}
	}
}

// reduce reads one owner's row. Whether it was the right one matters only if
// this rank still is a member after the last read.
func (v *mover) reduce() {
	r := int(v.nextOf(v.from.proc[v.p].rest))
	s, q := v.do(stepReduce, r)
	l := &q.slot[q.work]
	b := v.slabAt(s, v.p, l, r)
	owner := v.peer(s, v.p, r)
	want := Word{content(v.p, l.op), l.combines + 1}
	if v.Mutation == doneBeforeRead {
		want.detail = l.combines
	}
	if got := b.y[l.pos[r]-1]; got != want || v.stale(s, b, l, owner) {
		q.bad = 1
	}
	q.rest &^= bit(r)
	if q.rest == 0 {
		q.pc = pcPost
	}
}

// stale reports whether a member reads a slab that serves another operation:
// even when the bytes happen to be right, it should not.
func (v *mover) stale(s *State, b *Slab, l *Slot, owner int) bool {
	return v.member(s, v.p) && b.serves != l.op && s.proc[owner].dead == 0
}

// afterReduce looks at members once more: only then is what was read true.
func (v *mover) afterReduce() {
	if v.Mutation != noPostCheck && !v.looksInAfter() {
		_, q := v.do(stepReduceCheck, -1)
		v.stop(q)
		return
	}
	s, q := v.do(stepReduceCheck, -1)
	l := &q.slot[q.work]
	if q.bad == 1 {
		s.violate(wrongOutputs)
	}
	if l.live == 1 {
		v.checkRows(s, v.p, l, false)
	}
	if v.Mutation == doneBeforeRead {
		v.endCombine(s, q, l)
		return
	}
	l.combines++
	v.toFinish(s, q, l)
}

func (v *mover) looksInAfter() bool {
	if v.Mutation == bitAlone {
		return has(v.from.set, v.rank(v.p))
	}
	return v.member(&v.from, v.p)
}

// toFinish sets the own done word, and goes on to those of the owners.
func (v *mover) toFinish(s *State, q *Proc, l *Slot) {
	q.pc, q.rest = pcFinish, l.sent
	if me := v.rank(v.p); has(l.sent, me) {
		v.slabAt(s, v.p, l, me).done[me] = counted(l.op, l.combines, v.Mutation == finalAtOnce)
		q.rest &^= bit(me)
	}
	if q.rest == 0 {
		v.endCombine(s, q, l)
	}
}

// finishCombine sets done at the owners that this rank wrote to.
func (v *mover) finishCombine() {
	early := v.Mutation == doneBeforeRead
	r := int(v.nextOf(v.from.proc[v.p].rest))
	s, q := v.do(stepFinishCombine, r)
	l := &q.slot[q.work]
	n := l.combines
	if early {
		n++
	}
	v.setDone(s, l, r, counted(l.op, n, v.Mutation == finalAtOnce || early))
	q.rest &^= bit(r)
	switch {
	case q.rest != 0:
	case early:
		l.combines++
		q.rest, q.pc = l.need, pcReduce
		if l.need == 0 {
			q.pc = pcPost
		}
	default:
		v.endCombine(s, q, l)
	}
}

// setDone writes done at one owner.
func (v *mover) setDone(s *State, l *Slot, r int, w Word) {
	b := v.slabAt(s, v.p, l, r)
	v.writes(s, b, l.op)
	if b.serves != retired {
		b.done[v.rank(v.p)] = w
	}
}

func (v *mover) endCombine(s *State, q *Proc, l *Slot) {
	l.combining, l.published, l.need = 0, 0, 0
	switch v.kind(s, q, v.p) {
	case Combine, CombineRecv, Maybe:
		v.endCall(q)
	default:
		q.pc, q.work = pcIdle, 0
	}
}
