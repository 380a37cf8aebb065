package cpu

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
)

// controlWords are what one rank tells another about one slot. Only the latest
// matter, so there is no queue: a rank that finds no room for them tries
// again at the next step, with the words of that moment.
type controlWords struct {
	open uint64 // of the sender's slab
	y    uint64 // y_ready of the sender
	done uint64 // of the sender as source, for the receiver's slab
}

func (w *controlWords) put(msg []byte) {
	for i, v := range [...]uint64{w.open, w.y, w.done} {
		binary.LittleEndian.PutUint64(msg[headBytes+8*i:], v)
	}
}

func readControlWords(msg []byte) (w controlWords, ok bool) {
	if len(msg) != controlWordsBytes {
		return controlWords{}, false
	}
	for i, v := range [...]*uint64{&w.open, &w.y, &w.done} {
		*v = binary.LittleEndian.Uint64(msg[headBytes+8*i:])
	}
	return w, true
}

// flush sends what remote ranks do not know yet, as far as there is room.
func (b *Buffer) flush() {
	if !b.isMember() {
		return
	}
	for r := range b.remote.ranks.And(b.members()).All() {
		for j := range b.slots {
			if s := &b.slots[j]; !b.sendOutputs(s, r) || !b.sendControlWords(s, r) {
				break // no room, for nothing else either
			}
		}
	}
}

// sendControlWords tells the rank what has changed. Outputs come before the y_ready that
// publishes them. y_ready comes only after the receiver's rows, since the receiver asks
// for nothing before.
func (b *Buffer) sendControlWords(s *slot, r int) bool {
	f := &s.remote[r]
	now := controlWords{open: b.published.open[s.index], y: f.lastSent.y}
	if y := b.published.yReady[s.index]; s.own != nil && protocol.IsFor(y, s.served) && s.hasCome(r) {
		now.y = y
	}
	if f.shadow != nil {
		now.done = f.shadow.Word(layout.Done(b.self)).Load()
	}
	if now == f.lastSent {
		return true
	}
	msg, ok := b.lease(r, controlWordsBytes)
	if !ok {
		return false
	}
	b.stamp(msg, protocol.MessageControlWords, s.index, 0)
	now.put(msg)
	if b.post(r, controlWordsBytes) {
		f.lastSent = now
	}
	return true
}

// lease returns memory for a message, if there is room.
func (b *Buffer) lease(r int, n int64) ([]byte, bool) {
	msg, err := b.remote.carrier.Reserve(r, n)
	return msg, err == nil
}

// post sends what was leased. A message that cannot be sent is lost with its
// rank: the domain reports that the rank is lost.
func (b *Buffer) post(r int, n int64) bool {
	if b.remote.carrier.Post(r, n) != nil {
		return false
	}
	b.count.messages++
	b.count.bytesRemote += uint64(n)
	return true
}

func (b *Buffer) stamp(msg []byte, kind uint8, slot int, op uint64) {
	h := head{kind: kind, epoch: uint16(b.epoch), rank: b.self, slot: slot, op: op}
	h.put(msg)
}

// hasCome reports whether a rank's rows for the operation that we serve are
// all here.
func (s *slot) hasCome(r int) bool {
	return s.own.seg.Word(layout.Arrive(r)).Load() == protocol.Sealed(s.served, r)
}

// takeControlWords stores what a remote rank says of a slot in the place where local
// ranks look for it.
func (b *Buffer) takeControlWords(s *slot, r int, msg []byte) bool {
	w, ok := readControlWords(msg)
	if !ok || !b.ours(s, w.open) || !b.ours(s, w.y) || !b.ours(s, w.done) {
		return false
	}
	p := &b.peers[r]
	if b.missesOutputs(s, r, w.y) {
		return false
	}
	raise(openWord(p, s.index), w.open)
	raise(yReadyWord(p, s.index), w.y)
	return b.takeDone(s, r, w.done)
}

// ours reports whether a word is possible in the slot: it carries an operation of that
// slot, or none.
func (b *Buffer) ours(s *slot, word uint64) bool {
	n := protocol.Op(word)
	return word == 0 || n%uint64(len(b.slots)) == uint64(s.index)
}

// raise stores a word that never goes back. It ignores an older value: pieces of
// outputs bring y_ready, too.
func raise(w *atomic.Uint64, v uint64) {
	if v > w.Load() {
		w.Store(v)
	}
}

// missesOutputs reports whether y_ready publishes more than what has arrived.
func (b *Buffer) missesOutputs(s *slot, r int, y uint64) bool {
	if !s.live || !protocol.IsFor(y, s.op) || !s.sent.Has(r) || b.rowsAt(s, r) == 0 {
		return false
	}
	has := yReadyWord(&b.peers[r], s.index).Load()
	if !protocol.IsFor(has, s.op) {
		return protocol.Combines(y) > 0
	}
	return protocol.Combines(y) > protocol.Combines(has)
}

// takeDone stores a source's done in our slab, for the operation that we serve
// and only after its rows: once done is there, the slab may be reused.
func (b *Buffer) takeDone(s *slot, r int, done uint64) bool {
	if s.own == nil || done == 0 || !protocol.IsFor(done, s.served) {
		return s.own == nil || done == 0 || !protocol.IsPast(done, s.served)
	}
	if !s.hasCome(r) && s.remote[r].in.op != s.served+1 {
		return false
	}
	raise(s.own.seg.Word(layout.Done(r)), done)
	return true
}
