package multihost

import "github.com/moewire/moewire/core/group/rankset"

// Fresh are the ranks that have another process than at the last rendezvous, or
// another domain of the same process.
func (c *Change) Fresh() (ranks rankset.Set) {
	before := c.d.now.Load().participants
	for r := range c.participants.present.Without(c.participants.self).All() {
		if !c.participants.sameProcess(before, r) {
			ranks = ranks.With(r)
		}
	}
	return ranks
}
