package cpu

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
)

// Remote ranks are those whose memory cannot be mapped. The receiver of a message
// does in its own memory what the sender would have done there: it reserves places,
// fans rows out, stores params, arrive and done. In the other direction, a private
// slab stands for the remote owner's: its shadow slab, in which our rows have the
// first positions of every expert. The outputs that come back are stored there. So
// steps, waits and row orders know nothing of remote ranks.

// remote is what a buffer needs for remote ranks; nil if there are none. Guarded by
// Buffer.mu.
type remote struct {
	carrier domain.Remote
	ranks   rankset.Set
	longest int64 // bytes of a message

	leases []lease // by rank: messages that are being filled
	lists  []byte  // copy of a piece's head and lists: its sender can write to the message
	jobs   []device.PlaceJob
	cursor []int32 // of the piece that was checked, and its last token
	last   int32
	target [1]device.Target
	one    [1]int32    // the only count of rows that are sums
	short  error       // of the latest look: no memory for a message, which is still first in line
	wild   []violation // of this epoch: what no rank sends, the first such message of each rank
}

// remoteSlot is what a slot keeps for one remote rank.
type remoteSlot struct {
	shadow   domain.Segment // as source: stands for its slab
	lastSent controlWords   // what it knows of us
	rows     outRows        // as source: how far our rows are
	in       inRows         // as owner: its rows
	outs     outputs        // as owner: the outputs that it has
	back     outputs        // as source: the outputs that came
}

// connectRemote finds the ranks that are remote now, after a rendezvous.
func (b *Buffer) connectRemote() {
	carrier := b.dom.Remote()
	if carrier == nil {
		b.remote = nil
		return
	}
	if b.remote == nil {
		b.remote = &remote{leases: make([]lease, b.ranks)}
	}
	b.remote.wild = b.remote.wild[:0]
	b.remote.carrier, b.remote.ranks, b.remote.longest = carrier, carrier.Ranks(), carrier.MaxMessageBytes()
	for j := range b.slots {
		s := &b.slots[j]
		if s.remote == nil {
			s.remote = make([]remoteSlot, b.ranks)
		}
		for r := range s.remote {
			s.remote[r].forget()
		}
	}
}

// forget makes the slot's state that of a rank which knows nothing.
func (f *remoteSlot) forget() {
	f.lastSent, f.rows, f.outs, f.back = controlWords{}, outRows{}, outputs{}, outputs{}
	f.in.op, f.in.reorderBytes = 0, 0
}

func (b *Buffer) isRemote(r int) bool { return b.remote != nil && b.remote.ranks.Has(r) }

// remoteOf returns those of the ranks that are remote.
func (b *Buffer) remoteOf(ranks rankset.Set) rankset.Set {
	if b.remote == nil {
		return rankset.Set{}
	}
	return ranks.And(b.remote.ranks)
}

// slabOf is the slab that owner r has opened in slot j, or its shadow slab. nil: there is no
// such slab, which is a violation.
func (b *Buffer) slabOf(r, j int, id int) (domain.Segment, error) {
	if !b.isRemote(r) {
		return b.localSlab(r, j, id)
	}
	f := &b.slots[j].remote[r]
	if err := b.reserveShadow(f, r, b.slabBytes); err != nil {
		return nil, err // settleRemote of a buffer that has no size yet
	}
	return f.shadow, nil
}

