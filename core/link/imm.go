package link

// An immediate has a kind in its upper two bits, the receiver's tag in six and
// a number in 24: of a message; or which messages are granted, see grantOf.
//
// The tag is drawn anew by the receiver for each link, so that what was sent
// over an earlier one means nothing.
const (
	immMessage   = 0 // where the cursor is
	immWrapped   = 1 // at the ring's start
	immGrant     = 2
	immPathProbe = 3 // says nothing but that the path is there

	tagBits    = 6
	numberBits = 24
	tagMask    = 1<<tagBits - 1
	numberMask = 1<<numberBits - 1
)

func imm(kind, tag uint32, n uint64) uint32 {
	return kind<<30 | tag<<numberBits | uint32(n&numberMask)
}

func splitImm(v uint32) (kind, tag uint32, n uint64) {
	return v >> 30, v >> numberBits & tagMask, uint64(v & numberMask)
}

// A grant says which messages it is for, the first one and how many. So the sender of the
// messages knows which grants it has not seen yet. At most MaxMessages are outstanding,
// so that old grants are told from new ones.
const (
	firstBits = 15
	firstMask = 1<<firstBits - 1
	// maxGranted is how many messages one grant can be for.
	maxGranted = 1<<(numberBits-firstBits) - 1
)

// grantOf is the number in the immediate of a grant.
func grantOf(first, num uint64) uint64 { return num<<firstBits | first&firstMask }

// splitGrant says how far after base a grant begins, and how many it is for.
func splitGrant(v, base uint64) (at, num uint64) {
	return (v - base) & firstMask, v >> firstBits
}

// ahead is how far the number n, of which numberBits have come, lies after
// base. What lies before base looks very far ahead.
func ahead(n, base uint64) uint64 { return (n - base) & numberMask }
