package ep

import (
	"math/bits"

	"github.com/moewire/moewire/core/ep/layout"
)

// owed are words of one operation that a rank must still write at owners which
// have not opened it: the dispatch was cancelled, or its caller left the owner
// out. Without them the owner would wait for ever.
type owed struct {
	op     uint64
	owners uint64 // one bit per rank
	params params
	slab   layout.Slab
	withY  bool // y_ready still lacks its released bit
}

// settle writes what is owed wherever the owner has opened by now, and reports
// whether it wrote anything. An owner that is out is owed nothing.
func (b *Buffer) settle() (wrote bool) {
	kept := b.owed[:0]
	for i := range b.owed {
		o := b.owed[i]
		o.owners &^= b.out()
		for rest := o.owners; rest != 0; rest &= rest - 1 {
			r := bits.TrailingZeros64(rest)
			if b.settleAt(&o, r) {
				o.owners &^= 1 << r
				wrote = true
			}
		}
		if o.owners != 0 {
			kept = append(kept, o)
		}
	}
	b.owed = kept
	return wrote
}

// settleAt writes an operation without rows at owner r, if r has opened it.
func (b *Buffer) settleAt(o *owed, r int) bool {
	j := int(o.op % uint64(len(b.slots)))
	id, open := b.openFor(r, j, o.op)
	if !open {
		return false
	}
	if b.isFar(r) {
		return b.settleFar(o, r, j)
	}
	slab, err := b.nearSlab(r, j, id)
	if err != nil || slab == nil || !b.isMember() { // after `open`, before the first write
		return false // later: it may be mapped then
	}
	b.publish(slab, r, o.op, &o.params, &o.slab, nil, nil)
	if r == b.self && o.withY {
		b.refuseOrder(b.slots[j].own, o.op)
		b.sayYReady(j, layout.Counted(o.op, 0, true))
		b.wakeAll()
	}
	slab.Word(layout.Done(b.self)).Store(layout.Counted(o.op, 0, true))
	b.dom.Wake(r)
	return true
}
