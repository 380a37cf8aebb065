package cuda

import "fmt"

// Form is in which of its forms an operation runs.
type Form struct {
	FP8         bool
	Scales      uint8 // a device.ScaleFormat
	FP32Outputs bool  // expert outputs are float32
	Ordered     bool  // rows lie in order of rank and token; all ranks want that or none
	Flat        bool  // rows per rank, always in order
	NoRouting   bool  // of flat rows: without topk_idx and topk_weights
	PreReduce   bool  // sums are made by rank; this rank's own choice
	HasMore     bool  // this rank will dispatch again for the same batch; its own choice
}

// Flags of an operation. Those but PreReduce and HasMore are the same on all ranks.
func (f Form) Flags() (flags uint32) {
	if f.FP8 {
		flags |= flagFP8 | uint32(f.Scales)<<flagScalesShift
	}
	flags |= bit(f.FP32Outputs, flagFP32Outputs) | bit(f.Flat, flagFlat) | bit(f.NoRouting, flagNoRouting)
	return flags | bit(f.Ordered || f.Flat, flagOrdered) | bit(f.PreReduce, flagPreReduce) | bit(f.HasMore, flagHasMore)
}

func bit(set bool, flag uint32) uint32 {
	if set {
		return flag
	}
	return 0
}

// Names of what flags of a form say, as core/ep has them.
var formNames = [...]struct {
	name        string
	shift, bits uint64
	values      [4]string
}{
	{"form", 4, 1, [4]string{"by expert", "flat"}},
	{"dtype", 0, 1, [4]string{"bf16", "fp8"}},
	{"the format of fp8 scales", flagScalesShift, 3, [4]string{"float32", "round_scale", "round_scale with ue8m0", "unknown"}},
	{"output dtype", 1, 1, [4]string{"bf16", "float32"}},
	{"sending of topk_idx and topk_weights", 5, 1, [4]string{"true", "false"}},
}

// formDiffers says in words what two ranks' flags disagree about.
func formDiffers(mine, theirs uint64) (name, here, there string) {
	for _, f := range formNames {
		if a, b := mine>>f.shift&f.bits, theirs>>f.shift&f.bits; a != b {
			return f.name, f.values[a], f.values[b]
		}
	}
	return "form", fmt.Sprint(mine), fmt.Sprint(theirs)
}
