package chaos

import (
	"slices"

	"github.com/moewire/moewire/core/group/rankset"
)

// few reports whether the ranks that are left may be too few to go on. On one host
// they never are. Between hosts it takes more than half of the former members,
// or half with the lowest of them, or that all others have ended. A rank that is only
// stopped does not count as ended: the others cannot know that it has not gone on itself. Nor
// does one with sockets that a child holds open, if no rank of its host can tell the others.
func (c *chaos) few(left rankset.Set) bool {
	if c.place == allLocal || c.agreed.And(c.standing()).Empty() {
		return false
	}
	n, all := left.Len(), c.agreed.Len()
	return 2*n < all || 2*n == all && !left.Has(c.agreed.Min())
}

// standing returns the ranks that are stopped, or may seem to be.
func (c *chaos) standing() (set rankset.Set) {
	for _, p := range c.current {
		if p == nil {
			continue
		}
		if stopped := p.stopped && !p.endExpected && !p.ended; stopped || c.seemsAlive(p) {
			set = set.With(p.rank)
		}
	}
	return set
}

// seemsAlive: the rank was killed, a child holds its sockets, and no rank that plays watches its
// process.
func (c *chaos) seemsAlive(p *child) bool {
	watches := func(o *child) bool { return c.place.host(o.rank, c.ranks) == c.place.host(p.rank, c.ranks) }
	return p.endExpected && p.held() && !slices.ContainsFunc(c.playing(), watches)
}
