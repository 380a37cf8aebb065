package multihost

import (
	"iter"
	"math/bits"
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

// ranksMask and epochOf take the members word apart.
const ranksMask = 1<<48 - 1

func epochOf(word uint64) uint16 { return uint16(word >> 48) }
