package ep

import (
	"time"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/transport"
)

// Phase of an operation, as far as the caller is concerned.
type Phase int

// PhaseSent: the inputs are no longer needed. PhaseDone: results are complete.
const (
	PhaseSent Phase = 1
	PhaseDone Phase = 2
)

// DispatchArgs are the inputs and outputs of one dispatch. Slices belong to
// the caller: X and TopkIdx are borrowed until PhaseSent, the others until the
// operation has ended.
type DispatchArgs struct {
	X           []byte  // bf16 [T, Hidden]
	TopkIdx     []int64 // [T, TopK], -1 selects nothing
	NumTokens   int     // T
	Hidden      int
	TopK        int // K
	MaxTokens   int // M, the same on every rank
	NumExperts  int // E, the same on every rank
	FP8         bool
	Scales      device.ScaleFormat // with FP8, the same on every rank
	WideOutputs bool               // expert outputs are float32, the same on every rank
	More        bool               // this rank will dispatch again for the same batch
	ActiveRanks []int32            // nil: all; else at least R entries, 0 leaves a rank out
	RecvCount   []int32            // out [L]
	LayoutRange []int64            // out [L, R]: first row << 32 | number of rows
	Timeout     time.Duration      // for each phase; negative: none
}

// Result says where the rows of a dispatch are. The slices alias the slab,
// which stays mapped as long as somebody retains Slab; the rows are valid
// until the handle is released.
type Result struct {
	Op            uint64 // operation number: the handle for Combine
	Slab          transport.Segment
	RecvX         []byte // [L, C, row]
	Scales        []byte // as in device.Target; empty for bf16
	SrcInfo       []byte // int32 [L, C]
	CombineX      []byte // bf16, or float32 with WideOutputs, [L, C, Hidden]
	PeersHaveMore bool   // at PhaseDone
}

// CombineArgs are the inputs and outputs of one combine.
type CombineArgs struct {
	X           []byte    // as Result.CombineX, which itself copies nothing
	ZeroCopy    bool      // X must be Result.CombineX
	TopkIdx     []int64   // [T, TopK] as dispatched, or -1
	TopkWeights []float32 // [T, TopK]
	Out         []byte    // bf16 [T, Hidden]
	NumTokens   int
	TopK        int
	ActiveRanks []int32
	Timeout     time.Duration
}
