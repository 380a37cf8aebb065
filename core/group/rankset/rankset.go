// Package rankset is a set of ranks as a value, and the number of ranks that a group may have.
package rankset

import (
	"iter"
	"math/bits"
	"strconv"
)

// MaxRanks is the largest number of ranks in one group. More ranks than a word has bits need
// another Set, and work where a set is packed into one word, by Word and FromWord:
//
//   - core/group/membership: the member word, of which an epoch has 16 bits;
//   - core/ep/cpu: the control words waits_for and order;
//   - core/telemetry: the ranks that an operation waited for;
//   - core/group/multihost: messages about the membership and about ended processes;
//   - core/device/cuda and core/ep/cuda: what kernels read and report;
//   - capi: mw_members_t.
//
// tests/boundaries keeps this list complete.
const MaxRanks = 48

// A Set holds ranks from 0 to the number of bits of its word: a word of another process may have
// bits that are no ranks.
const _ uint = 64 - MaxRanks

// Set is a set of ranks. It is a value: methods return a new one. The zero value is empty. Two
// sets are equal (==) when they have the same ranks.
type Set struct{ word uint64 }

// Of returns the set of the given ranks.
func Of(ranks ...int) Set {
	var s Set
	for _, r := range ranks {
		s.word |= 1 << r
	}
	return s
}

// Upto returns the set of the first n ranks, 0 to n-1.
func Upto(n int) Set { return Set{1<<n - 1} }

// FromWord returns the set with a rank for each bit of a word. It is for words that other
// processes, hosts, kernels or C callers write; nothing says that their bits are ranks.
func FromWord(word uint64) Set { return Set{word} }

// Word returns the set as one word, rank r as bit r: the form in which other processes, hosts,
// kernels and C callers see it.
func (s Set) Word() uint64 { return s.word }

// Has reports whether a rank is in the set.
func (s Set) Has(rank int) bool { return s.word>>rank&1 == 1 }

// With returns the set with one more rank.
func (s Set) With(rank int) Set { return Set{s.word | 1<<rank} }

// Without returns the set without a rank.
func (s Set) Without(rank int) Set { return Set{s.word &^ (1 << rank)} }

// And returns the ranks that are in both sets.
func (s Set) And(other Set) Set { return Set{s.word & other.word} }

// Or returns the ranks that are in one set or both.
func (s Set) Or(other Set) Set { return Set{s.word | other.word} }

// Minus returns the ranks of s that are not in the other set.
func (s Set) Minus(other Set) Set { return Set{s.word &^ other.word} }

// Len is the number of ranks in the set.
func (s Set) Len() int { return bits.OnesCount64(s.word) }

// Empty reports whether the set has no ranks.
func (s Set) Empty() bool { return s.word == 0 }

// Min is the lowest rank of a set that is not empty.
func (s Set) Min() int { return bits.TrailingZeros64(s.word) }

// All ranges over the ranks of the set, from the lowest.
func (s Set) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for rest := s.word; rest != 0; rest &= rest - 1 {
			if !yield(bits.TrailingZeros64(rest)) {
				return
			}
		}
	}
}

// String lists the ranks, such as {0,3,5}.
func (s Set) String() string {
	text := []byte{'{'}
	for r := range s.All() {
		if len(text) > 1 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, int64(r), 10)
	}
	return string(append(text, '}'))
}
