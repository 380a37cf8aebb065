package model

// Properties. A state that breaks one carries its number.
const (
	fine = iota
	strayWrite
	wrongRows
	wrongCount
	viewChanged
	wrongOutputs
	overCapacity
	needlessPoison
	emptySet
	wrongTarget
	oldFence
	unexpectedError
	overtaken
	stuck
	lostWithoutFault
	circle
)

var properties = [...]string{
	fine:             "",
	strayWrite:       "a slab is written for an operation that it does not serve, or after its writer was out",
	wrongRows:        "a row is not what its source wrote for this operation",
	wrongCount:       "recv_count differs from the rows that were sent, though nobody was lost",
	viewChanged:      "layout_range counts rows of a source that is not counted",
	wrongOutputs:     "a combine has used a row of y that is not the final one of this operation",
	overCapacity:     "more rows are reserved than were sent",
	needlessPoison:   "a slab is replaced, though nobody was lost",
	emptySet:         "nobody is a member any more",
	wrongTarget:      "a live rank is fenced that nobody suspects",
	oldFence:         "a process of an old epoch changes the new one's members",
	unexpectedError:  "a combine fails, though every rank makes it",
	overtaken:        "an owner went on to a later operation without this rank's done",
	stuck:            "a live rank waits for ever",
	lostWithoutFault: "a source or an owner was dropped, or a rank fenced, though nothing failed",
	circle:           "ranks wait for one another in a circle",
}

func (s *State) violate(property uint8) {
	if s.broken == fine {
		s.broken = property
	}
}

// writes is called for every store into a slab. The slab has to serve that
// operation, or to be one that no rank will use again.
func (v *mover) writes(s *State, b *Slab, op uint8) {
	q := &s.proc[v.p]
	if b.serves == op && b.era == q.epoch {
		return
	}
	if b.serves == retired && !v.member(s, v.p) {
		return
	}
	s.violate(strayWrite)
}

// checkRows compares the rows of every counted source with what it wrote.
func (v *mover) checkRows(s *State, p int, l *Slot, first bool) {
	b := &s.proc[p].slab[l.own]
	rows := uint8(0)
	for t := range v.Ranks {
		at := b.layout[t]
		if !has(l.counted, t) {
			if v.Mutation == layoutView && at != 0 {
				s.violate(viewChanged)
			}
			continue
		}
		if at == 0 {
			if !v.rowsMayLack() {
				s.violate(wrongRows)
			}
			continue
		}
		rows++
		if at > b.counter || b.row[at-1] != content(v.peer(s, p, t), l.op) {
			s.violate(wrongRows)
		}
	}
	if all := v.all() &^ l.masked; first && l.counted == all && s.epoch == 0 && rows != b.counter {
		s.violate(wrongCount)
	}
	if l.counted|l.masked != v.all() {
		v.lost(s)
	}
}

// rowsMayLack: a source may have nothing to send, or give its dispatch up.
func (m *Model) rowsMayLack() bool { return m.Sparse || m.calls(Cancelled) }

// calls reports whether the program has a call of a kind.
func (m *Model) calls(k Kind) bool {
	for _, c := range m.Program {
		if c.Kind == k {
			return true
		}
	}
	return false
}

// lost: a rank was dropped. When nothing fails, a rank goes only by Close,
// and then after it has sent what others need, unless it gave that up.
func (v *mover) lost(s *State) {
	if v.faultless() && !v.calls(Cancelled) {
		s.violate(lostWithoutFault)
	}
}

// faultless configurations have no reason to lose a rank.
func (m *Model) faultless() bool { return m.Suspicions == 0 && m.Deaths == 0 && m.Rejoin == nil }

// atEnd checks a state without steps: every process has ended as it should.
func (m *Model) atEnd(s *State) uint8 {
	for p := range m.procs() {
		q := &s.proc[p]
		switch {
		case q.dead == 1 || q.pc == pcEnd:
		case q.pc == pcFenced && m.faultless():
			return lostWithoutFault
		case q.pc == pcFenced:
		case q.pc == pcJoin && s.epoch == 0: // no other rank came to the rendezvous
		default:
			return stuck
		}
	}
	return fine
}
