package model

// deadlines: in a patient model a deadline fires only when no rank can go on
// without one. Ranks that have already found somebody to fence are held back
// for that question: their deadlines may have fired together.
func (v *mover) deadlines(s *State) {
}

func (v *mover) accused() {
}
