package ep

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"github.com/moewire/moewire/core/ep/layout"
)

// words are what one rank says to another about one slot. Only the latest
// matter, so there is nothing to queue: whoever finds no room for them tries
// again at the next step, with those of then.
type words struct {
	open uint64 // of the sender's slab
	y    uint64 // y_ready of the sender
	done uint64 // of the sender as source, for the receiver's slab
}

func (w *words) put(msg []byte) {
	for i, v := range [...]uint64{w.open, w.y, w.done} {
		binary.LittleEndian.PutUint64(msg[headBytes+8*i:], v)
	}
}

func readWords(msg []byte) (w words, ok bool) {
	if len(msg) != wordsBytes {
		return words{}, false
	}
	for i, v := range [...]*uint64{&w.open, &w.y, &w.done} {
		*v = binary.LittleEndian.Uint64(msg[headBytes+8*i:])
	}
	return w, true
}

// flush sends what far ranks do not know yet, as far as there is room.
func (b *Buffer) flush() {
	if !b.isMember() {
		return
	}
	for rest := b.far.ranks & b.members(); rest != 0; rest &= rest - 1 {
		r := bits.TrailingZeros64(rest)
		for j := range b.slots {
			if s := &b.slots[j]; !b.sendOutputs(s, r) || !b.sendWords(s, r) {
				break // no room, for nothing else either
			}
		}
	}
}

// sendWords says what has changed. Outputs come before the y_ready that
// publishes them, and y_ready only after the rank's rows: it asks for nothing
// before.
func (b *Buffer) sendWords(s *slot, r int) bool {
	f := &s.far[r]
	now := words{open: b.said.open[s.index], y: f.told.y}
	if y := b.said.yReady[s.index]; s.own != nil && layout.IsFor(y, s.served) && s.hasCome(r) {
		now.y = y
	}
	if f.mirror != nil {
		now.done = f.mirror.Word(layout.Done(b.self)).Load()
	}
	if now == f.told {
		return true
	}
	msg, ok := b.lend(r, wordsBytes)
	if !ok {
		return false
	}
	b.stamp(msg, kindWords, s.index, 0)
	now.put(msg)
	if b.post(r, wordsBytes) {
		f.told = now
	}
	return true
}

// lend returns memory for a message, if there is room.
func (b *Buffer) lend(r int, n int64) ([]byte, bool) {
	msg, err := b.far.carrier.Reserve(r, n)
	return msg, err == nil
}

// post sends what was lent. A message that cannot be sent is lost with its
// rank: whoever knows that says so.
func (b *Buffer) post(r int, n int64) bool {
	if b.far.carrier.Post(r, n) != nil {
		return false
	}
	b.count.messages++
	b.count.bytesFar += uint64(n)
	return true
}

func (b *Buffer) stamp(msg []byte, kind uint8, slot int, op uint64) {
	h := head{kind: kind, epoch: b.epoch, rank: b.self, slot: slot, op: op}
	h.put(msg)
}

// hasCome reports whether a rank's rows for the operation that we serve are
// all here.
func (s *slot) hasCome(r int) bool {
	return s.own.seg.Word(layout.Arrive(r)).Load() == layout.Sealed(s.served, r)
}

// takeWords stores what a far rank says of a slot where its peers would find
// it.
func (b *Buffer) takeWords(s *slot, r int, msg []byte) bool {
	w, ok := readWords(msg)
	if !ok || !b.ours(s, w.open) || !b.ours(s, w.y) || !b.ours(s, w.done) {
		return false
	}
	p := &b.peers[r]
	if b.owesOutputs(s, r, w.y) {
		return false
	}
	raise(p.open(s.index), w.open)
	raise(p.yReady(s.index), w.y)
	return b.takeDone(s, r, w.done)
}

// ours: a word of a slot carries operations of that slot, or none.
func (b *Buffer) ours(s *slot, word uint64) bool {
	n := layout.Op(word)
	return word == 0 || n%uint64(len(b.slots)) == uint64(s.index)
}

// raise stores a word that never goes back. An older one is no news: pieces of
// outputs bring y_ready, too.
func raise(w *atomic.Uint64, v uint64) {
	if v > w.Load() {
		w.Store(v)
	}
}

// owesOutputs: a y_ready that publishes more than what has come.
func (b *Buffer) owesOutputs(s *slot, r int, y uint64) bool {
	if !s.live || !layout.IsFor(y, s.op) || s.sent>>r&1 == 0 || b.rowsAt(s, r) == 0 {
		return false
	}
	has := b.peers[r].yReady(s.index).Load()
	if !layout.IsFor(has, s.op) {
		return layout.Combines(y) > 0
	}
	return layout.Combines(y) > layout.Combines(has)
}

// takeDone stores a source's done in our slab, for the operation that we serve
// and only after its rows: the slab may be reused then.
func (b *Buffer) takeDone(s *slot, r int, done uint64) bool {
	if s.own == nil || done == 0 || !layout.IsFor(done, s.served) {
		return s.own == nil || done == 0 || !layout.IsPast(done, s.served)
	}
	if !s.hasCome(r) && s.far[r].in.op != s.served+1 {
		return false
	}
	raise(s.own.seg.Word(layout.Done(r)), done)
	return true
}
