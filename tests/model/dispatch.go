package model

// stepDispatch is a dispatch while it waits: it collects owners that are
// open, or ends, or drops lost ranks, or gives up.
func (v *mover) stepDispatch() {
	q := &v.from.proc[v.p]
	l := &q.slot[q.work]
	if v.Mutation == checkBeforeOpen && q.seen == 0 {
		v.checkEarly()
	} else {
		v.openOwners(q, l)
	}
	if q.ready != 0 {
		v.send() // the round may be complete
		return
	}
	if l.unsent == 0 && l.isOpen() && l.awaited&^v.arrived(q, l) == 0 {
		v.received()
	}
	v.dropFromDispatch(q, l)
	v.cancel(q)
	v.waits(v.dispatchWaits(q, l))
}

// checkEarly is a mutant's look at members: before it waits for open.
func (v *mover) checkEarly() {
	if v.looksIn() {
		_, q := v.do(stepSendCheck, -1)
		q.seen = 1
	}
}

// dispatchWaits returns the ranks that a dispatch waits for.
func (v *mover) dispatchWaits(q *Proc, l *Slot) uint8 {
	if !l.isOpen() {
		return v.unfinished(q, l) | l.unsent&^bit(v.rank(v.p))
	}
	return l.unsent | l.awaited&^v.arrived(q, l)
}

// openOwners reads the open words, one at a time and in order of rank. Peers
// may open in between, so a round may have any of those that are open.
// Whether the own slab is open does not change meanwhile.
func (v *mover) openOwners(q *Proc, l *Slot) {
	me := bit(v.rank(v.p))
	for r := range v.Ranks {
		mine := bit(r) == me
		if !has(l.unsent, r) || !v.openFor(q, l, r) || (q.ready&^me)>>r != 0 || (mine && q.ready != 0) {
			continue
		}
		_, to := v.do(stepOpenOwners, r)
		v.chooseOwner(to, r)
		if own := v.rank(v.p); has(l.unsent, own) && l.isOpen() {
			v.chooseOwner(to, own)
		}
	}
}

// openFor reads the open word of rank r.
func (v *mover) openFor(q *Proc, l *Slot, r int) bool {
	return v.from.proc[v.peer(&v.from, v.p, r)].open[q.work].op == l.op
}

func (v *mover) chooseOwner(q *Proc, r int) {
	q.slot[q.work].dst[r] = v.from.proc[v.peer(&v.from, v.p, r)].open[q.work].detail + 1
	q.ready |= bit(r)
}

// send looks at members after the last open word and before the first write.
// The writes to the own slab are part of it: no other rank reads those words.
func (v *mover) send() {
	skip := v.Mutation == noPreReduceCheck || v.Mutation == checkBeforeOpen
	if !skip && !v.looksIn() {
		_, q := v.do(stepSendCheck, -1)
		v.stop(q)
		return
	}
	ready := v.from.proc[v.p].ready
	for rows := ready; ; rows = (rows - 1) & ready {
		v.sendRows(rows)
		if rows == 0 || !v.Sparse {
			return
		}
	}
}

// sendRows begins to serve the owners of this round, some with a row.
func (v *mover) sendRows(rows uint8) {
	s, q := v.do(stepSendCheck, -1)
	l := &q.slot[q.work]
	q.rest = q.ready
	for r := range v.Ranks {
		if has(q.ready, r) {
			l.pos[r] = rows >> r & 1 // not 0: still to be reserved
		}
	}
	if me := v.rank(v.p); has(q.rest, me) {
		v.sendSelf(s, q, l, me)
		q.rest &^= bit(me)
	}
	v.nextOwner(q)
}

// looksIn is a look at members, as the process's own word says it is in.
func (v *mover) looksIn() bool {
	if v.Mutation == bitAlone || v.Mutation == bitBeforeWrite {
		return has(v.from.set, v.rank(v.p))
	}
	return v.member(&v.from, v.p)
}

func (v *mover) sendSelf(s *State, q *Proc, l *Slot, me int) {
	b := v.slabAt(s, v.p, l, me)
	v.writes(s, b, l.op)
	if l.pos[me] > 0 {
		v.reserveAt(s, b, l, me)
		b.row[l.pos[me]-1] = content(v.p, l.op)
	}
	b.layout[me] = l.pos[me]
	b.arrive[me] = l.op
	l.sent |= bit(me)
	l.unsent &^= bit(me)
}

// slabAt is the slab that process p writes to at rank r.
func (v *mover) slabAt(s *State, p int, l *Slot, r int) *Slab {
	return &s.proc[v.peer(s, p, r)].slab[l.dst[r]-1]
}

