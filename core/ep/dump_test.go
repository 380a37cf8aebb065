package ep

import (
	"fmt"

	"github.com/moewire/moewire/core/ep/layout"
)

func Dump(b *Buffer) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := fmt.Sprintf("rank %d members %b dropped %d next %d callers %d owed %d\n", b.self, b.members(), b.count.dropped, b.next, b.pump.callers.Load(), len(b.owed))
	for j := range b.slots {
		s := &b.slots[j]
		out += fmt.Sprintf("  slot %d op %d live %v served %d a %b sent %b unsent %b awaited %b counted %b unfinished %b combines %d open %x y %x\n", j, s.op, s.live, s.served, s.a, s.sent, s.unsent, s.awaited, s.counted, b.unfinished(s), s.combines,
			b.peers[b.self].open(j).Load(), b.peers[b.self].yReady(j).Load())
		for r := range s.far {
			if !b.isFar(r) {
				continue
			}
			f := &s.far[r]
			out += fmt.Sprintf("    far %d told %x sees open %x y %x; rows %+v in op %d next %d/%d stashed %d placed %v none %v come %v done %x\n", r, f.told, b.peers[r].open(j).Load(), b.peers[r].yReady(j).Load(), f.rows, f.in.op, f.in.next, f.in.total, f.in.stashed, f.in.placed, f.in.none, s.hasCome(r), s.own.seg.Word(layout.Done(r)).Load())
			msg := b.far.carrier.Next(r)
			out += fmt.Sprintf("      waiting message: %v\n", msg != nil)
		}
	}
	return out
}