// reserveShadows makes the shadow slabs of all slots for slabs of so many bytes. They
// are only address space until outputs come back. They are made now because a later
// call that could not make them could only end the buffer.
func (b *Buffer) reserveShadows(sizeBytes int64) error {
	for j := range b.slots {
		for r := range b.remoteOf(rankset.Upto(rankset.MaxRanks)).All() {
			if err := b.reserveShadow(&b.slots[j].remote[r], r, sizeBytes); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *Buffer) reserveShadow(f *remoteSlot, r int, sizeBytes int64) error {
	if f.shadow != nil && f.shadow.SizeBytes() >= sizeBytes {
		return nil
	}
	shadow, err := b.remote.carrier.Memory(max(sizeBytes, layout.RegionBytes))
	if err != nil {
		return fmt.Errorf("the outputs of rank %d: %w", r, err)
	}
	if f.shadow != nil {
		f.shadow.Release()
	}
	f.shadow = shadow
	return nil
}

// releaseRemote gives shadow slabs and reorder buffers back, when the buffer is closed.
func (b *Buffer) releaseRemote() {
	for j := range b.slots {
		for r := range b.slots[j].remote {
			f := &b.slots[j].remote[r]
			for _, seg := range []domain.Segment{f.shadow, f.in.reorder} {
				if seg != nil {
					seg.Release()
				}
			}
			f.shadow, f.in.reorder = nil, nil
		}
	}
}

// checkRemote: the smallest piece of rows or outputs must fit in a message.
func (b *Buffer) checkRemote(slab *layout.Slab, a *ep.DispatchArgs) error {
	k := 0
	if a.PreReduce {
		k = min(max(a.TopK, 0), protocol.MaxTopK)
	}
	if b.remote == nil || (rowsFor(slab, int64(k), b.remote.longest) > 0 && outputsFor(slab, b.remote.longest) > 0) {
		return nil
	}
	if a.PreReduce {
		return ep.Invalid("hidden %d with num_experts %d and pre_reduce of %d selections: no row fits in the %d bytes of a message to another host",
			slab.Hidden, slab.NumExperts, k, b.remote.longest)
	}
	return ep.Invalid("hidden %d with num_experts %d and %d bytes of columns: no row fits in the %d bytes of a message to another host",
		slab.Hidden, slab.NumExperts, slab.ColumnBytes(), b.remote.longest)
}

// outWithLast returns the ranks that are out. It takes what they had sent before first.
func (b *Buffer) outWithLast() rankset.Set {
	out := b.out()
	if !b.remoteOf(out).Empty() && !out.Has(b.self) {
		b.receive()
	}
	return out
}

// receive takes every message that has arrived, and reports whether there was one.
func (b *Buffer) receive() (some bool) {
	b.fenceWildSenders()
	b.remote.short = nil // the message that was first in line still is
	for r := range b.remote.ranks.All() {
		for msg := b.remote.carrier.Next(r); msg != nil; msg = b.remote.carrier.Next(r) {
			if !b.takeMessage(r, msg) {
				if b.remote.short != nil {
					break // it waits until there is memory
				}
				b.refuse(r, msg)
			}
			b.remote.carrier.Release(r)
			some = true
		}
	}
	return b.placeReordered() || some
}

// refuse counts a message that was not taken. A member that sends what no member of this epoch
// sends has a violation: what it had to say is lost, and others would wait for that.
func (b *Buffer) refuse(r int, msg []byte) {
	b.count.dropped++
	h, ok := readHead(msg)
	known := slices.ContainsFunc(b.remote.wild, func(v violation) bool { return v.owner == r })
	if known || !b.isMember() || !b.isMemberRank(r) || (ok && h.epoch != uint16(b.epoch)) {
		return
	}
	v := violation{owner: r, word: "a message", allowed: "one that fits its tables and those before it"}
	if ok {
		v.held = binary.LittleEndian.Uint64(msg)
	}
	b.remote.wild = append(b.remote.wild, v)
	b.violates(v)
}

// fenceWildSenders goes on where other hosts have to agree.
func (b *Buffer) fenceWildSenders() {
	for _, v := range b.remote.wild {
		if b.isMember() && b.isMemberRank(v.owner) {
			b.violates(v)
		}
	}
}

// takeMessage does what a message says; false: no member of this epoch has sent this message.
func (b *Buffer) takeMessage(r int, msg []byte) bool {
	h, ok := readHead(msg)
	if !ok || h.epoch != uint16(b.epoch) || h.rank != r || h.slot >= len(b.slots) {
		return false
	}
	s := &b.slots[h.slot]
	switch h.kind {
	case protocol.MessageControlWords:
		return b.takeControlWords(s, r, msg)
	case protocol.MessageRows:
		return b.takeRows(s, r, h.op, msg)
	case protocol.MessageOutputs:
		return b.takeOutputs(s, r, h.op, msg)
	}
	return false
}
