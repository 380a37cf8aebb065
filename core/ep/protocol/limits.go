package protocol

import (
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// Limits.
//
//mw:kernels
const (
	MaxRanks      = rankset.MaxRanks      // of a group
	EpochShift    = membership.EpochShift // of the member word: its epoch is above, a bit per rank below
	MaxTopK       = 64                    // selections per token, K
	NumExtras     = 4                     // extra columns of flat rows
	NumBiases     = 2                     // rows that can be added to each sum of a gather
	MaxSlotsCUDA  = 8                     // each message between devices says which of all slots its sender holds, and kernels look at all
	OpenRing      = 2 * MaxSlotsCUDA      // words of open that a device keeps: more operations than can be under way
	LineBytes     = 64                    // a cache line: words that different ranks write share none
	QuantBlock    = 128                   // values that share one fp8 scale
	ScalesPerWord = 4                     // UE8M0 scales in one word
)

// Limits of the host alone.
const (
	// MaxSlotsCPU is larger than MaxSlotsCUDA, because a slot that is not in use costs two cache
	// lines of the control page and nothing else.
	MaxSlotsCPU = 64
	// MaxLocalExperts per rank: the counters of a slab begin at a fixed offset.
	MaxLocalExperts = 8192
	// MaxExtraBytes per row of one extra column: a width is a number of 16 bits.
	MaxExtraBytes = 1<<ExtraBits - 1
	// MaxHidden, MaxRows: offsets within a row and row numbers travel in 32 bits.
	MaxHidden = 1 << 30
	MaxRows   = 1<<31 - 1
	// RowMultiple is what H is a multiple of: kernels move 16 bytes at a time.
	RowMultiple = 8
	// MaxRecords is how many ended operations a rank remembers. Other processes read records
	// by their place.
	MaxRecords = 1024
)
