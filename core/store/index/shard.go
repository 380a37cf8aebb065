package index

import (
	"encoding/binary"

	"github.com/moewire/moewire/core/store/record"
)

const (
	blockBytes = 56
	// A table is at most three quarters full, and has at least this many places.
	leastPlaces = 16
	// Blocks grow by a part of what there are, so that no more than that is room for later ones.
	leastRoom, roomShare = 16, 8
)

// start is where the search for a hash begins. The hash is uniform, so a part of it will do.
func (s *shard) start(h *record.Hash) int {
	return int(binary.LittleEndian.Uint64(h[:]) % uint64(len(s.table)))
}

// find is a block's place, or -1.
func (s *shard) find(h *record.Hash) int {
	if len(s.table) == 0 {
		return -1
	}
	for at := s.start(h); s.table[at] != 0; at = s.next(at) {
		if i := int(s.table[at] - 1); s.blocks[i].Hash == *h {
			return i
		}
	}
	return -1
}

func (s *shard) next(at int) int {
	if at++; at == len(s.table) {
		return 0
	}
	return at
}

func (s *shard) add(b Block) {
	if 4*(len(s.blocks)+1) > 3*len(s.table) {
		s.rehash(max(leastPlaces, len(s.table)+len(s.table)/2))
	}
	if len(s.blocks) == cap(s.blocks) {
		grown := make([]Block, len(s.blocks), len(s.blocks)+max(leastRoom, len(s.blocks)/roomShare))
		copy(grown, s.blocks)
		s.blocks = grown
	}
	s.blocks = append(s.blocks, b)
	s.insert(&b.Hash, len(s.blocks)-1)
}

func (s *shard) insert(h *record.Hash, block int) {
	at := s.start(h)
	for s.table[at] != 0 {
		at = s.next(at)
	}
	s.table[at] = uint32(block + 1)
}

func (s *shard) rehash(places int) {
	s.table = make([]uint32, places)
	for i := range s.blocks {
		s.insert(&s.blocks[i].Hash, i)
	}
}

// place is where the table has a block that is there.
func (s *shard) place(block int) int {
	at := s.start(&s.blocks[block].Hash)
	for s.table[at] != uint32(block+1) {
		at = s.next(at)
	}
	return at
}

// remove takes a block out, and puts the last one into its place.
func (s *shard) remove(block int) {
	s.vacate(s.place(block))
	last := len(s.blocks) - 1
	if block != last {
		s.table[s.place(last)] = uint32(block + 1)
		s.blocks[block] = s.blocks[last]
	}
	s.blocks[last] = Block{}
	s.blocks = s.blocks[:last]
}

// vacate empties a place of the table: those behind it move up as far as they may, so that no search
// ends too early.
func (s *shard) vacate(hole int) {
	for at := s.next(hole); s.table[at] != 0; at = s.next(at) {
		want := s.start(&s.blocks[s.table[at]-1].Hash)
		if s.distance(want, at) >= s.distance(hole, at) {
			s.table[hole] = s.table[at]
			hole = at
		}
	}
	s.table[hole] = 0
}

// distance is how many steps lead from one place to another.
func (s *shard) distance(from, to int) int {
	if to < from {
		to += len(s.table)
	}
	return to - from
}
