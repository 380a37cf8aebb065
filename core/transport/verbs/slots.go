package verbs

import (
	"sync/atomic"

	"github.com/moewire/moewire/core/transport"
)

// Bits of the number that a work request bears on the device.
const (
	slotBits     = 16
	endpointBits = 16
	keyBits      = 64 - 1 - slotBits - endpointBits
)

// tag is that number: which endpoint, which of its sides and slots, and a key
// that differs from one use of the slot to the next.
type tag uint64

func newTag(endpoint int, recv bool, slot int, key uint32) tag {
	t := tag(key)<<(1+slotBits+endpointBits) | tag(endpoint)<<(1+slotBits) | tag(slot)<<1
	if recv {
		t |= 1
	}
	return t
}

func (t tag) recv() bool    { return t&1 != 0 }
func (t tag) slot() int     { return int(t >> 1 & (1<<slotBits - 1)) }
func (t tag) endpoint() int { return int(t >> (1 + slotBits) & (1<<endpointBits - 1)) }
func (t tag) key() uint32   { return uint32(t >> (1 + slotBits + endpointBits)) }

func nextKey(key uint32) uint32 { return (key + 1) & (1<<keyBits - 1) }

// slot is one work request that is outstanding.
type slot struct {
	id      uint64
	bytes   uint32
	key     uint32
	op      transport.Opcode
	regions []*region // as many as pieces; room for NumPieces
}

// slots are those of one side of one endpoint. The poster, under the side's
// lock, takes; the poller, one at a time, frees. Free slots go round in a
// ring, so that neither waits for the other.
type slots struct {
	all   []slot
	ring  []uint16
	taken atomic.Uint64 // taken since the beginning; the poster writes it
	freed atomic.Uint64 // freed since the beginning; the poller writes it
}

func newSlots(depth, numPieces int, firstKey uint32) *slots {
	s := &slots{all: make([]slot, depth), ring: make([]uint16, depth)}
	regions := make([]*region, depth*numPieces)
	for i := range s.all {
		s.all[i].key = firstKey
		s.all[i].regions = regions[i*numPieces : i*numPieces : (i+1)*numPieces]
		s.ring[i] = uint16(i)
	}
	return s
}

// outstanding is the number of slots that are taken.
func (s *slots) outstanding() int { return int(s.taken.Load() - s.freed.Load()) }

// room is the number of slots that can be taken.
func (s *slots) room() int { return len(s.all) - s.outstanding() }

// at is the slot that the n-th take from now would take. Filled in first, then
// taken: the poller may see its completion at once.
func (s *slots) at(n int) (index int, free *slot) {
	i := s.ring[(s.taken.Load()+uint64(n))%uint64(len(s.ring))]
	return int(i), &s.all[i]
}

// take takes n slots.
func (s *slots) take(n int) { s.taken.Add(uint64(n)) }

// untake returns the n slots taken last; the device never saw their work requests.
func (s *slots) untake(n int) {
	for i := range n {
		_, back := s.at(-1 - i)
		back.release()
	}
	s.taken.Add(-uint64(n))
}

// find is the slot that a completion belongs to, nil if it is of none.
func (s *slots) find(t tag) *slot {
	if s.outstanding() == 0 || t.slot() >= len(s.all) { // the load orders what follows
		return nil
	}
	if found := &s.all[t.slot()]; found.key == t.key() {
		return found
	}
	return nil
}

// free frees a slot that find gave.
func (s *slots) free(index int) {
	s.all[index].key = nextKey(s.all[index].key)
	s.all[index].release()
	n := s.freed.Load()
	s.ring[n%uint64(len(s.ring))] = uint16(index)
	s.freed.Store(n + 1)
}

// release unpins the regions that the slot's request names.
func (s *slot) release() {
	for i, r := range s.regions {
		r.unpin()
		s.regions[i] = nil
	}
	s.regions = s.regions[:0]
}
