package cpu

import (
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/ep/suspicion"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// ownSlab is one slab of this rank. It is poisoned while it has suspects. These are ranks
// that the slab was open to, that were taken out of the group before they had said that
// they were done, and that may still store into it.
type ownSlab struct {
	id       int
	seg      domain.Segment
	memory   domain.Retained // seg, converted once: a conversion is a search
	suspects []suspect

	// What these words of it must hold.
	rowOrder        uint64
	rowOrderMembers rankset.Set
}

// suspect is one incarnation of a rank in the epoch in which it was lost. Its
// control page is retained: another process may take its number over.
type suspect struct {
	peer  suspicion.Peer
	epoch membership.Epoch
}

// addSlabs gives every slot its memory, once there is memory for all, and opens it
// for its first operation. A slot with a slab counts as one in use, which is opened
// again for a later operation. So an attempt that fails gives no slot a slab.
func (b *Buffer) addSlabs(size int64) error {
	if err := b.reserveShadows(size); err != nil {
		return err
	}
	made := make([]*ownSlab, 0, len(b.slots))
	for range b.slots {
		own, err := b.spareOr(size)
		if err != nil {
			b.retired = append(b.retired, made...) // for the next attempt
			return err
		}
		made = append(made, own)
	}
	b.slabBytes = size
	for j := range b.slots {
		b.slots[j].own = made[j]
		b.openSlot(&b.slots[j], b.firstFor(j))
	}
	return nil
}

// firstFor returns the first operation of this epoch that slot j serves.
func (b *Buffer) firstFor(j int) uint64 {
	n := uint64(len(b.slots))
	return b.base + (uint64(j)+n-b.base%n)%n
}

func (b *Buffer) newSlab(size int64) (*ownSlab, error) {
	id, seg, err := b.dom.AddSlab(size)
	if err != nil {
		return nil, err
	}
	b.count.slabBytes += uint64(size)
	b.rec.slabs++
	return &ownSlab{id: id, seg: seg, memory: seg}, nil
}

// renew makes a slot's slab ready for its next operation. unfinished are the ranks
// without a final done: all of them are out.
func (b *Buffer) renew(s *slot, unfinished rankset.Set) error {
	if b.poison(s, unfinished); len(s.own.suspects) == 0 {
		b.clean(s, unfinished.Empty())
		return nil
	}
	s.a = s.a.Minus(unfinished) // poison them once, even if there is no memory now and this runs again
	return b.replaceSlab(s)
}

// poison makes suspects of those unfinished ranks that may still write into the slab.
func (b *Buffer) poison(s *slot, unfinished rankset.Set) {
	for r := range unfinished.All() {
		p := &b.peers[r]
		if p.Proc != nil && !p.IsQuiesced(b.epoch) {
			p.Control.Retain()
			s.own.suspects = append(s.own.suspects, suspect{*p, b.epoch})
		}
	}
}

// replaceSlab takes a slab out of use until its suspects are quiesced, and gives
// the slot a spare or fresh memory instead.
func (b *Buffer) replaceSlab(s *slot) error {
	own, err := b.spareOr(b.slabBytes)
	if err != nil {
		return err // the slot stays closed, its slab poisoned
	}
	b.retired = append(b.retired, s.own)
	s.own = own
	return nil
}

// spareOr returns a spare slab of at least so many bytes, or a fresh one.
func (b *Buffer) spareOr(size int64) (*ownSlab, error) {
	if own := b.takeSpare(size); own != nil {
		return own, nil
	}
	return b.newSlab(size)
}

// takeSpare returns a retired slab of at least so many bytes if all of its suspects are
// quiesced by now.
func (b *Buffer) takeSpare(size int64) *ownSlab {
	for i, own := range b.retired {
		if own.seg.SizeBytes() < size || !own.harmless() {
			continue
		}
		b.retired = append(b.retired[:i], b.retired[i+1:]...)
		own.acquit()
		for l := range protocol.MaxLocalExperts {
			own.seg.Word(layout.Counter(l)).Store(0)
		}
		own.reset()
		return own
	}
	return nil
}

// reset makes the words of all ranks say "never", in a slab that no rank writes to.
func (own *ownSlab) reset() {
	own.rowOrder, own.rowOrderMembers = 0, rankset.Set{}
	for off := int64(0); off < layout.Counter(0); off += 8 {
		protocol.Ensure(own.seg.Word(off), 0)
	}
}

func (own *ownSlab) harmless() bool {
	for i := range own.suspects {
		if s := &own.suspects[i]; !s.peer.IsQuiesced(s.epoch) {
			return false
		}
	}
	return true
}

func (own *ownSlab) acquit() {
	for i := range own.suspects {
		own.suspects[i].peer.Control.Release()
	}
	own.suspects = nil
}

// acquitAll releases the suspects' control pages, when the buffer is closed.
func (b *Buffer) acquitAll() {
	for j := range b.slots {
		if own := b.slots[j].own; own != nil {
			own.acquit()
		}
	}
	for _, own := range b.retired {
		own.acquit()
	}
}
