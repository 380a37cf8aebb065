package store

import (
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// mutations are mistakes that are easy to make: name, file, from, to.
var mutations = [][4]string{
	{"deletes do not reach copies", "copies.go", "if c.num.Load() == 0 {", "if true {"},
	{"evicted blocks leave no copy", "evict.go", "\ts.leaveCopy(b)\n", ""},
	{"a move does not hold the disk", "move.go", "\tfrom.disk.Lock()\n\tdefer from.disk.Unlock()\n", "\t_ = from\n"},
	{"a copy that lost its block stays", "move.go", "\t\ts.buryCopy(b, to)\n\t\treturn nil\n", "\t\treturn nil\n"},
	{"a segment is emptied before what was moved is on the disk", "evict.go", "\treturn s.medium.Sync(at)\n", "\treturn nil\n"},
	{"a deleted record stays", "bury.go", "off, nothing(b));", "off, nothing(b)[:0]);"},
	{"a deleted block stays in the footer", "bury.go", "\terr := s.mark(g, b)\n", "\tvar err error\n"},
	{"what is pinned is evicted", "evict.go", "\t\tif !s.move(&b) {\n\t\t\treturn false\n", "\t\tif !s.move(&b) {\n\t\t\tcontinue\n"},
	{"a hot segment is moved for nothing", "evict.go", "if best != none && s.segments[best].state == stateFull {", "if false {"},
	{"one lock for all keys", "write.go", "s.busy.lock(w.block.Hash)\n\t\tdefer s.busy.unlock(w.block.Hash)", "s.busy.lock(record.Hash{})\n\t\tdefer s.busy.unlock(record.Hash{})"},
	{"two puts of a key", "write.go", "\t\ts.busy.lock(w.block.Hash)\n\t\tdefer s.busy.unlock(w.block.Hash)\n", ""},
	{"a store without room for moves is full", "evict.go", "if s.hasBroken() && s.numNoRoom == 0 || s.starting", "if true || s.starting"},
	{"a segment that fails ends the search", "evict.go", "tries < mostTries", "tries < 1"},
	{"a segment that fails is said again and again", "place.go", "if g.said {", "if false {"},
	{"two failures in turn are said again and again", "keep.go", "n.texts[:]", "n.texts[(n.next+7)%8:(n.next+7)%8+1]"},
	{"a smaller disk is a broken one", "place.go", "if !medium.LacksRoom(err) {", "if !medium.LacksRoom(err) || true {"},
	{"a broken disk is a smaller one", "evict.go", "if s.hasBroken() && s.numNoRoom == 0 || s.starting", "if s.starting"},
	{"a segment that fails makes a full disk a broken one", "evict.go", "s.hasBroken() && s.numNoRoom == 0 ||", "s.hasBroken() ||"},
	{"any segment goes as a whole", "evict.go", "v.hotBytes[i] < v.hotBytes[best]", "false"},
	{"a pin taken meanwhile is lost", "evict.go", "if s.pins.holds(b.Hash) && !v.pinned[b.Hash] {", "if false {"},
	{"a pin outlives its block", "remove.go", "\t\ts.pins.end(h)\n", ""},
	{"a page that cannot be read is written in part", "bury.go", "if err == nil || s.isReadable(segment, off) {", "if true {"},
	{"a footer that cannot be marked stays", "bury.go", "if err != nil && !s.isReadable(", "if false && !s.isReadable("},
	{"a dropped footer hid a record", "footer.go", "\tif err := s.scrub(segment); err != nil {\n\t\treturn err\n\t}\n", ""},
	{"a put ends within a page", "staging.go", "return w.buf[:cap(w.buf)]", "return w.buf"},
	{"what was in the memory is written behind a block", "staging.go", "\tclear(w.buf[len(w.buf):cap(w.buf)])\n", ""},
	{"memory is kept without end", "staging.go", "if all.bytes+len(st.record) > keptStagingBytes {", "if false {"},
	{"an evicted block leaves an earlier record", "evict.go", "\t\ts.buryStale(at)\n", ""},
	{"nothing is reclaimed ahead", "keep.go", "len(s.segments) >= aheadSegments", "false"},
	{"a flush serves those that came later", "flush.go", "\tr := f.next\n\t\tf.next = nil\n\t\tf.mu.Unlock()\n\t\tr.err = s.flush()\n", "\tr := f.next\n\t\tf.mu.Unlock()\n\t\tr.err = s.flush()\n\t\tf.mu.Lock()\n\t\tf.next = nil\n\t\tf.mu.Unlock()\n"},
	{"a flush does not wait for deletes", "flush.go", "\ts.deletes.wait()\n", ""},
	{"a visible block is not counted", "write.go", "\t\ts.wrote(w.block.RecordBytes())", "\t\tdefer s.wrote(w.block.RecordBytes())"},
	{"a segment is emptied while another one is not free", "evict.go", "s.reclaiming || s.owes()", "s.reclaiming"},
	{"memory is given back while it is leased", "store.go", "g.refs.Load() != 0 || g.pending != 0", "g.pending != 0"},
	{"memory is given back while it is written to", "store.go", "g.refs.Load() != 0 || g.pending != 0", "g.refs.Load() != 0"},
	{"memory is never given back", "read.go", "== 0 && s.memory && s.over.Load()", "== 0 && false"},
	{"a closed store lends", "read.go", "if found && s.over.Load() {", "if false {"},
	{"what cannot be read was never written", "recover.go", "if errors.Is(err, io.ErrUnexpectedEOF) {", "if errors.Is(err, io.ErrUnexpectedEOF) || true {"},
	{"what cannot be read comes back", "recover.go", "if s.medium.Write(at, off, make([]byte, record.PageBytes)) == nil {", "if true {"},
	{"a block that cannot be read once is lost", "doubts.go", ">= doubtFor", ">= 0"},
	{"a block that cannot be read stays for good", "doubts.go", "|| s.doubts.meet(b.Hash)", "|| s.doubts.meet(b.Hash) && false"},
	{"a block that was read stays in doubt", "read.go", "\t\ts.doubts.end(b.Hash)\n", ""},
	{"a footer that cannot be read hid nothing", "recover.go", "\t\treturn nil\n\t}\n\treturn errFooter\n", "\t}\n\treturn nil\n"},
	{"a start reads once", "recover.go", "try < startTries", "false"},
	{"a block that is not whole is found", "recover.go", "tagger.Tag() == h.Tag", "true"},
	{"the earlier record counts", "recover.go", "if seq <= than {", "if seq > than {"},
	{"records behind a torn one are lost", "recover.go", "\t\t\toff += record.PageBytes\n\t\t\tcontinue\n\t\t}\n\t\ts.found", "\t\t\tbreak\n\t\t}\n\t\ts.found"},
	{"a namespace with blocks is forgotten", "names.go", "|| of.holders.Load() != 0 || of.blocks.Load() != 0 {", "|| of.holders.Load() != 0 {"},
	{"a namespace without blocks stays", "names.go", "if of.blocks.Add(sign) == 0 && of.holders.Load() == 0 {", "if of.blocks.Add(sign); false {"},
	{"a namespace without holders stays", "names.go", "left.holders.Add(-1) == 0 {", "left.holders.Add(-1) == 0 && false {"},
	{"a writing does not hold its namespace", "write.go", "\tns := s.names.again(a.NS)\n", "\tns := s.names.of(a.NS)\n\tns.holders.Add(1)\n\ts.names.leave(a.NS)\n"},
	{"what was asked of a forgotten namespace is lost", "names.go", "\tn.gone.add(&of.tally)\n", ""},
	{"a namespace more than may be ends a start", "recover.go", "\t\ts.outdated = append(s.outdated, b)\n\t\treturn\n\t}\n\tdefer s.names", "\t\tpanic(err)\n\t}\n\tdefer s.names"},
	{"the tail is written first", "seal.go", "footer[:tail]); err == nil {\n\t\terr = s.medium.Sync(at)", "footer[:tail]); err == nil {\n\t\terr = nil"},
	{"a page reads without end", "list.go", "|| reads == listReads", ""},
	{"a page walks without end", "list.go", "cursor, listBlocks,", "cursor, 1<<60,"},
	{"a tenant takes more than its quota", "quota.go", "t.quota == 0 || t.noting || t.used+bytes <= t.quota:", "true:"},
	{"a writing takes nothing of the quota", "quota.go", "\t\tt.used += bytes\n\t\treturn", "\t\treturn"},
	{"a writing that is given up keeps its bytes", "write.go", "\t\tw.tenant.add(-w.block.RecordBytes())\n", ""},
	{"a put without room keeps its bytes", "write.go", "\t\tns.tenant.add(-w.block.RecordBytes())\n", ""},
	{"an evicted block keeps its bytes", "quota.go", "\t\tt.used -= b.RecordBytes()\n", ""},
	{"what a start finds takes nothing", "remove.go", "\ts.names.of(NS(b.Namespace)).tenant.add(b.RecordBytes())\n", ""},
	{"the oldest is the one that was put first", "quota.go", "if b.Stamp > a.stamp {", "if false {"},
	{"a quota evicts what is pinned", "quota.go", "s.pins.holds(a.hash) {", "false {"},
	{"a block of before the quota is not evicted", "quota.go", "\tif len(begun) > 0 {\n", "\tif false {\n"},
	{"a block of a quota comes back", "quota.go", "if s.delete(a.hash, func(*index.Block) bool {", "if s.drop(a.hash, func(*index.Block) bool {"},
	{"a lower quota waits for a put", "quota.go", "\t\t_, _ = s.claimUntil(stop, t, 0)", "\t\t_ = t"},
	{"a block that never fits evicts", "quota.go", "bytes > 0 && t.stays()+bytes > t.quota, ", ""},
	{"a put that pinned blocks leave no room for evicts", "quota.go", "max(0, t.live-t.pinned)", "t.live"},
	{"a pin that is over takes of the quota", "quota.go", "if err != nil && s.pins.lapse() {", "if false {"},
	{"blocks that are gone stay noted", "quota.go", "2*t.blocks.Load()+spareAges {", "1<<40 {"},
	{"heads go before tails", "stamps.go", "return b.Stamp - 1", "return s.stampChain(0)"},
	{"a first quota holds before it is known what is old", "quota.go", "|| t.noting ||", "||"},
	{"an open segment is forgotten", "place.go", "case s.open == none && s.dueForRoom() != none:", "case s.dueForRoom() != none:"},
	{"blocks are evicted beside dead bytes", "evict.go", "if live <= filled*sparseShare/8 {", "if false {"},
}

// TestMutations builds this package with each mistake in turn, and wants the tests to notice. It takes minutes:
// MOEWIRE_MUTATIONS=1 turns it on.
func TestMutations(t *testing.T) {
	testenv.RunMutations(t, testenv.MutationsOf(mutations, testenv.Mutation{
		Noticed: "--- FAIL: |panic: |fault", Args: []string{"-timeout=2m", "-failfast"},
	}))
}
