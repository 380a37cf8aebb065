package ep

import "github.com/moewire/moewire/core/ep/protocol"

// DeviceDispatch is the memory of a dispatch on a device, in place of the slices of
// DispatchArgs. These are addresses of the device; 0 means none. The memory belongs to the
// caller: it stays until the stream has passed what was launched (for a recorded
// graph: as long as it is replayed).
type DeviceDispatch struct {
	X             uint64                     // bf16 [T, Hidden], 16-byte aligned; 0 if T = 0
	TopkIdx       uint64                     // int64 [T, TopK], -1 selects nothing; 0 if T = 0
	TopkWeights   uint64                     // float32 [T, TopK] with PreReduce, or Flat without NoRouting
	Extra         [protocol.NumExtras]uint64 // [T, ExtraRowBytes]
	ActiveRanks   uint64                     // int32 [R]: 0 leaves a rank out; cleared for ranks that are lost
	RecvCount     uint64                     // out, int32 [L], with Flat [1]; 0: the buffer's own
	LayoutRange   uint64                     // out, int64 [L, R], with Flat [1, R]: first row << 32 | number of rows; 0: the buffer's own
	Stats         uint64                     // int64 [R]: rows of each source are added to it
	WaitNs        uint64                     // int64 [R]: ns that the dispatch waited for each rank are added
	PeersHaveMore uint64                     // out, int32 [1]: 1 if any rank with rows that count has HasMore
	// Stream is the driver's handle (a CUstream or cudaStream_t as a number); 0
	// is the legacy default stream.
	Stream uint64
}

// DeviceCombine is the memory of a combine on a device, in place of the slices of
// CombineArgs, as DeviceDispatch is that of a dispatch.
//
// For a flat dispatch there are no ids and weights. X is [N, H], with a row per row
// received. The host does not know N; the device reads that many.
type DeviceCombine struct {
	X           uint64 // expert outputs [L, C, H]; 0 or the combine buffer: they are there already
	TopkIdx     uint64 // int64 [T, TopK] as dispatched, or -1: left out (not if pre-reduced)
	TopkWeights uint64 // float32 [T, TopK]; if pre-reduced as dispatched
	Out         uint64 // bf16 [T, Hidden], 16-byte aligned
	ActiveRanks uint64 // as in DeviceDispatch
	WaitNs      uint64 // as in DeviceDispatch, of the combine
	Stream      uint64
}

// RowMove brings row From of one place to row To of another. From < 0: zeros.
type RowMove struct{ From, To int32 }

// RowMoves are moves of rows in the memory of a device.
type RowMoves struct {
	From, To uint64 // rows of RowBytes
	RowBytes int
	Moves    []RowMove // borrowed during the call
}

// RowSums are sums of rows in the memory of a device: float32, in order, rounded once.
type RowSums struct {
	Rows       uint64                     // [.., Hidden]
	Bias       [protocol.NumBiases]uint64 // [NumSums, Hidden], added first; 0: none
	Terms      []int32                    // [NumSums, NumTerms]: rows; negative: none. Borrowed during the call
	NumSums    int
	NumTerms   int    // of each sum
	Out        uint64 // [NumSums, Hidden]
	Hidden     int
	RowType    protocol.DType // of rows and biases: bf16 or float32
	OutType    protocol.DType // bf16, or float32 with float32 rows
	Weights    uint64         // float32 [.., TopK], added up like the rows; 0: none
	OutWeights uint64         // float32 [NumSums, TopK]
	TopK       int
}
