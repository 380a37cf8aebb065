package chaos

import "math/bits"

// few reports whether the ranks that are left may be too few to go on. On one host
// they never are. Between hosts it takes more than half of the former members,
// or half with the lowest of them, or that all others have ended. A rank that is only
// stopped does not count as ended: the others cannot know that it has not gone on itself.
func (c *chaos) few(left uint64) bool {
	if c.place == allLocal || c.agreed&c.standing() == 0 {
		return false
	}
	n, all := bits.OnesCount64(left), bits.OnesCount64(c.agreed)
	return 2*n < all || 2*n == all && left&(c.agreed&-c.agreed) == 0
}

// standing returns the ranks that are stopped.
func (c *chaos) standing() (set uint64) {
	for _, p := range c.current {
		if p != nil && p.stopped && !p.doomed && !p.ended {
			set |= 1 << p.rank
		}
	}
	return set
}
