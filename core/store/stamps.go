package store

import "github.com/moewire/moewire/core/store/record"

const (
	// chainRoom is how far apart two uses are in stamps: the blocks that follow one in its chain are stamped in between.
	chainRoom = 1 << 12
	// chainUses is how many uses ago a block may have been used for one that follows it to count as used together with it.
	chainUses = 64
)

// stampChain stamps a chain that is used: the head gets the stamp that is returned, each other block one less.
func (s *Store) stampChain(numKeys int) uint64 { return s.stamps.Add(uint64(numKeys) + chainRoom) }

// stampBehind stamps a block that is written: right below its parent, so that tails are older than heads, unless that is gone
// or was not used for long.
func (s *Store) stampBehind(parent record.Hash) uint64 {
	if parent != (record.Hash{}) {
		if b, found := s.index.Get(parent); found && s.stamps.Load()-b.Stamp < chainUses*chainRoom {
			return b.Stamp - 1
		}
	}
	return s.stampChain(0)
}
