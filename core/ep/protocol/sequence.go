package protocol

// Sequence words carry an operation number, plus one so that 0 means never, in their upper 48
// bits and 16 bits of detail below: a slab id in open; in y_ready and done a count of combines
// and, above it, the released or final bit.
//
//mw:kernels
const (
	OpShift = 16
	Detail  = 1<<OpShift - 1
	Final   = 0x8000 // of a detail: the operation is released, or no combine follows
	Count   = Final - 1
)

// MaxCombines bounds how often one handle can be combined.
const MaxCombines = Count - 1

// Withdrawn is the word of layout by which a source says that it has no rows there, although
// places may have been reserved for it. It has a count of 0; a mere 0 leaves no hole.
const Withdrawn = 1 << 63

// Word packs operation op with a 16-bit detail.
func Word(op uint64, detail uint16) uint64 { return (op+1)<<OpShift | uint64(detail) }

// Counted packs op with a number of combines and the released or final bit.
func Counted(op uint64, combines int, last bool) uint64 {
	detail := uint16(combines)
	if last {
		detail |= Final
	}
	return Word(op, detail)
}

// Sealed packs an operation of a source with a check of both in the detail, for words
// that need no other detail. IsSealed notices every change of one or two bits in such a
// word, and all but about one in 2^16 of the other changes.
func Sealed(op uint64, source int) uint64 { return seal(op+1, source) }

func seal(number uint64, source int) uint64 {
	mixed := (number*MaxRanks + uint64(source) + 1) * 0x9e3779b97f4a7c15
	return number<<OpShift | (mixed^mixed>>32)>>16&Detail
}

// IsSealed reports whether a word is one that the source has sealed, or 0: never.
func IsSealed(word uint64, source int) bool {
	return word == 0 || word == seal(word>>OpShift, source)
}

// Fits reports whether n places from begin on are within the first capacity ones. No
// number is too large for it: neither side of a comparison can wrap.
func Fits(begin, n, capacity uint64) bool { return n <= capacity && begin <= capacity-n }

// IsFor reports whether the word carries operation op.
func IsFor(word, op uint64) bool { return word>>OpShift == op+1 }

// IsPast reports whether the word carries a later operation than op.
func IsPast(word, op uint64) bool { return word>>OpShift > op+1 }

// DetailOf returns the lower 16 bits.
func DetailOf(word uint64) int { return int(word & Detail) }

// Combines returns the number of combines in a word made by Counted.
func Combines(word uint64) int { return int(word & Count) }

// IsLast returns the released or final bit of a word made by Counted.
func IsLast(word uint64) bool { return word&Final != 0 }

// Op returns the operation of a word that is not 0.
func Op(word uint64) uint64 { return word>>OpShift - 1 }
