package telemetry

import (
	"sync/atomic"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
)

// Sizes. An area holds what the largest group needs.
const (
	MaxExperts = protocol.MaxLocalExperts // per rank
	// Capacity is the number of operations that the ring remembers.
	Capacity = protocol.MaxRecords
	// RecordBytes is the size of one record.
	RecordBytes = 128
	// NumBuckets of a histogram: bucket i counts durations below 2^i ns and
	// not below 2^(i-1); the last one also what is longer.
	NumBuckets = 48

	expertsOff = 8 << 10
	ringOff    = expertsOff + MaxExperts*8
	linksOff   = ringOff + Capacity*RecordBytes
	// AreaBytes is the size of the whole area.
	AreaBytes = linksOff + rankset.MaxRanks*LinkBytes
)

// Magic begins an area: a process that only has the file finds it by this.
const Magic = 0x314c45545f57454d // "MEW_TEL1" in memory order

const formatVersion = 3

// Words of the header. Those in pairs hold the first in the lower 32 bits.
const (
	wordMagic      = iota
	wordFormat     // format version, flags
	wordPlace      // rank, number of ranks
	wordProcess    // process id in its own namespace, slots
	wordGroup      // names the group on this host
	wordExperts    // experts per rank in the latest dispatch, 0
	wordRing       // bytes of a record, records
	wordOffsets    // of the ring and of the experts, in this area
	wordControl    // of this area and of waits_for, in the control region
	wordBeat       // of beat in the control region, number of buckets
	wordNext       // records written so far
	wordEvents     // events recorded so far
	wordCurrent    // operation in flight: kind, and 8 bits higher its number; 0: none
	wordSince      // when it began, ns
	wordSlabs      // slabs made
	wordSlabSize   // their bytes
	wordPresent    // bytes made present ahead of use
	wordEpoch      // that this rank is in
	wordClosed     // 1: the buffer takes no more calls
	wordLinks      // offset and bytes of what is seen of remote ranks, one row each
	wordWall       // wall clock less CLOCK_MONOTONIC, ns; 0: not known
	wordLeft       // epoch that this rank has left by itself, plus one; 0: none
	wordViolations // words found that no rank can have stored
)

// flagRecording says that operations are recorded.
const flagRecording = 1

// Words of the totals of one kind of operation.
const (
	totalDone = iota
	totalFailed
	totalCancelled
	totalTime
	totalSend
	totalWait
	totalWork
	totalBytes
	totalRowsOut // sent, or pulled by a combine
	totalRowsIn  // received
	totalTokens
	totalMax
	numTotals = 16
)

// Where the parts lie, in words of the area.
const (
	kindsAt      = 32
	timeAt       = numTotals // in a kind's words
	waitAt       = timeAt + NumBuckets
	waitForAt    = waitAt + NumBuckets
	lastAt       = waitForAt + rankset.MaxRanks
	kindWords    = lastAt + rankset.MaxRanks
	rowsToAt     = kindsAt + numKinds*kindWords
	rowsFromAt   = rowsToAt + rankset.MaxRanks
	summaryWords = rowsFromAt + rankset.MaxRanks
)

// The summary must end before the experts begin.
const _ = uint(expertsOff - summaryWords*8)

// Memory is where an area lies.
type Memory interface {
	Word(off int64) *atomic.Uint64
}

// Area is one rank's area, this rank's or a peer's.
type Area struct {
	mem  Memory
	base int64
}

// At returns the area at offset base of a segment.
func At(mem Memory, base int64) Area { return Area{mem, base} }

func (a Area) word(i int) *atomic.Uint64 { return a.mem.Word(a.base + int64(i)*8) }

func (a Area) load(i int) uint64 { return a.word(i).Load() }

// add is for the one writer: no other code stores this word. A store costs as much as
// ten loads, so add leaves out a store that would change nothing.
func (a Area) add(i int, n uint64) {
	if n != 0 {
		w := a.word(i)
		w.Store(w.Load() + n)
	}
}

// set is for the one writer as well.
func (a Area) set(i int, v uint64) {
	if w := a.word(i); w.Load() != v {
		w.Store(v)
	}
}

func (a Area) expert(l int) *atomic.Uint64 { return a.mem.Word(a.base + expertsOff + int64(l)*8) }

func (a Area) loads(i, n int) []uint64 {
	out := make([]uint64, n)
	for j := range out {
		out[j] = a.load(i + j)
	}
	return out
}

func pair(low, high int) uint64 { return uint64(uint32(low)) | uint64(uint32(high))<<32 }

func unpair(v uint64) (low, high int) { return int(uint32(v)), int(v >> 32) }
