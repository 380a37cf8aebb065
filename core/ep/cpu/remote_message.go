package cpu

import (
	"encoding/binary"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
)

// Messages between remote ranks; docs/wire.md has the tables. All numbers are
// little-endian.
const (
	headBytes         = 16
	controlWordsBytes = headBytes + 3*8
	rowsHeadBytes     = headBytes + protocol.NumParams*8 + 16
	outputsHeadBytes  = protocol.LineBytes
	// sectionAlign and rowAlign are those of what follows a head.
	sectionAlign, rowAlign = 8, protocol.LineBytes
)

// head begins every message.
type head struct {
	kind       uint8
	epoch      uint16
	rank, slot int
	op         uint64 // of rows and outputs
}

func (h *head) put(msg []byte) {
	msg[0], msg[1] = protocol.MessageVersion, h.kind
	binary.LittleEndian.PutUint16(msg[2:], h.epoch)
	binary.LittleEndian.PutUint16(msg[4:], uint16(h.rank))
	binary.LittleEndian.PutUint16(msg[6:], uint16(h.slot))
	binary.LittleEndian.PutUint64(msg[8:], h.op)
}

func readHead(msg []byte) (h head, ok bool) {
	if len(msg) < headBytes || msg[0] != protocol.MessageVersion {
		return head{}, false
	}
	return head{
		kind: msg[1], epoch: binary.LittleEndian.Uint16(msg[2:]), rank: int(binary.LittleEndian.Uint16(msg[4:])),
		slot: int(binary.LittleEndian.Uint16(msg[6:])), op: binary.LittleEndian.Uint64(msg[8:]),
	}, true
}

// rowsHead is what a piece of rows says of itself.
type rowsHead struct {
	params      params
	total       uint32 // rows of the source for this owner, each token once
	first, rows uint32 // those of this piece
	entries     uint32 // their experts
}

func (h *rowsHead) put(msg []byte, op uint64) {
	at := msg[headBytes:]
	for i, v := range h.params.words(op) {
		binary.LittleEndian.PutUint64(at[8*i:], v)
	}
	binary.LittleEndian.PutUint64(at[8*protocol.ParamExtras:], h.params.extra)
	at = at[8*protocol.NumParams:]
	for i, v := range [...]uint32{h.total, h.first, h.rows, h.entries} {
		binary.LittleEndian.PutUint32(at[4*i:], v)
	}
}

func readRowsHead(msg []byte, op uint64) (h rowsHead, ok bool) {
	if len(msg) < rowsHeadBytes {
		return rowsHead{}, false
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(msg[headBytes+8*i:]) }
	h.params = paramsOf(word(protocol.ParamFlags))
	p := &h.params
	p.maxTokens, p.hidden, p.experts = word(protocol.ParamMaxTokens), word(protocol.ParamHidden), word(protocol.ParamExperts)
	p.topK, p.tokens, p.extra = word(protocol.ParamTopK), word(protocol.ParamTokens), word(protocol.ParamExtras)
	at := msg[headBytes+8*protocol.NumParams:]
	for i, v := range [...]*uint32{&h.total, &h.first, &h.rows, &h.entries} {
		*v = binary.LittleEndian.Uint32(at[4*i:])
	}
	return h, word(protocol.ParamOp) == op+1 && p.known(word(protocol.ParamFlags)) && p.topK >= 1 && p.topK <= protocol.MaxTopK && p.tokens <= p.mostTokens() &&
		uint64(h.total) <= min(p.tokens, p.maxTokens) && h.rows <= h.total && h.first <= h.total-h.rows &&
		uint64(h.entries) <= uint64(h.rows)*p.topK && (h.rows > 0 || h.total == 0)
}

// known reports whether every bit of the flags from which params were read has a meaning
// here.
func (p *params) known(flags uint64) bool {
	return uint64(p.flags()) == flags && (p.flat || (p.extra == 0 && !p.noRouting)) && !(p.flat && p.preReduce)
}

// sections are where the parts of a piece of rows lie in its message.
type sections struct {
	counts  layout.Region // uint32 [L], in the first piece: rows per local expert
	tokens  layout.Region // int32 [n], ascending
	lens    layout.Region // uint8 [n]: experts of each row
	entries layout.Region // uint16 [entries]: local experts, row after row
	weights layout.Region // float32 [entries], if pre-reduced
	scales  layout.Region // [words, n] of 4 bytes
	columns [layout.NumColumns]layout.Region
	rows    layout.Region // [n, row]
	size    int64         // of the message
}

// sectionsOf places the parts of n rows. Flat rows have no experts.
func sectionsOf(slab *layout.Slab, preReduce, first bool, n, entries int64) (x sections) {
	x.size = rowsHeadBytes
	take := func(align, bytes int64) layout.Region {
		off := (x.size + align - 1) &^ (align - 1)
		x.size = off + bytes
		return layout.Region{Off: off, Bytes: bytes}
	}
	if first {
		x.counts = take(sectionAlign, 4*slab.LocalExperts)
	}
	x.tokens = take(sectionAlign, 4*n)
	if !slab.Flat {
		x.lens = take(sectionAlign, n)
		x.entries = take(sectionAlign, 2*entries)
	}
	if preReduce {
		x.weights = take(sectionAlign, 4*entries)
	}
	x.scales = take(sectionAlign, 4*n*slab.Groups())
	for i, width := range slab.Columns {
		if width > 0 {
			x.columns[i] = take(sectionAlign, n*width)
		}
	}
	if n > 0 {
		x.rows = take(rowAlign, n*slab.RowBytes)
	}
	return x
}

// rowsFor is how many rows certainly fit in one message. preReduceK is K if they are
// pre-reduced, else 0.
func rowsFor(slab *layout.Slab, preReduceK, longest int64) int64 {
	slack := rowAlign + (5+layout.NumColumns)*int64(sectionAlign)
	fixed := rowsHeadBytes + 4*slab.LocalExperts + slack
	each := slab.RowBytes + 4*slab.Groups() + slab.ColumnBytes() + 4
	switch {
	case preReduceK > 0:
		each += 1 + preReduceK*(2+4) // one expert may come twice
	case !slab.Flat:
		each += 1 + 2*min(slab.LocalExperts, protocol.MaxTopK)
	}
	return max(longest-fixed, 0) / each
}

// outputsFor is how many rows of outputs fit in one message.
func outputsFor(slab *layout.Slab, longest int64) int64 {
	if slab.OneWay {
		return protocol.MaxRows // there are none
	}
	return max(longest-outputsHeadBytes, 0) / slab.OutputBytes()
}

// part is a section's bytes in its message.
func part(msg []byte, r layout.Region) []byte { return msg[r.Off : r.Off+r.Bytes : r.Off+r.Bytes] }
