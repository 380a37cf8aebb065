package cpu

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
)

// inRows is how far a remote source's rows for one operation have got.
type inRows struct {
	op           uint64 // + 1; 0: none
	params       params
	lay          layout.Slab    // of such params
	total, next  uint32         // rows announced, and taken
	last         int32          // token of the latest row
	counts       []int32        // rows per local expert
	begin        []int32        // where they begin, if they are placed
	cursor       []int32        // of these, how many are there
	placed       bool           // begin is known
	none         bool           // they have no place here, or the source gave up
	short        violation      // why they have no place
	reorder      domain.Segment // buffer of pieces that wait for their places
	reorderBytes int64          // of these pieces
	// Pre-reduced: [taken, K], what each row's sum is made of.
	terms   []device.ReduceJob
	weights []float32
}

// rowsKept returns the number of rows of outputs that a source has here, one
// per expert or, pre-reduced, per token, and whether they have a place.
func (in *inRows) rowsKept() (n int64, kept bool) {
	if in.params.preReduce {
		return int64(in.total), in.placed && !in.none
	}
	for _, c := range in.counts {
		n += int64(c)
	}
	return n, in.placed && !in.none
}

// takeRows takes a piece of a source's rows. It is for the operation that our
// slab is open for: the source sends nothing else.
func (b *Buffer) takeRows(s *slot, r int, n uint64, msg []byte) bool {
	if n%uint64(len(b.slots)) != uint64(s.index) || s.own == nil || n > s.served {
		return false
	}
	if n < s.served || b.goneOn(s, r) {
		return true // it was late, and no caller waits any more
	}
	h, ok := readRowsHead(b.remote.copyHead(msg), n)
	if !ok || !s.a.Has(r) || s.hasCome(r) {
		return false
	}
	in := &s.remote[r].in
	if h.first == 0 && in.op == n+1 && h.total == 0 && (in.next < in.total || in.reorderBytes > 0) {
		in.none, in.total, in.next, in.reorderBytes = true, 0, 0, 0 // it gave up
		return b.finishRows(s, r)
	}
	if !b.beginRows(s, r, &h, n, msg) {
		return false
	}
	x, ok := b.pieceJobs(in, &h, msg)
	if !ok {
		if h.first == 0 {
			in.op = 0 // as if it had not come
		}
		return false
	}
	if b.cfg.Deterministic || in.params.flat {
		b.announceFor(s, r)
		if in.reorderBytes > 0 || !b.ordered(s, r) {
			return b.keepPiece(r, in, msg, &x, &h) // behind what is there
		}
	} else {
		b.reserveOffsets(s, in)
	}
	return b.fanOut(s, r, &h, msg, &x)
}

// beginRows checks that a piece is the next one. The first piece brings all counts.
func (b *Buffer) beginRows(s *slot, r int, h *rowsHead, n uint64, msg []byte) bool {
	in := &s.remote[r].in
	if h.first != 0 || in.op == n+1 {
		return in.op == n+1 && h.first == in.next && h.first != 0 && h.total == in.total && h.params == in.params
	}
	shape := h.params.shape(b.ranks)
	if in.lay.Shape != shape {
		lay, err := layout.Of(shape)
		if err != nil {
			return false
		}
		in.lay = lay
	}
	x := sectionsOf(&in.lay, h.params.preReduce, true, int64(h.rows), int64(h.entries))
	if x.size != int64(len(msg)) || !in.readCounts(part(msg, x.counts), h.total) {
		return false
	}
	in.op, in.params, in.total, in.next, in.last = n+1, h.params, h.total, 0, -1
	in.placed, in.none, in.reorderBytes, in.short = false, s.own.seg.SizeBytes() < in.lay.SizeBytes, 0, violation{}
	in.begin, in.cursor = resize(in.begin, len(in.counts)), resize(in.cursor, len(in.counts))
	clear(in.cursor)
	in.terms, in.weights = in.terms[:0], in.weights[:0]
	return true
}

// readCounts reads the counts of the first piece. An expert has at most one row of each
// token, and each token that comes has an expert.
func (in *inRows) readCounts(from []byte, total uint32) bool {
	in.op = 0 // what follows overwrites the counts that were there
	in.counts = resize(in.counts, int(in.lay.LocalExperts))
	sum := uint64(0)
	for l := range in.counts {
		c := binary.LittleEndian.Uint32(from[4*l:])
		if c > total {
			return false
		}
		in.counts[l] = int32(c)
		sum += uint64(c)
	}
	return sum >= uint64(total) && (!in.lay.Flat || sum == uint64(total))
}

