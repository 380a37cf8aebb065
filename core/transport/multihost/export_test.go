package multihost

// Fresh has one bit per rank that has another process than at the last rendezvous, or
// another domain of the same process.
func (c *Change) Fresh() (ranks uint64) {
	before := c.d.now.Load().participants
	for r := range members(c.participants.present &^ (1 << c.participants.self)) {
		if !c.participants.sameProcess(before, r) {
			ranks |= 1 << r
		}
	}
	return ranks
}
