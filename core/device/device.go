// Package device says what core/ep/cpu needs from whatever computes on rows:
// placing (with an optional cast to fp8), weighted reduction, block copies.
//
// Every implementation gives the same bits for the same input; see
// docs/numerics.md for the arithmetic contract.
package device

import "github.com/moewire/moewire/core/ep/protocol"

// Target is one rank's slab as the destination of rows.
type Target struct {
	// Rows is [L, C, row] with C = RowsPerExpert: bf16 rows of 2*Hidden bytes,
	// or fp8 e4m3 rows of Hidden bytes.
	Rows []byte
	// Scales is float32 [L, Hidden/128, C] (row index has stride 1), used
	// when rows are fp8; may be nil otherwise. protocol.FP8UE8M0: uint32
	// [L, Hidden/512, C], the byte of block 4w+i in bits 8i of word w.
	Scales []byte
	// SrcInfo is int32 [L, C]: the token index on the source rank.
	SrcInfo []byte
	// RowsPerExpert is C, the capacity of one expert's block.
	RowsPerExpert int
}

// PlaceJob stores one token's row at one destination.
type PlaceJob struct {
	Token  int32 // row of X
	Target int32 // index into PlaceBatch.Targets
	Expert int32 // local expert at the target
	Pos    int32 // row within the expert's block
}

// PlaceBatch is one call's worth of rows to place. A row is cast once per
// batch. Any order of jobs is right; it is fast when those of one expert follow
// one another with consecutive positions, so that memory is written in order.
type PlaceBatch struct {
	X       []byte         // bf16 [T, Hidden], row major, contiguous
	Hidden  int            // a multiple of RowType.Multiple()
	RowType protocol.DType // of Targets; with fp8 rows are cast
	Targets []Target
	Jobs    []PlaceJob
}

// ReduceJob names one row of the expert outputs, or none when Source < 0.
type ReduceJob struct {
	Source int32 // index into ReduceBatch.Sources, negative: contributes nothing
	_      int32
	Row    int64 // row index within that source
}

// ReduceBatch computes Out[t] = sum over k, in order of k, of
// Weights[t,k] * Sources[job.Source][job.Row], each product and each sum
// rounded to float32, the result rounded once to bf16 (nearest even). The
// accumulator starts at +0, and a NaN result is the canonical 0x7fc0.
//
// With Runs the jobs of one source follow one another (jobs of no source do not
// count). Each such run is summed like that and rounded to the values' type;
// Out[t] is the sum of these, in order, with the one rounding to bf16.
type ReduceBatch struct {
	Out     []byte // OutType [T, Hidden]
	Hidden  int
	TopK    int
	Sources [][]byte       // rows of Hidden values
	RowType protocol.DType // of those values: bf16 or float32
	OutType protocol.DType // float32 with float32 rows and without Runs: Out is not rounded; a NaN is 0x7fc00000
	Runs    bool           // see above
	Jobs    []ReduceJob    // [T, TopK]
	Weights []float32      // [T, TopK]
}

// OutRowBytes is the size of one row of Out.
func (b *ReduceBatch) OutRowBytes() int { return int(b.OutType.RowBytes(int64(b.Hidden))) }

// CopyJob copies len(Dst) bytes; Src has the same length and does not overlap.
type CopyJob struct{ Dst, Src []byte }

// Kernels is a device's set of row kernels. An implementation keeps scratch
// memory between calls: one value serves one goroutine at a time. Offsets in
// jobs have been checked by the caller; implementations may trust them.
// In steady state no method allocates.
type Kernels interface {
	// Name says which implementation this is, such as "cpu/avx512".
	Name() string
	Place(b *PlaceBatch)
	Reduce(b *ReduceBatch)
	Copy(jobs []CopyJob)
	// Close ends the threads of the kernels, if they have any. Idempotent; no
	// other method may be called after it.
	Close()
}
