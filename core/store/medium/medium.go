// Package medium is where the segments of a store lie: memory, or regular files. It moves bytes and
// says what failed; what they mean is the store's business.
package medium

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
)

// Bounds.
const (
	// MaxSegments is how many segments a medium has at most.
	MaxSegments = 1 << 16
	// LeastSegmentBytes and MostSegmentBytes bound the size of a segment.
	LeastSegmentBytes, MostSegmentBytes = 1 << 20, 256 << 20
	// LeastSegments is what reclaiming needs: one is written, one is full, one is being reclaimed, and one is spare.
	LeastSegments = 4
	// segmentsPerStore is how many segments a store is cut into, as far as their size may be chosen.
	segmentsPerStore = 64
)

// Sentinels.
var (
	// ErrInUse means that another process has the folder open.
	ErrInUse = errors.New("the store is in use by another process")
	// ErrForeign means that a folder has files that are no store's, or of another format version.
	ErrForeign = errors.New("no store of this version")
)

// Medium is where segments lie. Calls for different segments, and for different parts of one, may run at the
// same time.
type Medium interface {
	// SegmentBytes is the size of every segment, NumSegments how many there are.
	SegmentBytes() int64
	NumSegments() int
	// Lasts reports whether what was written is found again when the store is opened next.
	Lasts() bool
	// Bytes is a part of a segment, if it lies in memory of this process; else nil.
	Bytes(segment int, off, n int64) []byte
	// Write puts pieces one behind the other. With an error any part of them may have been written.
	Write(segment int, off int64, pieces ...[]byte) error
	// Read fills p. The error is io.ErrUnexpectedEOF if the segment was never written to that far.
	Read(segment int, off int64, p []byte) error
	// Sync returns once all that was written to a segment before is on the disk. With an error any part of what was written since it
	// was last well may be lost, also if the next call is well.
	Sync(segment int) error
	// Close releases everything. Idempotent.
	Close() error
}

// Shrunk is a Medium that may have more segments than its capacity has room for: those of a store that had a larger one.
type Shrunk interface {
	Medium
	// NumKept is how many segments the capacity has room for.
	NumKept() int
	// Anew reports whether a store was there that is given up: the capacity has room for less than LeastSegments of its segments.
	Anew() bool
	// GiveBack gives the room of segments back that nothing is written to any more.
	GiveBack(segments []int) error
}

// LacksRoom reports whether a call failed for want of room for a segment: on a disk, in a quota, in a file or in memory.
// Segments that have their room can be written to all the same.
func LacksRoom(err error) bool {
	return slices.ContainsFunc([]error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, syscall.ENOMEM}, func(want error) bool {
		return errors.Is(err, want)
	})
}

// SegmentBytesFor is the size of the segments of a store: capacity/64, a power of two, within the bounds.
// The error says how large a store has to be.
func SegmentBytesFor(capacityBytes int64) (int64, error) {
	if least := int64(LeastSegments * LeastSegmentBytes); capacityBytes < least {
		return 0, fmt.Errorf("capacity: %d bytes given; allowed: %d or more (%d segments of %d)",
			capacityBytes, least, LeastSegments, LeastSegmentBytes)
	}
	n := int64(LeastSegmentBytes)
	for n < MostSegmentBytes && 2*n <= capacityBytes/segmentsPerStore {
		n *= 2
	}
	if capacityBytes/n > MaxSegments {
		return 0, fmt.Errorf("capacity: %d bytes given; allowed: %d at most (%d segments of %d)",
			capacityBytes, int64(MaxSegments)*MostSegmentBytes, MaxSegments, int64(MostSegmentBytes))
	}
	return n, nil
}
