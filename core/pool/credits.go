package pool

import "sync"

// GrantResult says what a grant did.
type GrantResult uint8

// The results of Credits.Grant.
const (
	Fresh      GrantResult = iota // the bound has risen
	OldGrant                      // a duplicate, or one that was overtaken: nothing
	OtherEpoch                    // of another connection's life: nothing
	TooMuch                       // more than the receiver can have room for: nothing
)

// Credits is a sender's ledger of what its receiver has room for. Grants are
// cumulative ("you may have used n in all"), so one that is lost, repeated or
// overtaken does no harm. Safe for concurrent use; allocates nothing.
type Credits struct {
	mu            sync.Mutex
	epoch         uint64
	depth         uint64
	granted, used uint64
	refused       [TooMuch + 1]uint64
}

// Begin starts a ledger for one epoch: depth units are granted at the start,
// and never more than depth are out at a time.
func (c *Credits) Begin(epoch, depth uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch, c.depth, c.granted, c.used = epoch, depth, depth, 0
}

// Grant takes note of a receiver's word: total units may have been used since
// the epoch began.
func (c *Credits) Grant(epoch, total uint64) GrantResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	result := c.judge(epoch, total)
	c.refused[result]++
	if result == Fresh {
		c.granted = total
	}
	return result
}

func (c *Credits) judge(epoch, total uint64) GrantResult {
	switch {
	case epoch != c.epoch:
		return OtherEpoch
	case total-c.granted-1 >= 1<<63: // total <= granted, should they wrap
		return OldGrant
	case total-c.used > c.depth:
		return TooMuch
	}
	return Fresh
}

// Take uses n units, or none and returns false.
func (c *Credits) Take(n uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.granted-c.used < n {
		return false
	}
	c.used += n
	return true
}

// Left is how many units can be taken now.
func (c *Credits) Left() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.granted - c.used
}

// Count returns how many grants had a result.
func (c *Credits) Count(r GrantResult) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused[r]
}