func (v *mover) reserveAt(s *State, b *Slab, l *Slot, r int) {
	if b.serves == retired {
		l.pos[r] = 1
		return
	}
	b.counter++
	l.pos[r] = b.counter
	if int(b.counter) > v.Ranks {
		s.violate(overCapacity)
		l.pos[r] = 1
	}
}

// nextOwner goes on to the next owner of the round, or back to the wait.
func (v *mover) nextOwner(q *Proc) {
	l := &q.slot[q.work]
	if q.rest == 0 {
		q.pc, q.ready, q.at, q.seen = pcDWait, 0, 0, 0
		return
	}
	q.at = v.nextOf(q.rest)
	q.rest &^= bit(int(q.at))
	switch {
	case v.Mutation == arriveFirst:
		q.pc = pcArrive
	case l.pos[q.at] > 0:
		q.pc = pcReserve
	default:
		q.pc = pcLayout
	}
}

// nextOf returns the peer that is next after this rank, in a circle.
func (v *mover) nextOf(set uint8) uint8 {
	me := v.rank(v.p)
	for i := range v.Ranks {
		if r := (me + 1 + i) % v.Ranks; has(set, r) {
			return uint8(r)
		}
	}
	panic("model: empty set")
}

// access is a step of the process at the slab of the owner that it serves.
func (v *mover) access(step Step) (*State, *Proc, *Slot, *Slab) {
	s, q := v.do(step, int(v.from.proc[v.p].at))
	l := &q.slot[q.work]
	b := v.slabAt(s, v.p, l, int(q.at))
	v.writes(s, b, l.op)
	return s, q, l, b
}

func (v *mover) reserve() {
	s, q, l, b := v.access(stepReserve)
	v.reserveAt(s, b, l, int(q.at))
	q.pc = pcPlace
}

func (v *mover) place() {
	_, q, l, b := v.access(stepPlace)
	if b.serves != retired {
		b.row[l.pos[q.at]-1] = content(v.p, l.op)
	}
	q.pc = pcLayout
	if !v.Fine { // rows and layout are looked at after arrive only
		v.storeLayout(b, q, l)
	}
}

func (v *mover) publish() {
	_, q, l, b := v.access(stepPublish)
	v.storeLayout(b, q, l)
}

func (v *mover) storeLayout(b *Slab, q *Proc, l *Slot) {
	if b.serves != retired {
		b.layout[v.rank(v.p)] = l.pos[q.at]
	}
	q.pc = pcArrive
	if v.Mutation == arriveFirst {
		v.sentTo(q, l)
	}
}

func (v *mover) arrive() {
	_, q, l, b := v.access(stepArrive)
	if b.serves != retired {
		b.arrive[v.rank(v.p)] = l.op
	}
	if v.Mutation == arriveFirst && q.at != uint8(v.rank(v.p)) {
		q.pc = pcLayout
		if l.pos[q.at] > 0 {
			q.pc = pcReserve
		}
		return
	}
	v.sentTo(q, l)
}

func (v *mover) sentTo(q *Proc, l *Slot) {
	l.sent |= bit(int(q.at))
	l.unsent &^= bit(int(q.at))
	v.nextOwner(q)
}

// arrived returns the ranks that show the slot's operation in their arrive.
func (v *mover) arrived(q *Proc, l *Slot) (ranks uint8) {
	for t := range v.Ranks {
		if q.slab[l.own].arrive[t] == l.op {
			ranks |= bit(t)
		}
	}
	return ranks
}

// received reads the counters and the layout, and ends the dispatch.
func (v *mover) received() {
	s, q := v.do(stepReceived, -1)
	l := &q.slot[q.work]
	l.dispatching, l.awaited = 0, 0
	v.checkRows(s, v.p, l, true)
	v.endDispatch(s, q)
}

// endDispatch ends the call, unless it is a combine that had to end its
// dispatch first.
func (v *mover) endDispatch(s *State, q *Proc) {
	switch v.kind(s, q, v.p) {
	case Dispatch, Cancelled, Apart, Recv:
		v.endCall(q)
	default:
		q.pc, q.work = pcIdle, 0
	}
}

// cancel gives a dispatch up in the middle of its wait.
func (v *mover) cancel(q *Proc) {
	if v.kind(&v.from, q, v.p) == Cancelled {
		_, to := v.do(stepCancel, -1)
		v.toRelease(to, int(to.work))
		to.call++
	}
}
