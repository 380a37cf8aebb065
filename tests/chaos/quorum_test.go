package chaos

import "math/bits"

// few reports whether those who are left may be too few to go on. On one host
// nobody is. Between hosts it takes more than half of those who were members,
// or half with the lowest of them, or that all others have ended: of who is only
// stopped nobody knows that it has not gone on itself.
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
