package model

// begin makes the private part of the next call: it has no moves of its own,
// its first access to shared memory is the step.
func (v *mover) begin() {
	q := &v.from.proc[v.p]
	calls := v.program(&v.from, v.p)
	for q.pc == pcIdle {
		if int(q.call) == len(calls) {
			return
		}
		v.beginCall(q, calls[q.call])
	}
}

func (v *mover) beginCall(q *Proc, c Call) {
	op := v.base(q) + c.Op + 1
	l := &q.slot[v.slotOf(op)]
	switch c.Kind {
	case Dispatch, Send, Cancelled, Apart:
		v.startDispatch(q, op)
	case Combine, CombineSend, Maybe:
		v.startCombine(q, op, c.Kind)
	case Recv:
		if l.op == op && l.dispatching == 1 {
			q.pc, q.work = pcDWait, uint8(v.slotOf(op))
		} else {
			q.call++
		}
	case CombineRecv:
		v.driveCombine(q, l, op)
	case Release:
		if l.op == op && l.live == 1 {
			v.toRelease(q, v.slotOf(op))
		} else {
			q.call++
		}
	case Close:
		v.close(q)
	case Update:
		v.prepare(q)
	}
}

func (v *mover) base(q *Proc) uint8 {
	if q.epoch == 0 {
		return 0
	}
	return v.from.base
}

// startDispatch releases what has to go, then takes the operation.
func (v *mover) startDispatch(q *Proc, op uint8) {
	if v.releaseCombined(q, -1) {
		return
	}
	j := v.slotOf(op)
	if q.slot[j].live == 1 && v.Mutation != notReleased {
		v.toRelease(q, j)
		return
	}
	v.assign(q, op)
	q.pc, q.work = pcDWait, uint8(j)
}

// maybe is a combine that the program leaves open: the rank may release the
// operation instead.
func (v *mover) maybe(q *Proc) {
	calls := v.program(&v.from, v.p)
	if int(q.call) == len(calls) || calls[q.call].Kind != Maybe {
		return
	}
	op := v.base(q) + calls[q.call].Op + 1
	if j := v.slotOf(op); q.slot[j].op == op && q.slot[j].live == 1 {
		saved := v.from
		v.toRelease(q, j)
		v.stepAt(q)
		v.from = saved
	}
}

// assign makes the slot the home of an operation.
func (v *mover) assign(q *Proc, op uint8) {
	l := &q.slot[v.slotOf(op)]
	*l = Slot{
		own: l.own, served: l.served, a: l.a, poison: l.poison,
		op: op, live: 1, dispatching: 1,
	}
	l.unsent = v.active(q)
	if v.kind(&v.from, q, v.p) == Apart {
		l.masked = l.unsent &^ bit(v.rank(v.p))
		l.unsent &^= l.masked
		if l.masked != 0 && v.Mutation != maskDefersNothing {
			v.deferWrites(q, Deferred{op: op, owners: l.masked})
		}
	}
	l.awaited, l.counted = l.unsent, l.unsent
}

// active returns the ranks that an operation begins with: the members that
// the epoch began with. Ranks lost since then are dropped in the waits. Ranks lost
// before have words of the old epoch, and these operation numbers may come again.
func (v *mover) active(q *Proc) uint8 {
	if q.epoch == 0 || v.Mutation == sendsToOld {
		return v.all()
	}
	return v.from.newSet
}

// releaseCombined releases combined handles, as the next call that is not a
// combine of the same handle does.
func (v *mover) releaseCombined(q *Proc, except int) bool {
	for j := range v.Slots {
		l := &q.slot[j]
		if j != except && l.live == 1 && l.combines > 0 && l.combining == 0 {
			v.toRelease(q, j)
			return true
		}
	}
	return false
}

func (v *mover) startCombine(q *Proc, op uint8, k Kind) {
	j := v.slotOf(op)
	l := &q.slot[j]
	switch {
	case l.op != op || l.live == 0:
		q.call++ // the handle is stale
	case l.dispatching == 1:
		q.pc, q.work = pcDWait, uint8(j)
	case l.combining == 1:
		q.pc, q.work = pcCWait, uint8(j)
	case v.releaseCombined(q, j):
	default:
		v.pick(l)
		l.combining, l.published = 1, 0
		q.pc, q.work = pcRWait, uint8(j)
	}
}

// pick chooses the owners that outputs are needed from: counted owners that hold
// rows of this rank. A rank can be counted as a source and yet have no rows
// of this rank: it arrived and was lost before it opened.
func (v *mover) pick(l *Slot) {
	l.need = 0
	for r := range v.Ranks {
		if has(l.counted&l.sent, r) && l.pos[r] > 0 {
			l.need |= bit(r)
		}
	}
}

func (v *mover) driveCombine(q *Proc, l *Slot, op uint8) {
	if l.op == op && l.combining == 1 {
		q.pc, q.work = pcCWait, uint8(v.slotOf(op))
		return
	}
	q.call++
}

// close releases everything, then leaves the set.
func (v *mover) close(q *Proc) {
	for j := range v.Slots {
		if q.slot[j].live == 1 {
			v.toRelease(q, j)
			return
		}
	}
	q.pc = pcLeave
}

func (v *mover) toRelease(q *Proc, j int) {
	q.pc, q.work = pcRelease, uint8(j)
	l := &q.slot[j]
	l.live = 0
	q.rest = l.sent
	if l.unsent != 0 {
		o := Deferred{op: l.op, owners: l.unsent}
		if !l.isOpen() {
			o.withY = 1
		}
		v.deferWrites(q, o)
	}
}

// deferWrites remembers words for owners that have not opened the operation.
func (v *mover) deferWrites(q *Proc, o Deferred) {
	for i := range q.deferred {
		if q.deferred[i].op == 0 {
			q.deferred[i] = o
			return
		}
	}
	panic("model: more deferred operations than maxDeferred")
}

// kind is the call that process q is in.
func (v *mover) kind(s *State, q *Proc, p int) Kind {
	calls := v.program(s, p)
	if int(q.call) >= len(calls) {
		return Close
	}
	return calls[q.call].Kind
}

// settleDown makes the private steps that follow a step: the ends of loops
// and of calls. They touch nothing shared, so that no other process can tell
// when they happen.
func (v *mover) settleDown(s *State, p int) {
	q := &s.proc[p]
	if q.pc == pcDWait && q.ready == 0 && q.opening == 0 && q.slot[q.work].unsent == 0 && v.kind(s, q, p) == Send {
		v.endCall(q)
	}
	if q.pc == pcIdle && q.opening == 0 {
		v.skipStale(s, q, v.program(s, p))
	}
}

// skipStale passes over calls without a live handle.
func (v *mover) skipStale(s *State, q *Proc, calls []Call) {
	for ; int(q.call) < len(calls); q.call++ {
		c := calls[q.call]
		op := c.Op + 1
		if q.epoch > 0 {
			op += s.base
		}
		l := &q.slot[v.slotOf(op)]
		gone := l.op != op || l.live == 0
		if !gone || c.Kind != Combine && c.Kind != CombineSend && c.Kind != Maybe && c.Kind != Release {
			return
		}
	}
	q.pc = pcEnd
}

// endCall ends the current call.
func (v *mover) endCall(q *Proc) {
	q.pc, q.work, q.ready, q.rest, q.at, q.bad, q.seen = pcIdle, 0, 0, 0, 0, 0, 0
	q.call++
}
