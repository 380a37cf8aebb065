// Package membership is the group's member set: an epoch and one bit per
// rank in a single word, so that every change is one compare-and-swap.
package membership

import (
	"fmt"

	"github.com/moewire/moewire/core/group/rankset"
)

// Epoch is the number of an epoch. After the largest one comes 0.
type Epoch uint16

// EpochShift is where the epoch lies in the word: above the ranks. An Epoch has just the bits
// that are left.
const (
	EpochShift = 48
	// MaxEpoch is the largest epoch.
	MaxEpoch = 1<<(64-EpochShift) - 1

	_ = uint(EpochShift - rankset.MaxRanks)
	_ = uint(^Epoch(0) - MaxEpoch)
	_ = uint(MaxEpoch - ^Epoch(0))
)

// IsAfter reports whether an epoch was begun after another one, at most half of all epochs before.
func (e Epoch) IsAfter(other Epoch) bool { return e != other && e-other <= ^Epoch(0)>>1 }

// Word is where the members are kept. Where all ranks can map it, it is an atomic. Elsewhere
// CompareAndSwap may also fail because the ranks have yet to agree on the change.
type Word interface {
	Load() uint64
	CompareAndSwap(old, next uint64) bool
}

// Members is one value of the members word: an epoch, and the ranks that belong to it. A rank
// is in it when the epoch is the one it joined and its bit is set: use In, which checks both.
type Members uint64

// New returns the set of the given ranks in an epoch.
func New(epoch Epoch, ranks rankset.Set) Members {
	return Members(uint64(epoch)<<EpochShift | ranks.Word())
}

// Full returns the set of ranks 0 to numRanks-1 in an epoch.
func Full(epoch Epoch, numRanks int) Members { return New(epoch, rankset.Upto(numRanks)) }

// Epoch returns the epoch of the set.
func (m Members) Epoch() Epoch { return Epoch(m >> EpochShift) }

// Ranks returns the members.
func (m Members) Ranks() rankset.Set { return rankset.FromWord(uint64(m) & (1<<EpochShift - 1)) }

// Without returns the set without ranks, in the same epoch.
func (m Members) Without(ranks rankset.Set) Members { return Members(uint64(m) &^ ranks.Word()) }

// In reports whether the rank that joined in epoch is a member.
func (m Members) In(epoch Epoch, rank int) bool {
	return m.Epoch() == epoch && m.Ranks().Has(rank)
}

// String gives the epoch and the ranks, one bit each.
func (m Members) String() string {
	return fmt.Sprintf("epoch %d, %d ranks %b", m.Epoch(), m.Ranks().Len(), m.Ranks().Word())
}

// Leave takes rank out of the word while the word still has the epoch that
// the rank joined. It reports whether this call took it out.
func Leave(word Word, epoch Epoch, rank int) bool {
	return Fence(word, epoch, rank, rank)
}

// here is a word of which other hosts have copies. CompareAndSwapHere changes only the copy
// of this host.
type here interface {
	CompareAndSwapHere(old, next uint64) bool
}

// LeaveOut takes ranks of this host out of an epoch that the caller has left itself. The
// caller has met without them, so no rank of the rendezvous waits for them there any more.
// They learn of it by this call, and otherwise might not before the next epoch has begun.
// It reports whether this call took any out.
func LeaveOut(word Word, epoch Epoch, ranks rankset.Set) bool {
	for {
		old := Members(word.Load())
		if old.Epoch() != epoch || old.Ranks().And(ranks).Empty() {
			return false
		}
		if swapHere(word, uint64(old), uint64(old.Without(ranks))) {
			return true
		}
		if word.Load() == uint64(old) {
			return false // not yet: others have to agree
		}
	}
}

// Fence takes target out of the word, on behalf of a rank of the epoch that is
// itself still in it. So of two ranks that suspect each other only one can win.
// It reports whether this call took target out.
func Fence(word Word, epoch Epoch, by, target int) bool {
	for {
		old := Members(word.Load())
		if !old.In(epoch, by) || !old.In(epoch, target) {
			return false
		}
		if word.CompareAndSwap(uint64(old), uint64(old.Without(rankset.Of(target)))) {
			return true
		}
		if word.Load() == uint64(old) {
			return false // not yet: others have to agree
		}
	}
}

// Expel takes the blamed ranks out on behalf of rank by, if the word is still the
// one in which they were blamed. After any change the failure detector must look again:
// a late rank may have waited for a rank that is lost by now.
func Expel(word Word, seen Members, epoch Epoch, by int, blamed rankset.Set) bool {
	if !seen.In(epoch, by) || seen.Ranks().And(blamed) != blamed {
		return false
	}
	return word.CompareAndSwap(uint64(seen), uint64(seen.Without(blamed)))
}

// Install begins an epoch with the given ranks, unless another rank has done so.
// All ranks of the new epoch have met and call it with equal arguments. False:
// the group is already past this epoch.
func Install(word Word, epoch Epoch, ranks rankset.Set) bool {
	next := uint64(New(epoch, ranks))
	for {
		old := Members(word.Load())
		switch {
		case old.Epoch() == epoch:
			return true
		case old.Epoch().IsAfter(epoch):
			return false
		}
		if word.CompareAndSwap(uint64(old), next) {
			return true
		}
	}
}
