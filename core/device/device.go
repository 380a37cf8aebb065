// Package device says what core/ep needs from whatever computes on rows:
// placing (with an optional cast to fp8), weighted reduction, block copies.
//
// Every implementation gives the same bits for the same input; see
// docs/numerics.md for the arithmetic contract.
package device

// QuantBlock is the number of values that share one fp8 scale.
const QuantBlock = 128

// ScaleFormat says which scales a cast to fp8 makes; docs/numerics.md has the
// arithmetic.
type ScaleFormat uint8

// The formats, in the order in which they were added.
const (
	ScalesFloat32 ScaleFormat = iota // float32, amax/448
	ScalesPow2                       // float32, that rounded up to a power of two
	ScalesUE8M0                      // ScalesPow2 as exponent bytes, four to a word
)

// String is the name that messages use.
func (f ScaleFormat) String() string {
	switch f {
	case ScalesPow2:
		return "round_scale"
	case ScalesUE8M0:
		return "round_scale with ue8m0"
	}
	return "float32"
}

// WordBlocks is the number of blocks whose scales share one 4-byte word.
func (f ScaleFormat) WordBlocks() int {
	if f == ScalesUE8M0 {
		return 4
	}
	return 1
}

// Target is one rank's slab as the destination of rows.
type Target struct {
	// Rows is [L, C, row] with C = RowsPerExpert: bf16 rows of 2*Hidden bytes,
	// or fp8 e4m3 rows of Hidden bytes.
	Rows []byte
	// Scales is float32 [L, Hidden/128, C] (row index has stride 1), used
	// when the cast is on; may be nil otherwise. ScalesUE8M0: uint32
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
	X       []byte // bf16 [T, Hidden], row major, contiguous
	Hidden  int    // a multiple of 128 to be cast, of 512 for ScalesUE8M0
	CastFP8 bool
	Scales  ScaleFormat // of the cast
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
	Out     []byte // bf16 [T, Hidden]; with FP32Out float32
	Hidden  int
	TopK    int
	Sources [][]byte    // rows of Hidden values
	FP32    bool        // those values are float32, else bf16
	FP32Out bool        // with FP32 and without Runs: Out is not rounded; a NaN is 0x7fc00000
	Runs    bool        // see above
	Jobs    []ReduceJob // [T, TopK]
	Weights []float32   // [T, TopK]
}

// OutRowBytes is the size of one row of Out.
func (b *ReduceBatch) OutRowBytes() int {
	if b.FP32Out {
		return 4 * b.Hidden
	}
	return 2 * b.Hidden
}

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
