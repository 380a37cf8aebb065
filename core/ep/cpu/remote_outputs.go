package cpu

import (
	"encoding/binary"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
)

// outputs is how far one combine's outputs have got between two ranks.
type outputs struct {
	word uint64 // y_ready that the last piece publishes; 0: none
	row  int64
	done bool
}

// begin goes on with a combine, or starts with it.
func (o *outputs) begin(word uint64) {
	if o.word != word {
		*o = outputs{word: word}
	}
}

// outputsHead follows a message's head: the word, then how many rows there are
// in all, the first of this piece, their number, and what they are.
type outputsHead struct {
	word                     uint64
	total, first, rows, form uint32
}

const (
	formRows = 0 // one row per token and expert
	formSums = 1 // one per token: the rank's weighted sum
)

func formOf(preReduce bool) uint32 {
	if preReduce {
		return formSums
	}
	return formRows
}

func (h *outputsHead) put(msg []byte) {
	clear(msg[headBytes:outputsHeadBytes])
	binary.LittleEndian.PutUint64(msg[headBytes:], h.word)
	for i, v := range [...]uint32{h.total, h.first, h.rows, h.form} {
		binary.LittleEndian.PutUint32(msg[headBytes+8+4*i:], v)
	}
}

func readOutputsHead(msg []byte) (h outputsHead, ok bool) {
	if len(msg) < outputsHeadBytes {
		return h, false
	}
	h.word = binary.LittleEndian.Uint64(msg[headBytes:])
	for i, v := range [...]*uint32{&h.total, &h.first, &h.rows, &h.form} {
		*v = binary.LittleEndian.Uint32(msg[headBytes+8+4*i:])
	}
	return h, h.rows <= h.total && h.first <= h.total-h.rows && (h.rows > 0 || h.total == 0)
}

// sendOutputs sends a remote source the outputs of its rows, as far as there is
// room; false: there is none for the rest. A source that is done with the
// operation wants none.
func (b *Buffer) sendOutputs(s *slot, r int) bool {
	word := b.published.yReady[s.index]
	if s.own == nil || !protocol.IsFor(word, s.served) || protocol.Combines(word) == 0 || !s.hasCome(r) {
		return true
	}
	f := &s.remote[r]
	total, kept := f.in.rowsKept()
	_, last, is := b.doneOf(s, r, s.served)
	if total == 0 || (is && last) {
		return true
	}
	if !kept || s.shownFor != s.served || f.in.lay.Shape != s.shown.Shape {
		total = 0 // its rows had no place here: zeros
	}
	for f.outs.begin(word &^ protocol.Final); !f.outs.done; {
		if !b.sendPiece(s, r, total) {
			return false
		}
	}
	return true
}

// sendPiece sends the next rows of outputs.
func (b *Buffer) sendPiece(s *slot, r int, total int64) bool {
	f := &s.remote[r]
	n := min(total-f.outs.row, outputsFor(&s.shown, b.remote.longest))
	size := outputsHeadBytes + n*s.shown.OutputBytes()
	if total == 0 {
		n, size = 0, outputsHeadBytes
	}
	msg, ok := b.lease(r, size)
	if !ok {
		return false
	}
	b.stamp(msg, protocol.MessageOutputs, s.index, s.served)
	h := outputsHead{
		word: f.outs.word, total: uint32(total), first: uint32(f.outs.row), rows: uint32(n), form: formOf(f.in.params.preReduce),
	}
	h.put(msg)
	switch {
	case n == 0: // zeros
	case f.in.params.preReduce:
		b.addUp(msg[outputsHeadBytes:], s, r, f.outs.row, n)
	default:
		b.copyRows(msg[outputsHeadBytes:], s.own.seg, &s.shown, f.in.counts, f.in.begin, f.outs.row, n, false)
	}
	if !b.post(r, size) {
		return false
	}
	f.outs.row += n
	if f.outs.done = f.outs.row == total; f.outs.done {
		f.lastSent.y = f.outs.word
	}
	return true
}

// copyRows copies n rows of outputs, from row number `first` on, between a
// message and the y of a slab. There a source has counts[l] rows from begin[l]
// on (nil: from 0 on).
func (b *Buffer) copyRows(msg []byte, slab domain.Segment, lay *layout.Slab, counts, begin []int32, first, n int64, in bool) {
	y, row, jobs := lay.Y(), lay.OutputBytes(), b.scratch.copies[:0]
	for l, c := range counts {
		skip := min(first, int64(c))
		first -= skip
		take := min(int64(c)-skip, n)
		if take == 0 {
			continue
		}
		at := int64(l)*lay.RowsPerExpert + skip
		if begin != nil {
			at += int64(begin[l])
		}
		job := device.CopyJob{Dst: msg[:take*row], Src: slab.Bytes(y.Off+at*row, take*row)}
		if in {
			job.Dst, job.Src = job.Src, job.Dst
		}
		jobs = append(jobs, job)
		msg, n = msg[take*row:], n-take
	}
	b.kern.Copy(jobs)
	clear(jobs)
	b.scratch.copies = jobs
}

// unsentOutputs returns the remote sources that still lack outputs which we have
// published: a combine does not end before that.
func (b *Buffer) unsentOutputs(s *slot) (ranks rankset.Set) {
	if b.remote == nil || !s.isOpen() {
		return rankset.Set{}
	}
	for r := range b.ranks {
		if b.isRemote(r) && b.isMemberRank(r) && !b.sendOutputs(s, r) {
			ranks = ranks.With(r)
		}
	}
	return ranks
}

func (b *Buffer) isMemberRank(r int) bool { return b.members().Has(r) }

// takeOutputs stores outputs of our rows in the owner's shadow slab. An operation
// that we have released wants none.
func (b *Buffer) takeOutputs(s *slot, r int, n uint64, msg []byte) bool {
	h, ok := readOutputsHead(msg)
	if !ok || !protocol.IsFor(h.word, n) || protocol.IsLast(h.word) || protocol.Combines(h.word) == 0 {
		return false
	}
	if s.op != n || !s.live || !s.sent.Has(r) {
		return n < b.next
	}
	back, has := s.remote[r].back, yReadyWord(&b.peers[r], s.index).Load()
	if back.begin(h.word); has >= h.word || back.done || back.row != int64(h.first) {
		return false
	}
	counts := b.outputCounts(s, r)
	if size := outputsHeadBytes + int64(h.rows)*s.slab.OutputBytes(); int64(len(msg)) != size || h.form != formOf(s.params.preReduce) || (h.total != 0 && int64(h.total) != sumOf(counts)) {
		return false
	}
	if h.total == 0 {
		b.clearRows(s.dst[r], &s.slab, counts)
	} else {
		b.copyRows(msg[outputsHeadBytes:], s.dst[r], &s.slab, counts, nil, int64(h.first), int64(h.rows), true)
	}
	back.row += int64(h.rows)
	back.done = back.row == int64(h.total)
	if s.remote[r].back = back; back.done {
		yReadyWord(&b.peers[r], s.index).Store(h.word)
	}
	return true
}

// clearRows zeroes outputs: rows that found no place at their owner count as zeros.
func (b *Buffer) clearRows(slab domain.Segment, lay *layout.Slab, counts []int32) {
	y, row := lay.Y(), lay.OutputBytes()
	for l, c := range counts {
		clear(slab.Bytes(y.Off+int64(l)*lay.RowsPerExpert*row, int64(c)*row))
	}
}
