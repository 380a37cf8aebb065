package cpu

import (
	"fmt"
	"sync/atomic"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
)

// Deterministic order, and that of flat rows, takes one more exchange. Every
// source leaves its counts in layout[l][s] of an open slab and says so in
// counted[s]. Only the owner decides where the rows of each source lie, in order of
// rank, and publishes that in the word `order`. A rank that was lost by then has no
// place. Then sources place their rows.

// exchanges reports whether rows of this operation get their places in this way.
func (b *Buffer) exchanges(s *slot) bool { return b.cfg.Deterministic || s.params.flat }

// exchangeRowOrder does our part of that and returns the owners that have answered.
func (b *Buffer) exchangeRowOrder(s *slot, ready rankset.Set) (answered rankset.Set) {
	for r := range ready.Minus(s.notified).All() {
		b.announce(s, r)
	}
	s.notified = s.notified.Or(ready)
	if ready.Has(b.self) && !s.ordered {
		b.assignRowOrder(s)
	}
	for r := range ready.All() {
		if protocol.IsFor(s.dst[r].Word(layout.RowOrder()).Load(), s.op) {
			answered = answered.With(r)
		}
	}
	return answered
}

// announce leaves our counts at owner r.
func (b *Buffer) announce(s *slot, r int) {
	slab, l := s.dst[r], int(s.slab.LocalExperts)
	if slab.SizeBytes() >= s.slab.SizeBytes { // else the owner reports the mismatch
		for i, n := range s.plan.counts[r*l : (r+1)*l] {
			slab.Word(s.slab.Layout(int64(i), int64(b.self))).Store(uint64(n))
		}
	}
	s.params.store(slab, b.self, s.op)
	slab.Word(layout.Announced(b.self)).Store(protocol.Sealed(s.op, b.self))
	b.dom.Wake(r)
}

// assignRowOrder gives every source that counts a place, once all sources have announced
// their rows or are out.
func (b *Buffer) assignRowOrder(s *slot) {
	out, in := b.out(), rankset.Set{}
	for t := range s.awaited.All() {
		switch {
		case b.cameFor(s, layout.Announced(t), t, s.op), b.arrived(s, t):
			in = in.With(t)
		case !out.Has(t):
			return // it will come
		}
	}
	s.counted = s.counted.Minus(s.awaited.Minus(in)) // even if it still comes: without rows
	s.awaited = s.awaited.And(in)
	if !b.writeRowOrder(s, in) {
		in = rankset.Set{} // the ranks disagree; received returns the error
	}
	if b.hurt != nil {
		return // this rank leaves: no source has a place
	}
	s.own.publishRowOrder(s.op, in)
	s.ordered = true
	b.wakeAll()
}

// writeRowOrder turns counts into places. False: they do not fit.
func (b *Buffer) writeRowOrder(s *slot, in rankset.Set) bool {
	for l := range s.slab.LocalExperts {
		total := uint64(0)
		for t := range in.All() {
			if theirs, ok := b.paramsOf(s, t); !ok || !s.params.same(&theirs) {
				return false
			}
			rows := setOffset(s.own.seg.Word(s.slab.Layout(l, int64(t))), total)
			if rows > s.params.maxTokens { // an expert has a row of each token at most
				b.violates(violation{
					b.self, fmt.Sprintf("layout[%d][%d] in slot %d", l, t, s.index), rows, fmt.Sprintf("0 to %d rows", s.params.maxTokens),
				})
				return false
			}
			total += rows
		}
		s.own.seg.Word(layout.Counter(int(l))).Store(total)
	}
	return true
}

// setOffset puts the offset beside the count in a word of layout and returns
// the count. A source that cancels meanwhile sets the word to no rows: that
// stands, before the exchange or after it.
func setOffset(word *atomic.Uint64, begin uint64) (rows uint64) {
	for {
		v := word.Load()
		rows = v & (1<<32 - 1)
		if word.CompareAndSwap(v, begin<<32|rows) {
			return rows
		}
	}
}

// assigned reads where the owners have put our rows, and returns the owners that have a
// place for all of them. A place with another count than ours, or outside the block, is
// none: it is noted as a lack of room.
func (b *Buffer) assigned(s *slot, ready rankset.Set) (fits rankset.Set) {
	for r := range ready.All() {
		if !rankset.FromWord(s.dst[r].Word(layout.RowOrderMembers()).Load()).Has(b.self) {
			continue // it does not count us
		}
		if b.assignedAt(s, r) {
			fits = fits.With(r)
		}
	}
	return fits
}

func (b *Buffer) assignedAt(s *slot, r int) bool {
	p, l := &s.plan, int(s.slab.LocalExperts)
	if n := s.dst[r].SizeBytes(); n < s.slab.SizeBytes {
		b.lack(s, violation{r, inSlot("the bytes of slab", s.index), uint64(n), fmt.Sprintf("%d and more", s.slab.SizeBytes)})
		return false
	}
	for i := range l {
		v := s.dst[r].Word(s.slab.Layout(int64(i), int64(b.self))).Load()
		if n := uint64(p.counts[r*l+i]); !fitsOffset(v, n, uint64(s.slab.RowsPerExpert)) {
			b.lack(s, violation{
				r, fmt.Sprintf("layout[%d][%d] in slot %d", i, b.self, s.index), v,
				fmt.Sprintf("%d rows within %d", n, s.slab.RowsPerExpert),
			})
			return false
		}
		p.begin[r*l+i] = int32(v >> 32)
	}
	return true
}

func fitsOffset(word, rows, capacity uint64) bool {
	return word&(1<<32-1) == rows && protocol.Fits(word>>32, rows, capacity)
}

// refuseRowOrder answers for an operation that this rank has given up, or in which
// it makes no order: no source has a place. It does not change an answer that was given.
func (b *Buffer) refuseRowOrder(own *ownSlab, op uint64) {
	if !protocol.IsFor(own.rowOrder, op) {
		own.publishRowOrder(op, rankset.Set{})
	}
}

// publishRowOrder stores the set of ranks that have a place, and then `order`.
func (own *ownSlab) publishRowOrder(op uint64, set rankset.Set) {
	own.rowOrder, own.rowOrderMembers = protocol.Word(op, 0), set
	own.seg.Word(layout.RowOrderMembers()).Store(set.Word())
	own.seg.Word(layout.RowOrder()).Store(own.rowOrder)
}
