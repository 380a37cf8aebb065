package protocol

// Use is what an operation is for. One of all but ForCombine goes one way: its rows bring
// no outputs back, it has no combine, and its slot is free once the rows have been read.
type Use uint8

// The uses.
const (
	ForCombine Use = iota // dispatch, then combine
	ForRouting            // ranks tell one another how many rows will go where
	ForScatter            // rows to the ranks of a routing
	ForGather             // rows back to their sources
)

// Uses of operations are two bits of their Flags. Kernels only compare them.
const (
	useShift = 12
	useMask  = FlagUseLow | FlagUseHigh
)

// String is the name of the call.
func (u Use) String() string { return [...]string{"dispatch", "routing", "scatter", "gather"}[u&3] }

// OneWay reports whether no combine can follow.
func (u Use) OneWay() bool { return u != ForCombine }

// Flags are the bits of an operation that say this use.
func (u Use) Flags() Flags { return Flags(u&3) << useShift }

// Use is what an operation with these flags is for.
func (f Flags) Use() Use { return Use(f & useMask >> useShift) }
