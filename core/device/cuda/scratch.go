package cuda

import (
	"unsafe"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
)

// scratch is where everything of a rank's private memory lies, in bytes.
type scratch struct {
	bases, use  int64
	slots       int64 // of slot 0
	slotBytes   int64
	experts     int64 // uint64 [L]: rows of all dispatches
	count, base int64 // in a slot's part
	rows, index int64
	where, kept int64
	received    int64 // int32 [L]
	ranges      int64 // int64 [L, R]
	bytes       int64
}

func scratchOf(c *Config) (s scratch) {
	take := func(at *int64, n int64) int64 {
		off := *at
		*at = (off + n + 127) &^ 127
		return off
	}
	at := int64(unsafe.Sizeof(state{}))
	s.bases = take(&at, rankset.MaxRanks*8)
	s.use = take(&at, 8*protocol.MaxSlotsCUDA)
	s.slots = at
	in := int64(0)
	s.count = take(&in, 4*int64(c.MaxExperts))
	s.base = take(&in, 4*int64(c.MaxExperts))
	s.rows = take(&in, 4*int64(c.MaxExperts))
	s.index = take(&in, 4*int64(c.MaxSelections))
	s.where = take(&in, 8*int64(c.MaxSelections))
	s.kept = take(&in, 4*int64(c.MaxSelections))
	s.received = take(&in, 4*int64(c.MaxExperts))
	s.ranges = take(&in, 8*int64(c.MaxExperts))
	s.slotBytes = in
	at += in * int64(c.NumSlots)
	s.experts = take(&at, 8*int64(c.localExperts()))
	s.bytes = at
	return s
}
