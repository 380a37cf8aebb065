package layout

import "github.com/moewire/moewire/core/ep/protocol"

// Control page of a rank: one cache line per polled word.
const (
	openOff     = 0
	yReadyOff   = openOff + protocol.MaxSlotsCPU*protocol.LineBytes
	waitsForOff = yReadyOff + protocol.MaxSlotsCPU*protocol.LineBytes
	beatOff     = waitsForOff + protocol.LineBytes
	sinceOff    = beatOff + protocol.LineBytes
	quiescedOff = sinceOff + protocol.LineBytes
	recordOff   = 3 * PageBytes
	// RecordBytes is the size of what a rank records of its operations
	// (core/telemetry has the words in it).
	RecordBytes = 52 * PageBytes
	// ControlBytes is the size of a rank's control region.
	ControlBytes = recordOff + RecordBytes
)

// The words must end before the record begins.
const _ = uint(recordOff - (quiescedOff + protocol.LineBytes))

// Open is the offset of open[j] in a control region.
func Open(slot int) int64 { return openOff + int64(slot)*protocol.LineBytes }

// YReady is the offset of y_ready[j].
func YReady(slot int) int64 { return yReadyOff + int64(slot)*protocol.LineBytes }

// WaitsFor is the offset of waits_for: one bit per rank waited for.
func WaitsFor() int64 { return waitsForOff }

// Beat is the offset of beat.
func Beat() int64 { return beatOff }

// Since is the offset of since: when the wait that waits_for shows began,
// in nanoseconds of a clock that all ranks of a host share.
func Since() int64 { return sinceOff }

// Quiesced is the offset of quiesced: one more than the last epoch in which this
// rank writes nothing more to any rank.
func Quiesced() int64 { return quiescedOff }

// Record is the offset of the area that a rank records its operations in.
func Record() int64 { return recordOff }
