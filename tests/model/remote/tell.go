package remote

// flush tells every remote member what it does not know yet, as far as there is
// room, and reports whether there was something.
func (v *mover) flush(s *State, q *Proc) (some bool) {
	for r := range v.Ranks {
		if r == v.p || !has(s.members(v.p), r) {
			continue
		}
		for j := range v.Slots {
			first, second := v.sendOutputs, v.sendControlWords
			if v.Mutation == yBeforeOutputs {
				first, second = second, first
			}
			sent, all := first(s, q, j, r)
			if some = some || sent; !all {
				break
			}
			sent, all = second(s, q, j, r)
			if some = some || sent; !all {
				break
			}
		}
	}
	return some
}

// sendOutputs sends a source the outputs of its rows; all: none are left.
func (v *mover) sendOutputs(s *State, q *Proc, j, r int) (some, all bool) {
	l := &q.slot[j]
	if !v.wantsOutputs(l, r) {
		return false, true
	}
	f, now := &l.outs[r], word(l.yReady.op, l.yReady.combines(), false)
	if v.Mutation == outputsOnce && f.word.op == now.op {
		now = f.word
	}
	if f.word != now {
		*f = Outs{word: now}
	}
	for total := l.in[r].total; f.done == 0; some = true {
		if !v.room(s, r) {
			return some, false
		}
		v.post(s, r, Message{
			kind: outputs, slot: uint8(j), op: l.served, total: total, first: f.row, y: now, out: l.y,
		})
		if f.row++; f.row == total {
			f.done, l.lastSent[r].y = 1, now
		}
	}
	return some, true
}

// wantsOutputs: we have published some of its rows, and it is not done.
func (v *mover) wantsOutputs(l *Slot, r int) bool {
	done := l.done[r].op == l.served && l.done[r].isLast()
	return l.yReady.op == l.served && l.yReady.combines() > 0 && l.arrive[r] == l.served && l.in[r].total > 0 && !done
}

// sendControlWords tells what has changed of a slot. y_ready comes only after the
// receiver's rows, since the receiver asks for nothing before.
func (v *mover) sendControlWords(s *State, q *Proc, j, r int) (some, all bool) {
	l := &q.slot[j]
	last := &l.lastSent[r]
	now := Sent{open: l.open, y: last.y, done: l.shadowDone[r]}
	if l.yReady.op == l.served && l.arrive[r] == l.served {
		now.y = l.yReady
	}
	if now == *last {
		return false, true
	}
	if !v.room(s, r) {
		return false, false
	}
	v.post(s, r, Message{kind: words, slot: uint8(j), open: now.open, y: now.y, done: now.done})
	*last = now
	return true, true
}

// sendRows sends what has room of our rows for an owner; all: everything.
func (v *mover) sendRows(s *State, l *Slot, j, r int) (some, all bool) {
	for v.room(s, r) {
		msg := Message{kind: rows, slot: uint8(j), op: l.op, total: l.total[r], first: l.row[r]}
		if l.total[r] > 0 {
			msg.row = s.proc[v.p].content(v.p, l.op, l.row[r])
			l.row[r]++
		}
		v.post(s, r, msg)
		some = true
		if l.row[r] == l.total[r] {
			return true, true
		}
	}
	return some, false
}

// reopen opens a slot for its next operation, when every rank has finished.
func (v *mover) reopen(s *State, q *Proc, j int) bool {
	l := &q.slot[j]
	next := l.served + uint8(v.Slots)
	if l.live == 1 && l.isOpen() || next > v.base(s, q)+v.numOps(q.epoch) {
		return false
	}
	if v.unfinished(l)&s.members(v.p) != 0 && v.Mutation != noDoneWait {
		return false
	}
	if v.unfinished(l)&^s.members(v.p) != 0 {
		v.lost(s)
	}
	v.open(s, l, next)
	return true
}

// open lets sources send for an operation.
func (v *mover) open(s *State, l *Slot, op uint8) {
	if v.Mutation != countersStay {
		l.counter = 0
	}
	l.layout, l.rows, l.y = [maxRanks]uint8{}, [maxRanks * numRows]uint8{}, Word{}
	l.served, l.open, l.a = op, op, s.members(v.p)
}

// base is the number before an epoch's first operation.
func (v *mover) base(s *State, q *Proc) uint8 {
	if q.epoch == 0 {
		return 0
	}
	return s.base
}

// unfinished returns the ranks of A without a final done.
func (v *mover) unfinished(l *Slot) (ranks uint8) {
	for t := range v.Ranks {
		if d := l.done[t]; has(l.a, t) && (d.op != l.served || !d.isLast()) {
			ranks |= bit(t)
		}
	}
	return ranks
}

// settleAt sends an owner an operation without rows, once it has it open.
func (v *mover) settleAt(s *State, q *Proc, i, r int) bool {
	o := &q.deferred[i]
	j := v.slotOf(o.op)
	l := &q.slot[j]
	switch {
	case !has(s.members(v.p), r):
	case r == v.p:
		if l.served != o.op {
			return false
		}
		l.arrive[r], l.layout[r], l.done[r] = o.op, 0, word(o.op, 0, true)
		if o.withY == 1 && v.Mutation != settleNoYReady {
			l.yReady = word(o.op, 0, true)
		}
	case l.peerOpen[r] != o.op || !v.room(s, r):
		return false
	default:
		v.post(s, r, Message{kind: rows, slot: uint8(j), op: o.op})
		l.shadowDone[r] = word(o.op, 0, true)
	}
	if o.owners &^= bit(r); o.owners == 0 {
		copy(q.deferred[i:], q.deferred[i+1:])
		q.deferred[maxDeferred-1] = Deferred{}
	}
	return true
}

// deferWrites remembers the owners that must still be told of an operation.
func (q *Proc) deferWrites(op, owners, withY uint8) {
	for i := range q.deferred {
		if q.deferred[i].op == 0 {
			q.deferred[i] = Deferred{op, owners, withY}
			return
		}
	}
	panic("model: more is deferred than maxDeferred")
}
