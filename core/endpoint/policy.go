package endpoint

import "fmt"

// Policy chooses which connection makes room for another one.
type Policy uint8

// The policies.
const (
	// SIEVE (Zhang et al., NSDI 2024): new entries join at the head, unvisited. A hand
	// goes from tail to head, spares the entries that were used since it last came by,
	// and takes the first that was not.
	SIEVE Policy = iota
	// FIFO takes the oldest.
	FIFO
)

// String names the policy.
func (p Policy) String() string {
	switch p {
	case SIEVE:
		return "sieve"
	case FIFO:
		return "fifo"
	}
	return fmt.Sprintf("policy %d", uint8(p))
}

const none = -1

// order is the list of live entries that a policy walks, by index; the newest
// is at the head. Guarded by Store.mu; whether one was visited is an atomic of
// the entry, which a get sets without the lock.
type order struct {
	policy     Policy
	next, prev []int32 // towards the tail, towards the head
	head, tail int32
	hand       int32 // where SIEVE goes on; none: at the tail
}

func newOrder(p Policy, n int) order {
	o := order{policy: p, next: make([]int32, n), prev: make([]int32, n), head: none, tail: none, hand: none}
	return o
}

func (o *order) insert(i int32) {
	o.next[i], o.prev[i] = o.head, none
	if o.head != none {
		o.prev[o.head] = i
	} else {
		o.tail = i
	}
	o.head = i
}

// remove takes an entry out; a hand that points to it goes on to the next one.
func (o *order) remove(i int32) {
	if o.hand == i {
		o.hand = o.prev[i]
	}
	if o.prev[i] != none {
		o.next[o.prev[i]] = o.next[i]
	} else {
		o.head = o.next[i]
	}
	if o.next[i] != none {
		o.prev[o.next[i]] = o.prev[i]
	} else {
		o.tail = o.prev[i]
	}
}

// candidate returns the entry to evict among those that are eligible, or none. It
// does not remove it. Entries that are not eligible are passed over as if they
// were not there: they keep what they are forgiven for.
func (o *order) candidate(eligible func(i int32) bool, visited func(i int32) (was bool)) int32 {
	if o.policy == FIFO {
		for i := o.tail; i != none; i = o.prev[i] {
			if eligible(i) {
				return i
			}
		}
		return none
	}
	return o.sieve(eligible, visited)
}

// sieve needs at most two rounds: in the first all may be forgiven.
func (o *order) sieve(eligible, visited func(i int32) bool) int32 {
	i := o.hand
	for wraps := 0; wraps <= 2; {
		if i == none {
			i = o.tail
			wraps++
			if i == none {
				return none
			}
		}
		if eligible(i) && !visited(i) {
			o.hand = i // remove moves it on
			return i
		}
		i = o.prev[i]
	}
	return none
}
