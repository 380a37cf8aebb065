package remote

// room reports whether a message can be sent now.
func (v *mover) room(s *State, r int) bool {
	m := &s.mail[v.p][r]
	return m.cut == 0 && int(m.n) < v.Capacity
}

func (v *mover) post(s *State, r int, msg Message) {
	m := &s.mail[v.p][r]
	msg.epoch = s.proc[v.p].epoch
	m.msg[m.n] = msg
	m.n++
}

// receive takes the oldest message of rank t. One of an epoch that this rank has
// not begun is on a new link.
func (v *mover) receive(s *State, q *Proc, t int) bool {
	m := &s.mail[t][v.p]
	if m.n == 0 || m.msg[0].epoch > q.epoch {
		return false
	}
	msg := m.msg[0]
	copy(m.msg[:], m.msg[1:m.n])
	m.n--
	m.msg[m.n] = Message{}
	if msg.epoch != q.epoch && v.Mutation != oldEpochsCount {
		return true
	}
	l, taken := &q.slot[msg.slot], false
	switch msg.kind {
	case words:
		taken = v.takeControlWords(q, l, t, &msg)
	case rows:
		taken = v.takeRows(s, q, l, t, &msg)
	case outputs:
		taken = v.takeOutputs(q, l, t, &msg)
	}
	if !taken && has(s.members(v.p), t) && !v.Lenient {
		s.violate(refused)
	}
	return true
}

// takeRows takes a piece of a source's rows, and does what the source would do.
func (v *mover) takeRows(s *State, q *Proc, l *Slot, t int, msg *Message) bool {
	if msg.op > l.served && v.Mutation != sendsBeforeOpen {
		return false
	}
	late := msg.op < l.served
	if late || v.goneOn(s, l, t) && v.Mutation != takesGoneRows {
		return true
	}
	if !has(l.a, t) || l.arrive[t] == l.served {
		return false
	}
	in := &l.in[t]
	switch {
	case msg.first == 0 && in.op == l.served && msg.total == 0 && in.next < in.total && v.Mutation != cancelIsNew:
		if v.Mutation == cancelReleases {
			l.counter -= in.total
		}
		in.total, in.next = 0, 0 // it gave up: what it had reserved is a hole
		v.finishRows(l, t)
		return true
	case msg.first == 0 && in.op != l.served:
		*in = In{op: l.served, total: msg.total}
	case msg.first == 0 || in.op != l.served || msg.first != in.next || msg.total != in.total:
		return false
	}
	v.fanOut(s, l, t, msg)
	return true
}

// fanOut reserves with the first piece, stores the row, and publishes with the
// last.
func (v *mover) fanOut(s *State, l *Slot, t int, msg *Message) {
	in := &l.in[t]
	if in.placed == 0 {
		in.placed, in.begin = 1, l.counter
		l.counter += in.total
	}
	if in.total > 0 {
		if at := int(in.begin + in.next); at >= v.Ranks*numRows {
			s.violate(overCapacity)
		} else {
			l.rows[at] = msg.row
		}
		if l.shown == l.served && l.isOpen() && l.live == 1 {
			s.violate(changedAfter)
		}
		in.next++
	}
	if in.next >= in.total || v.Mutation == arrivesFirst {
		v.finishRows(l, t)
	}
}

func (v *mover) finishRows(l *Slot, t int) {
	if in := &l.in[t]; in.total > 0 {
		l.layout[t] = in.begin + 1
	}
	l.arrive[t] = l.served
}

// goneOn: our dispatch went on without this source.
func (v *mover) goneOn(s *State, l *Slot, t int) bool {
	return l.op == l.served && !has(l.counted, t) && !has(s.members(v.p), t)
}

// takeControlWords raises what is known of the sender, and takes its done.
func (v *mover) takeControlWords(q *Proc, l *Slot, t int, msg *Message) bool {
	if v.missesOutputs(l, t, msg.y) && v.Mutation != yBeforeOutputs {
		return false
	}
	l.peerOpen[t] = max(l.peerOpen[t], msg.open)
	if msg.y.above(l.peerY[t]) {
		l.peerY[t] = msg.y
	}
	switch {
	case msg.done.op != l.served:
		return msg.done.op < l.served
	case l.arrive[t] != l.served && l.in[t].op != l.served:
		return false
	case msg.done.above(l.done[t]):
		l.done[t] = msg.done
	}
	return true
}

// missesOutputs: a y_ready that publishes more than what has come.
func (v *mover) missesOutputs(l *Slot, t int, y Word) bool {
	if l.live == 0 || y.op != l.op || !has(l.sent, t) || l.total[t] == 0 {
		return false
	}
	if l.peerY[t].op != l.op {
		return y.combines() > 0
	}
	return y.combines() > l.peerY[t].combines()
}

// takeOutputs stores a row of outputs in the shadow slab.
func (v *mover) takeOutputs(q *Proc, l *Slot, t int, msg *Message) bool {
	if l.op != msg.op || l.live == 0 || !has(l.sent, t) {
		return msg.op < q.next+1
	}
	f := &l.back[t]
	if f.word != msg.y {
		*f = Outs{word: msg.y}
	}
	if !msg.y.above(l.peerY[t]) || f.done == 1 || f.row != msg.first || msg.total != l.total[t] {
		return false
	}
	l.shadow[t][msg.first] = msg.out
	f.row++
	if f.row == msg.total || v.Mutation == yWithFirstPiece {
		f.done = f.row / msg.total
		l.peerY[t] = msg.y
	}
	return true
}
