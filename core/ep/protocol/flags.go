package protocol

// Flags say in which form an operation runs: in the params that a rank leaves in a slab, in
// messages to other hosts, and in what kernels are given. MW_DISPATCH_* of moewire.h have the
// same values where they say the same, but for the format of scales.
type Flags uint32

// Bits of Flags.
//
//mw:kernels
const (
	FlagFP8         = 0x1    // rows are fp8
	FlagHasMore     = 0x2    // this rank will dispatch again for the same batch; its own choice
	FlagPow2        = 0x4    // of scales: DType
	FlagUE8M0       = 0x8    // of scales: DType; not both
	FlagFP32Outputs = 0x10   // expert outputs are float32
	FlagFlat        = 0x20   // rows per rank, in order, with columns
	FlagNoRouting   = 0x40   // of flat rows: without topk_idx and topk_weights
	FlagPreReduce   = 0x80   // sums are made by rank; this rank's own choice
	FlagOrdered     = 0x100  // rows lie in order of rank and token; the group's choice
	FlagUseLow      = 0x1000 // what the operation is for: Use
	FlagUseHigh     = 0x2000

	// FlagsAgreed are those that ranks must agree on in each call.
	FlagsAgreed = FlagFP8 | FlagPow2 | FlagUE8M0 | FlagFP32Outputs | FlagFlat | FlagNoRouting | FlagUseLow | FlagUseHigh

	// Flags of launches, which no other rank sees.
	FlagFill   = 0x200   // the slab is filled with NaN before it is opened
	FlagRemote = 0x10000 // launches for remote ranks are among those of the call
	FlagSplit  = 0x20000 // the second phase is launched apart: the first one waits for no room in a ring
	FlagRest   = 0x40000 // of a launch that takes messages: it comes before a release, and waits for no rows
)

// DTypes are the types of rows and of outputs that the flags say.
func (f Flags) DTypes() (rows, outputs DType) {
	if f&FlagFP32Outputs != 0 {
		outputs = FP32
	}
	switch f & (FlagFP8 | FlagPow2 | FlagUE8M0) {
	case 0:
		return BF16, outputs
	case FlagFP8:
		return FP8, outputs
	case FlagFP8 | FlagPow2:
		return FP8Pow2, outputs
	case FlagFP8 | FlagUE8M0:
		return FP8UE8M0, outputs
	}
	return Unknown, outputs
}

// Bit is the flag if it is set.
func (f Flags) Bit(set bool) Flags {
	if set {
		return f
	}
	return 0
}