// reserveOffsets reserves places for the source, as the source would have done itself.
func (b *Buffer) reserveOffsets(s *slot, in *inRows) {
	if in.placed || in.none {
		return
	}
	in.placed = true
	for l, n := range in.counts {
		if n == 0 {
			continue
		}
		begin := s.own.seg.Word(layout.Counter(l)).Add(uint64(n)) - uint64(n)
		if !protocol.Fits(begin, uint64(n), uint64(in.lay.RowsPerExpert)) {
			in.none, in.short = true, violation{b.self, fmt.Sprintf("counter[%d] in slot %d", l, s.index), begin, fmt.Sprintf("%d less %d rows", in.lay.RowsPerExpert, n)}
			return // the ranks disagree, and their parameters say so; or it was overwritten
		}
		in.begin[l] = int32(begin)
	}
}

// announceFor announces a source's counts, once.
func (b *Buffer) announceFor(s *slot, r int) {
	in, slab := &s.remote[r].in, s.own.seg
	if b.cameFor(s, layout.Announced(r), r, s.served) {
		return
	}
	if !in.none {
		for l, n := range in.counts {
			slab.Word(in.lay.Layout(int64(l), int64(r))).Store(uint64(n))
		}
	}
	in.params.store(slab, r, s.served)
	slab.Word(layout.Announced(r)).Store(protocol.Sealed(s.served, r))
}

// ordered reports whether the order is there, and reads the source's places.
func (b *Buffer) ordered(s *slot, r int) bool {
	in, slab := &s.remote[r].in, s.own.seg
	if in.placed || in.none {
		return true
	}
	if !protocol.IsFor(s.own.rowOrder, s.served) {
		return false
	}
	in.placed = true
	in.none = !s.own.rowOrderMembers.Has(r)
	for l, n := range in.counts {
		v := slab.Word(in.lay.Layout(int64(l), int64(r))).Load()
		in.none = in.none || !fitsOffset(v, uint64(n), uint64(in.lay.RowsPerExpert))
		in.begin[l] = int32(v >> 32)
	}
	return true
}

// keepPiece puts a piece into the reorder buffer. The source's next message must not wait
// behind it: the order may be waiting for that message.
func (b *Buffer) keepPiece(r int, in *inRows, msg []byte, x *sections, h *rowsHead) bool {
	size := (int64(len(msg)) + 15) &^ 7 // its length goes before it
	if in.reorderBytes+size > 2*b.slabBytes+int64(len(msg)) {
		return false
	}
	if in.reorder == nil || in.reorder.SizeBytes() < in.reorderBytes+size {
		if err := b.growReorder(in, in.reorderBytes+size); err != nil {
			b.remote.short = fmt.Errorf("memory for rows of rank %d that wait for their places: %w", r, err)
			if h.first == 0 {
				in.op = 0 // as if it had not come: it is looked at again
			}
			return false
		}
	}
	in.reorder.Word(in.reorderBytes).Store(uint64(len(msg)))
	kept := in.reorder.Bytes(in.reorderBytes+8, int64(len(msg)))
	copy(kept[copy(kept, b.remote.lists):], msg[x.scales.Off:]) // the lists as they were checked
	in.reorderBytes += size
	b.advance(in, h)
	return true
}

func (b *Buffer) growReorder(in *inRows, n int64) error {
	grown, err := b.remote.carrier.Memory(1 << bits.Len64(uint64(n)))
	if err != nil {
		return err
	}
	if in.reorder != nil {
		copy(grown.Bytes(0, in.reorderBytes), in.reorder.Bytes(0, in.reorderBytes))
		in.reorder.Release()
	}
	in.reorder = grown
	return nil
}

// placeReordered takes the pieces that have places by now, and reports whether
// there were some.
func (b *Buffer) placeReordered() (some bool) {
	for j := range b.slots {
		s := &b.slots[j]
		for r := range b.remote.ranks.All() {
			in := &s.remote[r].in
			if in.reorderBytes == 0 || s.own == nil || in.op != s.served+1 || !b.ordered(s, r) {
				continue
			}
			if b.goneOn(s, r) {
				in.reorderBytes = 0
				continue
			}
			b.drainReorder(s, r)
			some = true
		}
	}
	return some
}

