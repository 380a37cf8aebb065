package remote

// Properties. A state that breaks one carries its number.
const (
	fine = iota
	wrongRows
	wrongCount
	changedAfter
	wrongOutputs
	overCapacity
	refused
	emptySet
	unexpectedError
	lostWithoutFault
	takenForLost
	stuck
)

var properties = [...]string{
	fine:             "",
	wrongRows:        "a row is not what its source sent for this operation",
	wrongCount:       "recv_count is not the number of rows, or less than where one is",
	changedAfter:     "a row comes in after the dispatch has ended",
	wrongOutputs:     "a combine has used a row of y that is not of this combine",
	overCapacity:     "more rows are reserved than can be sent",
	refused:          "a message of a rank that does as it should is refused",
	emptySet:         "nobody is a member any more",
	unexpectedError:  "a combine fails, though every rank makes it",
	lostWithoutFault: "a source or an owner is dropped, or a rank fenced, though nothing failed",
	takenForLost:     "a rank that has left is taken for lost",
	stuck:            "a live rank waits for ever",
}

func (s *State) violate(property uint8) {
	if s.broken == fine {
		s.broken = property
	}
}

// lost: a rank was dropped, or has ended without a notice. When nothing
// fails, a rank goes only by Close, and others have got everything then.
func (v *mover) lost(s *State) {
	if v.faultless() && !v.calls(Cancelled) {
		s.violate(lostWithoutFault)
	}
}

// checkRows compares the rows of every counted source with what it sent.
func (v *mover) checkRows(s *State, l *Slot) {
	num := uint8(0)
	for t := range v.Ranks {
		if !has(l.counted, t) {
			continue
		}
		if l.layout[t] == 0 {
			if !v.Sparse && !v.calls(Cancelled) {
				s.violate(wrongRows)
			}
			continue
		}
		num += numRows
		if l.layout[t]-1+numRows > l.counter {
			s.violate(wrongCount)
		}
		for i := range uint8(numRows) {
			if l.rows[l.layout[t]-1+i] != s.proc[v.p].content(t, l.op, i) {
				s.violate(wrongRows)
			}
		}
	}
	if num != l.counter && l.counted == v.all() && !v.calls(Cancelled) {
		s.violate(wrongCount)
	}
}

// Initial makes a mover a search.Space.
func (v *mover) Initial() State { return v.initial() }

// Broken names the property that a state breaks.
func (v *mover) Broken(s *State) string { return properties[s.broken] }

// AtEnd checks a state without steps: every rank has ended as it should.
func (v *mover) AtEnd(s *State) string {
	for p := range v.Ranks {
		q := &s.proc[p]
		switch {
		case q.dead == 1 || q.pc == pcEnd || q.pc == pcClosed:
		case q.pc == pcFenced && !v.faultless():
		case q.pc == pcFenced:
			return properties[lostWithoutFault]
		default:
			return properties[stuck]
		}
	}
	return ""
}
