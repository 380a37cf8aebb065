package chaos

import "github.com/moewire/moewire/core/group/rankset"

// few reports whether the ranks that are left may be too few to go on. On one host
// they never are. Between hosts it takes more than half of the former members,
// or half with the lowest of them, or that all others have ended. A rank that is only
// stopped does not count as ended: the others cannot know that it has not gone on itself.
func (c *chaos) few(left rankset.Set) bool {
	if c.place == allLocal || c.agreed.And(c.standing()).Empty() {
		return false
	}
	n, all := left.Len(), c.agreed.Len()
	return 2*n < all || 2*n == all && !left.Has(c.agreed.Min())
}

// standing returns the ranks that are stopped.
func (c *chaos) standing() (set rankset.Set) {
	for _, p := range c.current {
		if p != nil && p.stopped && !p.endExpected && !p.ended {
			set = set.With(p.rank)
		}
	}
	return set
}