// goneOn reports whether our dispatch went on without a source that was lost:
// its rows have no place in what the caller was given, and get none afterwards.
func (b *Buffer) goneOn(s *slot, r int) bool {
	return s.op == s.served && !s.counted.Has(r) && b.out().Has(r)
}

// drainReorder goes through a source's pieces once more.
func (b *Buffer) drainReorder(s *slot, r int) {
	in := &s.remote[r].in
	end := in.reorderBytes
	in.reorderBytes, in.next, in.last = 0, 0, -1
	clear(in.cursor)
	in.terms, in.weights = in.terms[:0], in.weights[:0]
	for at := int64(0); at < end; {
		n := int64(in.reorder.Word(at).Load())
		msg := in.reorder.Bytes(at+8, n)
		h, ok := readRowsHead(b.remote.copyHead(msg), s.served)
		if x, fine := b.pieceJobs(in, &h, msg); ok && fine { // as before
			b.fanOut(s, r, &h, msg, &x)
		}
		at += (n + 15) &^ 7
	}
}

// fanOut stores a piece that was checked. The last piece ends the source's part.
func (b *Buffer) fanOut(s *slot, r int, h *rowsHead, msg []byte, x *sections) bool {
	in := &s.remote[r].in
	if !in.none && h.rows > 0 {
		b.storeRows(s, in, msg, x, int(h.rows))
		if in.params.preReduce {
			in.keepTerms(b.remote.lists, x, int(h.rows))
		}
	}
	if b.advance(in, h); in.next < in.total {
		return true
	}
	return b.finishRows(s, r)
}

// advance notes that the checked piece was taken.
func (b *Buffer) advance(in *inRows, h *rowsHead) {
	copy(in.cursor, b.remote.cursor)
	in.last = b.remote.last
	in.next += h.rows
}

// storeRows copies a piece's rows, scales and columns to where b.remote.jobs says.
func (b *Buffer) storeRows(s *slot, in *inRows, msg []byte, x *sections, rows int) {
	for i := range b.remote.jobs {
		j := &b.remote.jobs[i]
		j.Pos += in.begin[j.Expert]
	}
	to := target(s.own.seg, &in.lay)
	b.remote.target[0] = to
	b.scratch.place = device.PlaceBatch{
		X: part(msg, x.rows), Hidden: int(in.lay.RowBytes) / 2, Targets: b.remote.target[:], Jobs: b.remote.jobs,
	}
	b.kern.Place(&b.scratch.place)
	b.scratch.place.X = nil
	for i := range b.remote.jobs {
		j := &b.remote.jobs[i]
		at := int64(j.Expert)*in.lay.RowsPerExpert + int64(j.Pos)
		copy(to.SrcInfo[4*at:][:4], b.remote.lists[x.tokens.Off+4*int64(j.Token):])
	}
	if in.lay.RowType.IsFP8() {
		storeScales(&in.lay, to.Scales, part(msg, x.scales), b.remote.jobs, int64(rows))
	}
	first := int64(b.remote.jobs[0].Pos)
	for i, width := range in.lay.Columns { // flat rows lie one after another
		if width > 0 {
			copy(bytesOf(s.own.seg, in.lay.Column(i))[first*width:], part(msg, x.columns[i]))
		}
	}
}

func storeScales(lay *layout.Slab, to, from []byte, jobs []device.PlaceJob, rows int64) {
	groups := lay.Groups()
	for g := range groups {
		column := from[4*g*rows:][:4*rows]
		for i := range jobs {
			j := &jobs[i]
			at := (int64(j.Expert)*groups+g)*lay.RowsPerExpert + int64(j.Pos)
			copy(to[4*at:][:4], column[4*j.Token:])
		}
	}
}

// finishRows publishes a source's rows, as the source would have done itself.
func (b *Buffer) finishRows(s *slot, r int) bool {
	in := &s.remote[r].in
	counts, begin := in.counts, in.begin
	if in.none {
		counts, begin = nil, nil
	}
	b.publishFor(r, s.own.seg, s.served, &in.params, &in.lay, counts, begin)
	return true
}
