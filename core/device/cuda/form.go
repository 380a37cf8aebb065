package cuda

// Form is in which of its forms an operation runs.
type Form struct {
	FP8       bool
	Scales    uint8 // a device.ScaleFormat
	Wide      bool  // expert outputs are float32
	Ordered   bool  // rows lie in order of rank and token; all ranks want that or none
	Flat      bool  // rows per rank, always in order
	Bare      bool  // of flat rows: without topk_idx and topk_weights
	PreReduce bool  // sums are made by rank; this rank's own choice
	More      bool  // this rank will dispatch again for the same batch; its own choice
}

// Flags of an operation. Those but PreReduce and More are the same on all ranks.
func (f Form) Flags() (flags uint32) {
	if f.FP8 {
		flags |= flagFP8 | uint32(f.Scales)<<flagScalesShift
	}
	flags |= bit(f.Wide, flagWide) | bit(f.Flat, flagFlat) | bit(f.Bare, flagBare)
	return flags | bit(f.Ordered || f.Flat, flagOrdered) | bit(f.PreReduce, flagPreReduce) | bit(f.More, flagMore)
}

func bit(set bool, flag uint32) uint32 {
	if set {
		return flag
	}
	return 0
}
