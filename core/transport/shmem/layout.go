package shmem

import "github.com/moewire/moewire/core/internal/sys"

// Bounds of this carrier.
const (
	MaxEndpoints    = 1024    // endpoints of a transport that are not closed
	MaxDepth        = 1024    // of either side of an endpoint
	MaxPieces       = 7       // of a request
	MaxInlineBytes  = 256     // of a request, inline
	MaxRequestBytes = 1 << 30 // of a request
	MaxRegions      = 4096    // of a transport, that peers may reach
	MaxMemories     = 512     // of a transport, of which regions are registered
	MaxMemoryBytes  = 1 << 40 // of one memory
	maxOffers       = 4       // connections that wait for their endpoint's Connect
	maxPending      = 64      // connections that have not named the endpoint that they want
)

// Three kinds of shared memory, each a memfd of its own. All words have 64 bits; a word
// alone on a cache line is one that the other side waits for or counts. Offsets in bytes.

// A lane belongs to one endpoint, which writes it; the peer reads.
const (
	laneMagicOff    = 0
	laneWindowOff   = 8 // receives that the ring below has room for, a power of two
	laneStateOff    = 64
	laneTouchingOff = 128 // what of the peer's this side is copying to or from: 0, a key, or touchingReceive
	laneStarvedOff  = 192 // 1: waits for a receive of the peer
	lanePostedOff   = 256 // receives posted so far
	laneEndedOff    = 320 // receives of the peer that this side has ended so far
	laneEndsOff     = 4096
	laneReceivesOff = laneEndsOff + MaxDepth*endBytes
	laneBytes       = laneReceivesOff + MaxDepth*receiveBytes

	endBytes     = 16  // op | status<<8 | imm<<32, bytes
	receiveBytes = 256 // number of pieces, then memory, offset, bytes of each
	pieceBytes   = 24
	laneMagic    = 0x3165_6e61_6c77_6d00 // "\0mwlane1"

	touchingReceive = 1 // no key is 1
)

// A table belongs to one transport, which writes it; its peers read.
const (
	tableMagicOff    = 0
	tableVersionOff  = 64  // counts memories that are not there any more
	tableHolderOff   = 128 // a futex of the process; the kernel marks its end here
	tableMemoriesOff = 4096
	tableRegionsOff  = tableMemoriesOff + 8*MaxMemories
	tableBytes       = tableRegionsOff + MaxRegions*regionBytes

	regionBytes     = 64 // the words of a region
	regionKeyOff    = 0
	regionMemoryOff = 8
	regionOff       = 16 // in the memory
	regionSizeOff   = 24
	regionAccessOff = 32
	tableMagic      = 0x3165_6c62_6174_776d // "mwtable1"
)

// A bell belongs to one transport, which sleeps on it; all its peers write.
const (
	bellCountOff    = 0  // of rings that found a goroutine asleep; the futex
	bellSleepersOff = 64 // 1: a goroutine sleeps
	bellNewsOff     = 128
	bellBytes       = bellNewsOff + MaxEndpoints/8 // one bit per endpoint that has news
	numNewsWords    = MaxEndpoints / 64
)

// shared is memory of a fixed layout with its descriptor, which is needed
// until every peer has it.
type shared struct {
	*sys.Mapping
	fd *sys.FD
}

func newShared(name string, sizeBytes int64) (*shared, error) {
	fd, err := sys.NewMemfd(name)
	if err != nil {
		return nil, err
	}
	if err = sys.Grow(fd, sizeBytes); err == nil {
		var m *sys.Mapping
		if m, err = sys.Map(fd, 0, sizeBytes); err == nil {
			return &shared{m, fd}, nil
		}
	}
	_ = fd.Close()
	return nil, err
}

// close gives up the descriptor and the mapping. Idempotent.
func (s *shared) close() error {
	if s == nil {
		return nil
	}
	_ = s.fd.Close()
	return s.Unmap()
}
