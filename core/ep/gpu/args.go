package gpu

import (
	"time"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
)

// Phase of a call.
type Phase int

// PhaseSent launches what needs the inputs. PhaseDone launches all.
const (
	PhaseSent Phase = 1
	PhaseDone Phase = 2
)

// Handle names one dispatch of a buffer. 0 is none.
type Handle uint64

// ReduceTicket names the second phase of one combine of a buffer. 0 is none.
type ReduceTicket uint64

// DispatchArgs are the inputs and outputs of one dispatch. Addresses are the
// device's; memory behind them belongs to the caller, who keeps it until the
// stream has passed what was launched (for a recorded graph: as long as it is
// replayed). 16-byte alignment is needed for X.
type DispatchArgs struct {
	Flat        bool           // one row per token and rank, else per token and expert; the same on every rank
	X           uint64         // bf16 [T, Hidden]; 0 if T = 0
	TopkIdx     uint64         // int64 [T, TopK], -1 selects nothing; 0 if T = 0
	NumTokens   int            // T, at most MaxTokens
	Hidden      int            // H: a multiple of RowType.Multiple()
	TopK        int            // K, 1 to 64
	MaxTokens   int            // M, the same on every rank
	NumExperts  int            // E, a multiple of R, the same on every rank
	RowType     protocol.DType // bf16, or fp8: rows are cast; the same on every rank
	OutputType  protocol.DType // of expert outputs: bf16 or float32, the same on every rank
	PreReduce   bool           // the combine makes sums by rank; not with Flat; each rank's own choice
	HasMore     bool           // this rank will dispatch again for the same batch; each rank's own choice
	KeepHeld    bool           // ep.ErrHeld rather than the slot of a live handle that was never combined
	TopkWeights uint64         // float32 [T, TopK] with PreReduce, or Flat without NoRouting
	Columns
	ActiveRanks   uint64 // int32 [R]: 0 leaves a rank out; cleared for ranks that are lost; or 0
	RecvCount     uint64 // out, int32 [L], with Flat [1]; 0: the buffer's own
	LayoutRange   uint64 // out, int64 [L, R], with Flat [1, R]: first row << 32 | number of rows; 0: the buffer's own
	Stats         uint64 // int64 [R]: rows of each source are added to it; or 0
	WaitNs        uint64 // int64 [R]: ns that the dispatch waited for each rank are added; or 0
	PeersHaveMore uint64 // out, int32 [1]: 1 if any rank with rows that count has HasMore; or 0
	// Stream is the driver's handle (a CUstream or cudaStream_t as a number); 0
	// is the legacy default stream.
	Stream uint64
	// Timeout of each wait on the device; negative: none.
	Timeout time.Duration
}

// Columns are what a token brings beside its flat row to every rank that it goes to.
// The number and widths of the columns are the same on every rank.
type Columns struct {
	NoRouting     bool                       // without TopkIdx and TopkWeights
	Extra         [protocol.NumExtras]uint64 // [T, ExtraRowBytes]
	ExtraRowBytes [protocol.NumExtras]int    // 0: no such column
}

// Result says where the rows of a dispatch are, once the stream has passed its second
// phase. All but RecvCount and LayoutRange of the caller's own lie in the buffer's
// memory, at addresses that depend on Slot and shape alone. They hold until the handle
// is released: a recorded graph finds them there at each replay.
type Result struct {
	Handle      Handle
	Slot        int
	Slab        layout.Slab // the shape: L, C = R*M, bytes of a row, groups of scales
	RecvX       uint64      // bf16 or fp8 [L, C, H]
	Scales      uint64      // float32 [L, H/128, C], or uint32 [L, H/512, C]; 0 for bf16
	SrcInfo     uint64      // int32 [L, C]: index of the token at its source
	RecvCount   uint64      // int32 [L]
	LayoutRange uint64      // int64 [L, R]
	// Columns of flat rows [C, bytes], in the order of package layout; 0: none.
	Columns  [layout.NumColumns]uint64
	CombineX uint64 // of OutputType [L, C, H]: outputs that Combine need not copy
}

// CombineArgs are the inputs and outputs of one combine.
//
// For a flat dispatch there are no ids and weights. X is [N, H], with a row per row
// received. The host does not know N; the device reads that many.
type CombineArgs struct {
	Flat        bool
	X           uint64 // expert outputs [L, C, H]; 0 or Result.CombineX: they are there already
	TopkIdx     uint64 // int64 [T, TopK] as dispatched, or -1: left out (not if pre-reduced)
	TopkWeights uint64 // float32 [T, TopK]; if pre-reduced as dispatched
	Out         uint64 // bf16 [T, Hidden], 16-byte aligned
	NumTokens   int    // as dispatched
	TopK        int    // as dispatched
	ActiveRanks uint64 // as in DispatchArgs
	WaitNs      uint64 // as in DispatchArgs, of the combine
	Stream      uint64
	Timeout     time.Duration
}
