package cuda

import "github.com/moewire/moewire/core/ep/layout"

// Handle names one dispatch of a buffer. 0 is none.
type Handle uint64

// ReduceTicket names the second phase of one combine of a buffer. 0 is none.
type ReduceTicket uint64

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
