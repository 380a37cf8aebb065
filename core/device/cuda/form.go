package cuda

import (
	"fmt"

	"github.com/moewire/moewire/core/ep/protocol"
)

// Form is in which of its forms an operation runs.
type Form struct {
	RowType    protocol.DType
	OutputType protocol.DType // of expert outputs
	Ordered    bool           // rows lie in order of rank and token; all ranks want that or none
	Flat       bool           // rows per rank, always in order
	Use        protocol.Use   // what for; the same on all ranks
	NoRouting  bool           // of flat rows: without topk_idx and topk_weights
	PreReduce  bool           // sums are made by rank; this rank's own choice
	HasMore    bool           // this rank will dispatch again for the same batch; its own choice
}

// Flags of an operation. Those but PreReduce and HasMore are the same on all ranks.
func (f Form) Flags() protocol.Flags {
	bit := protocol.Flags.Bit
	return f.RowType.Flags() | f.OutputType.Flags() | f.Use.Flags() | bit(protocol.FlagFlat, f.Flat) | bit(protocol.FlagNoRouting, f.NoRouting) |
		bit(protocol.FlagOrdered, f.Ordered || f.Flat) | bit(protocol.FlagPreReduce, f.PreReduce) | bit(protocol.FlagHasMore, f.HasMore)
}

// formDiffers says in words what two ranks' words of flags disagree about, as core/ep/cpu does.
func formDiffers(own, others uint64) (name, here, there string) {
	mine, theirs := protocol.Flags(own), protocol.Flags(others)
	rows, outputs := mine.DTypes()
	theirRows, theirOutputs := theirs.DTypes()
	differ := mine ^ theirs
	if mine.Use() != theirs.Use() {
		return "the call", mine.Use().String(), theirs.Use().String()
	}
	if differ&protocol.FlagFlat != 0 {
		return "form", formName(mine), formName(theirs)
	}
	if name, here, there, ok := protocol.Differ(rows, theirRows, outputs, theirOutputs); ok {
		return name, here, there
	}
	if differ&protocol.FlagNoRouting != 0 {
		return "sending of topk_idx and topk_weights", sent(mine), sent(theirs)
	}
	return "form", fmt.Sprint(own), fmt.Sprint(others)
}

func formName(f protocol.Flags) string {
	if f&protocol.FlagFlat != 0 {
		return "flat"
	}
	return "by expert"
}

func sent(f protocol.Flags) string { return fmt.Sprint(f&protocol.FlagNoRouting == 0) }
