// Package limits is the one table of what the numbers that callers give may be: arguments and
// settings of buffers and fabrics. Each layer that can be called directly checks by it: the Go
// packages, the C ABI, and Python, for which `make generate` writes the table to
// python/moewire/_abi.py. Texts of errors are made of it.
//
// Bounds that a carrier, a device or another argument sets are not here.
package limits

import (
	"fmt"
	"math"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/op"
)

// Range is what a number may be.
type Range struct {
	Name        string // as moewire.h and docs/configuration.md have it
	Least, Most int64
}

// Has reports whether a number is in the range.
func (r Range) Has(v int64) bool { return r.Least <= v && v <= r.Most }

// Check returns an error that says the number's name, what is given and what is allowed.
func (r Range) Check(v int64) error { return r.CheckAs(r.Name, v) }

// CheckAs is Check for a number that the caller has by another name.
func (r Range) CheckAs(name string, v int64) error {
	if r.Has(v) {
		return nil // on the way of every call
	}
	return fmt.Errorf("%s is %d, allowed %s", name, v, r)
}

// String is what is allowed, in words.
func (r Range) String() string { return fmt.Sprintf("%d to %d", r.Least, r.Most) }

// A group and its operations.
var (
	NumRanks     = Range{"num_ranks", 1, rankset.MaxRanks}
	NumSlots     = Range{"num_slots", 1, protocol.MaxSlotsCPU}
	NumSlotsCUDA = Range{"num_slots on CUDA", 1, protocol.MaxSlotsCUDA}
	// NumBytes has two bits to spare, so that sums of sizes and offsets do not overflow.
	NumBytes = Range{"num_bytes", 0, 1 << 62}

	MaxTokens = Range{"num_max_tokens_per_rank", 1, protocol.MaxRows}
	NumTokens = Range{"num_tokens", 0, protocol.MaxRows}
	// Hidden is also a multiple of what DType.Multiple says.
	Hidden        = Range{"hidden", protocol.RowMultiple, protocol.MaxHidden}
	TopK          = Range{"num_topk", 1, protocol.MaxTopK}
	NumExperts    = Range{"num_experts", 1, maxExperts}
	LocalExperts  = Range{"num_experts per rank", 1, protocol.MaxLocalExperts}
	Selections    = Range{"num_tokens * num_topk", 0, maxSelections}
	ExtraRowBytes = Range{"extra_row_bytes", 0, protocol.MaxExtraBytes}
	// ExpertAlignment is of the rows of an expert in an expanded layout.
	ExpertAlignment = Range{"expert_alignment", 1, 1 << 16}
	// MaxSelections and MaxExperts are settings of a buffer on CUDA.
	MaxSelections = Range{"max_selections", 1, maxSelections}
	MaxExperts    = Range{"max_experts", 1, maxExperts}
)

// A rank's own choices.
var (
	VectorWidth = Range{"vector_width", -1, 64} // the choices among these: package cpu
	NumThreads  = Range{"num_threads", 0, 64}
	Prefetch    = Range{"prefetch", -1, 64}
	// SpinUs: a wait that polls for longer takes a processor from what it waits for.
	SpinUs        = Range{"spin_us", -1, 1_000_000}
	SlowAfterUs   = Range{"slow_after_us", -1, math.MaxInt64}
	DeviceOrdinal = Range{"device_ordinal", 0, 1 << 16}
	TimeoutUs     = Range{"timeout_us", -1, math.MaxInt64}
)

// Bounds that packages need as constants.
const (
	// Sizes of a ring of messages to a remote rank, which are powers of two. Half of the
	// smallest has room for a small message.
	MinRingBytes = 1 << 12
	MaxRingBytes = 1 << 34
	// MaxSockets of one connection over TCP.
	MaxSockets = 16

	maxExperts    = rankset.MaxRanks * protocol.MaxLocalExperts
	maxSelections = math.MaxInt32 // of one dispatch, T * K: its jobs are numbered in 31 bits
	maxPeers      = 1 << 16
)

// How ranks of several hosts reach one another; 0 stands for the default of each.
var (
	RingBytes = Range{"ring_bytes", MinRingBytes, MaxRingBytes}
	// UnresponsiveUs: below 20 ms, a busy machine looks dead.
	UnresponsiveUs = Range{"unresponsive_after_us", 20_000, 3_600_000_000}
)

// A fabric; 0 stands for the default of each. The carrier may set lower bounds.
var (
	NumPeers         = Range{"num_peers", 0, maxPeers}
	NumConnections   = Range{"num_connections", 0, maxPeers}
	NumTransfers     = Range{"num_transfers", 0, op.MaxSlots - 1} // the last number stands for windows
	NumRegions       = Range{"num_regions", 0, 1<<20 - 1}
	SendDepth        = Range{"send_depth", 0, 4096}
	RecvDepth        = Range{"recv_depth", 0, 4096}
	NumUnmatched     = Range{"num_unmatched", 0, op.MaxSlots / 2}
	NumSockets       = Range{"num_sockets", 0, MaxSockets}
	SliceBytes       = Range{"slice_bytes", 0, math.MaxInt64}
	ConnectTimeoutUs = Range{"connect_timeout_us", 0, math.MaxInt64}
)

// All is the whole table.
var All = []Range{
	NumRanks, NumSlots, NumSlotsCUDA, NumBytes,
	MaxTokens, NumTokens, Hidden, TopK, NumExperts, LocalExperts, Selections, ExtraRowBytes, ExpertAlignment, MaxSelections, MaxExperts,
	VectorWidth, NumThreads, Prefetch, SpinUs, SlowAfterUs, DeviceOrdinal, TimeoutUs,
	RingBytes, UnresponsiveUs,
	NumPeers, NumConnections, NumTransfers, NumRegions, SendDepth, RecvDepth, NumUnmatched, NumSockets, SliceBytes, ConnectTimeoutUs,
}
