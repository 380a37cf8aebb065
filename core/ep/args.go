// Package ep has what callers of dispatch and combine see, and what its two engines share:
// arguments, results, errors, settings, and how a rank stands in its group. core/ep/cpu and
// core/ep/cuda are the engines; core/node chooses one.
package ep

import (
	"time"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
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
// operation has ended. If the ids equal those of one of the latest NumSlots
// operations, the dispatch uses that plan again; the caller need not ask for it.
type DispatchArgs struct {
	Flat        bool         // one row per token and rank, else per token and expert; the same on every rank
	Use         protocol.Use // the same on every rank; one way, rows are flat, bf16 and without routing, and there may be any number of tokens, M of them for one rank
	X           []byte       // bf16 [T, Hidden]
	TopkIdx     []int64      // [T, TopK], -1 selects nothing
	NumTokens   int          // T
	Listed      []int32      // one way, on the CPU: the tokens that go anywhere, ascending; TopkIdx is theirs, [len(Listed), TopK]. nil: all tokens
	Hidden      int
	TopK        int             // K
	MaxTokens   int             // M, the same on every rank
	NumExperts  int             // E, the same on every rank
	RowType     protocol.DType  // bf16, or fp8: rows are cast; the same on every rank
	OutputType  protocol.DType  // of expert outputs: bf16 or float32, the same on every rank
	PreReduce   bool            // see pre_reduce.go; not with flat rows; each rank's own choice
	HasMore     bool            // this rank will dispatch again for the same batch
	KeepHeld    bool            // ErrHeld rather than the slot of a live operation that was never combined
	ActiveRanks []int32         // nil: all; else at least R entries, 0 leaves a rank out
	RecvCount   []int32         // out [L]; flat: [1]
	LayoutRange []int64         // out [L, R]: first row << 32 | number of rows; flat: [1, R]
	Timeout     time.Duration   // for each phase; negative: none
	Columns                     // of flat rows; TopkWeights with PreReduce, too
	Device      *DeviceDispatch // on a device: the memory, in place of the slices; else nil
}

// NumRouted is how many tokens TopkIdx is of.
func (a *DispatchArgs) NumRouted() int {
	if a.Listed != nil {
		return len(a.Listed)
	}
	return a.NumTokens
}

// Routed is the token of a row of TopkIdx.
func (a *DispatchArgs) Routed(i int) int32 {
	if a.Listed != nil {
		return a.Listed[i]
	}
	return int32(i)
}

// Columns are what a token brings beside its row to every rank that it goes
// to, borrowed until PhaseSent. Every rank gives the same columns with the same
// widths.
type Columns struct {
	NoRouting     bool                       // without TopkIdx and TopkWeights
	TopkWeights   []float32                  // [T, TopK]; nil if NoRouting, and for packed rows without PreReduce
	Extra         [protocol.NumExtras][]byte // [T, ExtraRowBytes]
	ExtraRowBytes [protocol.NumExtras]int    // 0: no such column
}

// Result says where the rows of a dispatch are. The slices alias the slab,
// which stays mapped as long as a caller retains Memory. The rows are valid
// until the handle is released.
type Result struct {
	Op            uint64          // operation number: the handle for Combine
	Flat          bool            // the rows are flat
	Slab          domain.Segment  // on the CPU
	Memory        domain.Retained // holds the rows: the slab, or the memory of a buffer on CUDA
	RecvX         []byte          // [L, C, row]; of flat rows [C, row], and so on
	Scales        []byte          // as in device.Target; empty for bf16
	SrcInfo       []byte          // int32 [L, C]
	CombineX      []byte          // of OutputType [L, C, Hidden]
	PeersHaveMore bool            // at PhaseDone
	// Columns of flat rows, in the order of package layout: int64 [C, TopK] local
	// expert ids, -1 where a selection is not on this rank; float32 [C, TopK], 0
	// there; extras. A row that a lost rank reserved and did not finish has no ids.
	Columns [layout.NumColumns][]byte
	// Device has the addresses of one-way rows that stay on a device: RecvX and Columns are empty then.
	Device DeviceRows
}

// DeviceRows are where the rows of a one-way operation are on a device, until it is released.
type DeviceRows struct {
	RecvX   uint64
	Columns [layout.NumColumns]uint64
}

// CombineArgs are the inputs and outputs of one combine.
type CombineArgs struct {
	Flat        bool      // of a flat dispatch: rows are added up as they are, in order of rank
	X           []byte    // as Result.CombineX, which itself copies nothing; flat: only the rows received
	ZeroCopy    bool      // X must be Result.CombineX
	TopkIdx     []int64   // [T, TopK] as dispatched, or -1 (not if pre-reduced); not if flat
	TopkWeights []float32 // [T, TopK], if pre-reduced as dispatched; not if flat
	Out         []byte    // bf16 [T, Hidden]
	NumTokens   int
	TopK        int // not if flat
	ActiveRanks []int32
	Timeout     time.Duration
	Device      *DeviceCombine // on a device: the memory, in place of the slices; else nil
}
