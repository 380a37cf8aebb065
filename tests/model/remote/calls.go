package remote

// startDispatch takes the next operation, with any or all rows.
func (v *mover) startDispatch(q *Proc) {
	for dense := range v.all() + 1 {
		if dense != v.all() && !v.Sparse {
			continue
		}
		v.try(stepBegin, int(dense), func(s *State, q *Proc) bool {
			v.assign(s, q, dense)
			return true
		})
	}
}

func (v *mover) assign(s *State, q *Proc, dense uint8) {
	c := v.program(q, v.p)[q.call]
	op := v.base(s, q) + c.Op + 1
	j := v.slotOf(op)
	v.releaseCombined(q, maxSlots)
	v.release(q, &q.slot[j])
	l := &q.slot[j]
	l.op, l.live, l.dispatching = op, 1, 1
	l.sent, l.combines, l.published, l.need, l.combining = 0, 0, 0, 0, 0
	active := s.members(v.p)
	l.unsent, l.awaited, l.counted = active, active, active
	l.total, l.row, l.back = [maxRanks]uint8{}, [maxRanks]uint8{}, [maxRanks]Outs{}
	l.shadow = [maxRanks][numRows]Word{}
	for r := range v.Ranks {
		if has(dense, r) {
			l.total[r] = numRows
		}
	}
	q.next, q.work, q.pc = op, uint8(j), pcWait
}

// stepDispatch does what can be done now.
func (v *mover) stepDispatch(s *State, q *Proc) (some bool) {
	l, out := &q.slot[q.work], ^s.members(v.p)
	some = l.unsent&out != 0
	l.unsent &^= out
	for r := range v.Ranks {
		if has(l.unsent, r) && v.send(s, l, int(q.work), r) {
			some = true
		}
	}
	if !l.isOpen() {
		return some
	}
	for t := range v.Ranks {
		switch {
		case !has(l.awaited, t):
			continue
		case l.arrive[t] == l.op:
		case has(out, t):
			l.counted &^= bit(t)
			v.lost(s)
		default:
			continue
		}
		l.awaited &^= bit(t)
		some = true
	}
	if l.unsent|l.awaited == 0 {
		v.received(s, q, l)
	}
	return some
}

// send stores the rows that stay here, or sends as many as there is room for.
func (v *mover) send(s *State, l *Slot, j, r int) (some bool) {
	all := false
	if r == v.p {
		if !l.isOpen() {
			return false
		}
		for i := range l.total[r] {
			l.rows[l.counter+i] = s.proc[r].content(r, l.op, i)
		}
		l.in[r] = In{op: l.op, total: l.total[r], next: l.total[r], begin: l.counter, placed: 1}
		l.counter += l.total[r]
		v.finishRows(l, r)
		some, all = true, true
	} else if l.peerOpen[r] == l.op || v.Mutation == sendsBeforeOpen {
		some, all = v.sendRows(s, l, j, r)
	}
	if all {
		l.unsent &^= bit(r)
		l.sent |= bit(r)
	}
	return some
}

// received ends a dispatch: the caller has what is there.
func (v *mover) received(s *State, q *Proc, l *Slot) {
	v.checkRows(s, l)
	l.shown, l.dispatching = l.served, 0
	q.endCall()
}

// cancel gives the present dispatch up, and the combines of its operation.
func (v *mover) cancel(s *State, q *Proc) bool {
	l := &q.slot[q.work]
	op := l.op
	v.release(q, l)
	q.endCall()
	v.skip(s, q, op)
	return true
}

// skip leaves out what the program does with an operation that is over.
func (v *mover) skip(s *State, q *Proc, op uint8) {
	calls := v.program(q, v.p)
	for int(q.call) < len(calls) {
		c := calls[q.call]
		if c.Kind != Combine && c.Kind != Maybe || v.base(s, q)+c.Op+1 != op {
			return
		}
		q.call++
	}
}

func (v *mover) releaseInstead(s *State, q *Proc) bool {
	op := v.base(s, q) + v.program(q, v.p)[q.call].Op + 1
	v.release(q, &q.slot[v.slotOf(op)])
	q.endCall()
	v.skip(s, q, op)
	return true
}

// releaseCombined releases what was combined, except one slot.
func (v *mover) releaseCombined(q *Proc, except int) {
	for j := range v.Slots {
		if l := &q.slot[j]; j != except && l.combines > 0 {
			v.release(q, l)
		}
	}
}

