package cudaring

// Left is how many rings are to be freed.
func (s *Rings) Left() int { return len(s.left) }
