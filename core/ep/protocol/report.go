package protocol

// What a device says to its host: why a buffer ended, which words cannot be, and what
// operations it has recorded.

// Errors of a device, and the numbers that come with each.
//
//mw:kernels
const (
	ErrorExpert   = 1  // topk_idx out of range: position, value, 0, K
	ErrorMismatch = 2  // parameters: rank, index, mine, theirs
	ErrorCapacity = 3  // no room for rows: rank, what its counter holds
	ErrorFenced   = 4  // this rank is no longer a member
	ErrorNoHost   = 5  // the host did not decide on a late rank: rank
	ErrorReleased = 6  // combine of what a rank has released: rank
	ErrorStale    = 7  // combine of a slot that holds no operation
	ErrorRouting  = 8  // topk_idx of a combine is not that of its dispatch: position, value, that of the dispatch, K
	ErrorWeights  = 9  // pre-reduced: the same of topk_weights, by their bits
	ErrorWild     = 10 // a word of this rank's own memory that no rank can have stored: MW_WILD_*, where (all bits: not known), value, the largest one allowed
	ErrorProxy    = 16 // the host's end of the queue is over: why (fifo.cuh)
	ErrorMessage  = 17 // a message holds no row, or not the counts: rank, its bytes
	ErrorNoRemote = 18 // launches for remote ranks are missing: the remote ranks
)

// Words that can be wild: docs/protocol.md, "Words that cannot be".
//
//mw:kernels
const (
	WildCounter = 1 // rows reserved for an expert
	WildLayout  = 2 // a range of rows
	WildOpen    = 3 // the slab that an owner has opened
	WildHead    = 4 // how a message begins
	WildCounts  = 5 // the counts in a message
	WildID      = 6 // the id of an expert, beside a flat row
)

// Records of operations.
//
//mw:kernels
const (
	RecordDispatch = 1
	RecordCombine  = 2
	RecordReaders  = 3    // of current: a wait for readers
	RecordRing     = 1024 // records that the device keeps for the host
	RecordWords    = 16
)
