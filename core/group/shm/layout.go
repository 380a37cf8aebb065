package shm

import (
	"github.com/moewire/moewire/core/internal/sys"
)

// Offsets and sizes in a rank's memfd, in bytes.
const (
	bellOffset     = 0
	sleepersOffset = 128
	holderOffset   = 256 // the watcher's thread id and its robust list: sys.RobustBytes
	tableOffset    = 4096
	entryBytes     = 16 // offset, bytes
	entrySize      = 8  // of the bytes word inside an entry
	tableEnd       = tableOffset + MaxSlabs*entryBytes
	slabAlignment  = 2 << 20
)

// MaxSlabs is how many slabs one rank can add in the life of a domain.
const MaxSlabs = 1024

// maxSegmentBytes bounds every size that comes from outside, far below
// where sums of two could overflow.
const maxSegmentBytes = 1 << 46

// alignUp rounds n up to a multiple of align, a power of two.
func alignUp(n, align int64) int64 { return (n + align - 1) &^ (align - 1) }

// headerBytes is where the control region starts.
func headerBytes() int64 { return alignUp(tableEnd, int64(sys.PageSize())) }

// baseBytes is the size of header and control region together.
func baseBytes(controlBytes int64) int64 {
	return headerBytes() + alignUp(controlBytes, int64(sys.PageSize()))
}

// firstSlab is where the first slab may start.
func firstSlab(controlBytes int64) int64 { return alignUp(baseBytes(controlBytes), slabAlignment) }
