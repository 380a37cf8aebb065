package ep

import (
	"fmt"
	"math/bits"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/transport"
)

// Far ranks are those whose memory cannot be mapped. Whoever receives a message
// from one does in its own memory what the sender would have done there: it
// reserves places, fans rows out, stores params, arrive and done. The other way
// round, a far owner's slab is a private one, its mirror, in which our rows
// have the first positions of every expert; the outputs that come back are
// stored there. So steps, waits and orders know nothing of far ranks.

// far is what a buffer needs for them; nil if there are none. Guarded by
// Buffer.mu.
type far struct {
	carrier transport.Far
	ranks   uint64
	longest int64 // bytes of a message

	lent   []lent // by rank: messages that are being filled
	lists  []byte // copy of a piece's head and lists: its sender can write to the message
	jobs   []device.PlaceJob
	cursor []int32 // of the piece that was plotted, and its last token
	last   int32
	target [1]device.Target
	one    [1]int32 // the only count of rows that are sums
	short  error    // of the latest look: no memory for a message, which is still in front
}

// farSlot is what a slot keeps for one far rank.
type farSlot struct {
	mirror transport.Segment // as source: stands for its slab
	told   words             // what it knows of us
	rows   outRows           // as source: how far our rows are
	in     inRows            // as owner: its rows
	outs   outputs           // as owner: the outputs that it has
	back   outputs           // as source: the outputs that came
}

// connectFar looks who is far now, after a meeting.
func (b *Buffer) connectFar() {
	carrier := b.dom.Far()
	if carrier == nil {
		b.far = nil
		return
	}
	if b.far == nil {
		b.far = &far{lent: make([]lent, b.ranks)}
	}
	b.far.carrier, b.far.ranks, b.far.longest = carrier, carrier.Ranks(), carrier.MaxMessageBytes()
	for j := range b.slots {
		s := &b.slots[j]
		if s.far == nil {
			s.far = make([]farSlot, b.ranks)
		}
		for r := range s.far {
			s.far[r].forget()
		}
	}
}

// forget makes the slot's state that of a rank which knows nothing.
func (f *farSlot) forget() {
	f.told, f.rows, f.outs, f.back = words{}, outRows{}, outputs{}, outputs{}
	f.in.op, f.in.stashed = 0, 0
}

func (b *Buffer) isFar(r int) bool { return b.far != nil && b.far.ranks>>r&1 == 1 }

// farOf returns those of the ranks that are far.
func (b *Buffer) farOf(ranks uint64) uint64 {
	if b.far == nil {
		return 0
	}
	return ranks & b.far.ranks
}

// slabOf is the slab that owner r has opened in slot j, or its mirror. nil: there is no
// such slab, which is a violation.
func (b *Buffer) slabOf(r, j int, id int) (transport.Segment, error) {
	if !b.isFar(r) {
		return b.nearSlab(r, j, id)
	}
	f := &b.slots[j].far[r]
	if err := b.reserveMirror(f, r, b.slabBytes); err != nil {
		return nil, err // settleFar of a buffer that has no size yet
	}
	return f.mirror, nil
}

// reserveMirrors makes the mirrors of all slots for slabs of so many bytes: they
// are address space until rows come back, and a call that finds none to be had
// could only end the buffer.
func (b *Buffer) reserveMirrors(sizeBytes int64) error {
	for j := range b.slots {
		for rest := b.farOf(^uint64(0)); rest != 0; rest &= rest - 1 {
			r := bits.TrailingZeros64(rest)
			if err := b.reserveMirror(&b.slots[j].far[r], r, sizeBytes); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *Buffer) reserveMirror(f *farSlot, r int, sizeBytes int64) error {
	if f.mirror != nil && f.mirror.SizeBytes() >= sizeBytes {
		return nil
	}
	mirror, err := b.far.carrier.Memory(max(sizeBytes, layout.RegionBytes))
	if err != nil {
		return fmt.Errorf("the outputs of rank %d: %w", r, err)
	}
	if f.mirror != nil {
		f.mirror.Release()
	}
	f.mirror = mirror
	return nil
}

// releaseFar gives mirrors and stashes back, when the buffer is closed.
func (b *Buffer) releaseFar() {
	for j := range b.slots {
		for r := range b.slots[j].far {
			f := &b.slots[j].far[r]
			for _, seg := range []transport.Segment{f.mirror, f.in.stash} {
				if seg != nil {
					seg.Release()
				}
			}
			f.mirror, f.in.stash = nil, nil
		}
	}
}

// checkFar: the smallest piece of rows or outputs must fit in a message.
func (b *Buffer) checkFar(slab *layout.Slab, a *DispatchArgs) error {
	k := 0
	if a.PreReduce {
		k = min(max(a.TopK, 0), layout.MaxTopK)
	}
	if b.far == nil || (rowsFor(slab, int64(k), b.far.longest) > 0 && outputsFor(slab, b.far.longest) > 0) {
		return nil
	}
	if a.PreReduce {
		return invalid("hidden %d with num_experts %d and pre_reduce of %d selections: no row fits in the %d bytes of a message to another host",
			slab.Hidden, slab.NumExperts, k, b.far.longest)
	}
	return invalid("hidden %d with num_experts %d and %d bytes of columns: no row fits in the %d bytes of a message to another host",
		slab.Hidden, slab.NumExperts, slab.ColumnBytes(), b.far.longest)
}

// outWithLast returns who is out. What they had sent before comes first.
func (b *Buffer) outWithLast() uint64 {
	out := b.out()
	if b.farOf(out) != 0 && out>>b.self&1 == 0 {
		b.receive()
	}
	return out
}

// receive takes every message that has come, and reports whether there was one.
func (b *Buffer) receive() (some bool) {
	b.far.short = nil // what was in front still is
	for rest := b.far.ranks; rest != 0; rest &= rest - 1 {
		r := bits.TrailingZeros64(rest)
		for msg := b.far.carrier.Next(r); msg != nil; msg = b.far.carrier.Next(r) {
			if !b.takeMessage(r, msg) {
				if b.far.short != nil {
					break // it waits until there is memory
				}
				b.count.dropped++
			}
			b.far.carrier.Release(r)
			some = true
		}
	}
	return b.placeStashed() || some
}

// takeMessage does what a message says; false: it says nothing that can be.
func (b *Buffer) takeMessage(r int, msg []byte) bool {
	h, ok := readHead(msg)
	if !ok || h.epoch != b.epoch || h.rank != r || h.slot >= len(b.slots) {
		return false
	}
	s := &b.slots[h.slot]
	switch h.kind {
	case kindWords:
		return b.takeWords(s, r, msg)
	case kindRows:
		return b.takeRows(s, r, h.op, msg)
	case kindOutputs:
		return b.takeOutputs(s, r, h.op, msg)
	}
	return false
}
