package cpu

import (
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
)

// deferredWrite is the words of one operation that a rank must still write at owners that
// have not opened it: the dispatch was cancelled, or its caller left the owner
// out. Without these words the owner would wait for ever.
type deferredWrite struct {
	op     uint64
	owners rankset.Set
	params params
	slab   layout.Slab
	withY  bool // y_ready still lacks its released bit
}

// settle writes what is deferred wherever the owner has opened by now, and reports
// whether it wrote anything. An owner that is out is left out.
func (b *Buffer) settle() (wrote bool) {
	kept := b.deferred[:0]
	for i := range b.deferred {
		o := b.deferred[i]
		o.owners = o.owners.Minus(b.out())
		for r := range o.owners.All() {
			if b.settleAt(&o, r) {
				o.owners = o.owners.Without(r)
				wrote = true
			}
		}
		if !o.owners.Empty() {
			kept = append(kept, o)
		}
	}
	b.deferred = kept
	return wrote
}

// settleAt writes an operation without rows at owner r, if r has opened it.
func (b *Buffer) settleAt(o *deferredWrite, r int) bool {
	j := int(o.op % uint64(len(b.slots)))
	id, open := b.openFor(r, j, o.op)
	if !open {
		return false
	}
	if b.isRemote(r) {
		return b.settleRemote(o, r, j)
	}
	slab, err := b.localSlab(r, j, id)
	if err != nil || slab == nil || !b.isMember() { // after `open`, before the first write
		return false // later: it may be mapped then
	}
	b.publish(slab, r, o.op, &o.params, &o.slab, nil, nil)
	if r == b.self && o.withY {
		b.refuseRowOrder(b.slots[j].own, o.op)
		b.publishYReady(j, protocol.Counted(o.op, 0, true))
		b.wakeAll()
	}
	slab.Word(layout.Done(b.self)).Store(protocol.Counted(o.op, 0, true))
	b.dom.Wake(r)
	return true
}
