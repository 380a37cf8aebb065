package multihost

import (
	"iter"
	"math/bits"

	"github.com/moewire/moewire/core/group/membership"
)

// members ranges over the ranks of a set, from the lowest.
func members(set uint64) iter.Seq[int] {
	return func(yield func(int) bool) {
		for rest := set; rest != 0; rest &= rest - 1 {
			if !yield(bits.TrailingZeros64(rest)) {
				return
			}
		}
	}
}

func lowest(set uint64) int { return bits.TrailingZeros64(set) }

// epochOf returns the epoch of a members word.
func epochOf(word uint64) uint16 { return membership.Set(word).Epoch() }

// ranksOf returns the ranks of a members word.
func ranksOf(word uint64) uint64 { return membership.Set(word).Ranks() }
