package cpu

import (
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// openSlot lets peers write into our slab for operation i. A(i) is read
// before the word is set: a rank that is not in it cannot start to write.
func (b *Buffer) openSlot(s *slot, i uint64) {
	set := membership.Members(b.word.Load())
	if !set.In(b.epoch, b.self) {
		return // the group went on without us; the next call returns the error
	}
	s.a = set.Ranks()
	s.served = i
	b.publishOpen(s.index, protocol.Word(i, uint16(s.own.id)))
	b.wakeAll()
}

// progress does what needs no waiting, for every slot: it opens a slot once every
// rank has finished its operation, and writes deferred words. Every
// call does this first, so that one thread can drive several ranks. The caller has seen
// that this rank is a member: a rank that is out does nothing.
func (b *Buffer) progress() error {
	for more := true; more; more = more && b.isMember() {
		var err error
		if more, err = b.reopen(); err != nil {
			return err
		}
		if len(b.deferred) > 0 {
			more = b.settle() || more
		}
		if b.remote != nil {
			more = b.receive() || more
			if err = b.remote.short; err != nil {
				return err // the next step tries again
			}
		}
	}
	if b.remote != nil {
		b.flush()
	}
	return nil
}

// reopen reports whether it opened a slot. Its error is a lack of memory.
func (b *Buffer) reopen() (opened bool, err error) {
	for j := range b.slots {
		s := &b.slots[j]
		if s.own == nil || (s.live && s.isOpen()) {
			continue
		}
		out := b.out()
		unfinished := b.unfinished(s)
		if !unfinished.Minus(out).Empty() {
			continue
		}
		if err := b.renew(s, unfinished); err != nil {
			return opened, err
		}
		b.openSlot(s, s.served+uint64(len(b.slots)))
		opened = true
	}
	return opened, nil
}

// unfinished returns the ranks of A(served) without a final done.
func (b *Buffer) unfinished(s *slot) (ranks rankset.Set) {
	for r := range s.a.All() {
		if _, last, is := b.doneOf(s, r, s.served); !is || !last {
			ranks = ranks.With(r)
		}
	}
	return ranks
}

// clean zeroes the counters that the served operation used. It takes the shapes from the
// sources' parameters, which may have disagreed. A lost source may have raised counters
// without storing its parameters: then all counters are zeroed.
func (b *Buffer) clean(s *slot, allPublished bool) {
	most := int64(0)
	for r := range s.a.All() {
		n, p, ok := loadParams(s.own.seg, r)
		switch {
		case !ok:
			most = protocol.MaxLocalExperts
		case n == s.served:
			most = max(most, int64(min(p.experts/uint64(b.ranks), protocol.MaxLocalExperts)))
		}
	}
	if b.cfg.DebugFill && s.shownFor == s.served && s.shown.LocalExperts > 0 {
		b.fill(s)
	}
	if !allPublished {
		most = protocol.MaxLocalExperts
	}
	for l := range int(most) {
		protocol.Ensure(s.own.seg.Word(layout.Counter(l)), 0)
	}
}

// fill overwrites what the served operation left, so that a view which is
// used after its release shows NaN instead of plausible numbers.
func (b *Buffer) fill(s *slot) {
	for l := range s.shown.LocalExperts {
		n := int64(min(s.own.seg.Word(layout.Counter(int(l))).Load(), uint64(s.shown.RowsPerExpert)))
		s.shown.Head(l, n, func(r layout.Region) { fillBytes(s.own.seg.Bytes(r.Off, r.Bytes)) })
	}
}

func fillBytes(p []byte) {
	for i := range p {
		p[i] = 0xff
	}
}