// release is releaseAs.
func (v *mover) release(q *Proc, l *Slot) {
	if l.live == 0 {
		return
	}
	l.live, l.dispatching, l.combining = 0, 0, 0
	if l.isOpen() && v.Mutation != noReleasedBit {
		l.yReady = word(l.op, l.combines+l.published, true)
	}
	for r := range v.Ranks {
		if has(l.sent, r) {
			l.setDone(v.p, r, word(l.op, l.combines, true))
		}
	}
	if l.unsent != 0 && v.Mutation != cancelIsNotSent {
		withY := uint8(1)
		if l.isOpen() {
			withY = 0
		}
		if v.Mutation == doneBeforeRows {
			for r := range v.Ranks {
				if has(l.unsent, r) && r != v.p {
					l.shadowDone[r] = word(l.op, 0, true)
				}
			}
		}
		q.deferWrites(l.op, l.unsent, withY)
	}
	l.unsent, l.published = 0, 0
}

// setDone writes a source's done at an owner, or in its shadow slab.
func (l *Slot) setDone(self, r int, w Word) {
	if r == self {
		l.done[r] = w
	} else {
		l.shadowDone[r] = w
	}
}

func (v *mover) startCombine(s *State, q *Proc) bool {
	op := v.base(s, q) + v.program(q, v.p)[q.call].Op + 1
	j := v.slotOf(op)
	l := &q.slot[j]
	if l.op != op || l.live == 0 {
		return false
	}
	v.releaseCombined(q, j)
	l.combining, l.published, l.need = 1, 0, 0
	for r := range v.Ranks {
		if has(l.sent, r) && l.total[r] > 0 {
			l.need |= bit(r)
		}
	}
	q.work, q.pc = uint8(j), pcWait
	return true
}

// readers returns the ranks that have not finished the combine before.
func (v *mover) readers(l *Slot) (ranks uint8) {
	for t := range v.Ranks {
		d := l.done[t]
		if l.combines > 0 && has(l.counted, t) && (d.op != l.op || d.combines() < l.combines && !d.isLast()) {
			ranks |= bit(t)
		}
	}
	return ranks
}

// stepCombine does what can be done now.
func (v *mover) stepCombine(s *State, q *Proc) (some bool) {
	l, out := &q.slot[q.work], ^s.members(v.p)
	if l.published == 0 {
		if v.readers(l)&^out != 0 && v.Mutation != ignoreReaders {
			return false
		}
		l.yReady, l.y = word(l.op, l.combines+1, false), Word{l.op, l.combines + 1}
		l.published, some = 1, true
	}
	missing, released := v.missing(l)
	if released&^out != 0 {
		if !v.MayRelease {
			s.violate(unexpectedError)
		}
		op := l.op
		v.release(q, l)
		q.endCall()
		v.skip(s, q, op)
		return true
	}
	sent, unsent := v.unsentOutputs(s, q)
	some = some || sent
	if (missing|unsent)&^out != 0 {
		return some
	}
	if missing != 0 {
		v.lost(s)
	}
	v.reduce(s, q, l, missing)
	return true
}

// missing returns the owners that have not published, and those of them that
// have released the operation instead.
func (v *mover) missing(l *Slot) (missing, released uint8) {
	for r := range v.Ranks {
		w := l.peerY[r]
		if !has(l.need, r) || r == v.p || w.op == l.op && w.combines() > l.combines {
			continue
		}
		missing |= bit(r)
		if w.op == l.op && w.isLast() || w.op > l.op {
			released |= bit(r)
		}
	}
	return missing, released
}

// unsentOutputs sends what has room, and returns the ranks that still lack outputs.
func (v *mover) unsentOutputs(s *State, q *Proc) (some bool, ranks uint8) {
	if !q.slot[q.work].isOpen() {
		return false, 0
	}
	for r := range v.Ranks {
		if r == v.p || !has(s.members(v.p), r) {
			continue
		}
		sent, all := v.sendOutputs(s, q, int(q.work), r)
		if some = some || sent; !all {
			ranks |= bit(r)
		}
	}
	return some, ranks
}

// reduce reads the outputs and ends the combine.
func (v *mover) reduce(s *State, q *Proc, l *Slot, without uint8) {
	want := Word{l.op, l.combines + 1}
	for r := range v.Ranks {
		if !has(l.need&^without, r) {
			continue
		}
		for i := range l.total[r] {
			if got := l.shadow[r][i]; r != v.p && got != want || r == v.p && l.y != want {
				s.violate(wrongOutputs)
			}
		}
	}
	l.combines++
	l.published, l.combining, l.need = 0, 0, 0
	for r := range v.Ranks {
		if has(l.sent, r) {
			l.setDone(v.p, r, word(l.op, l.combines, false))
		}
	}
	q.endCall()
}
