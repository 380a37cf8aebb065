package cpu

import (
	"fmt"
	"sync/atomic"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/ep/suspicion"
	"github.com/moewire/moewire/core/group/domain"
)

// openWord holds (op + 1, slab id) that may be written in a slot of a rank.
func openWord(p *suspicion.Peer, slot int) *atomic.Uint64 { return p.Control.Word(layout.Open(slot)) }

// yReadyWord says which expert outputs of a slot of a rank may be read.
func yReadyWord(p *suspicion.Peer, slot int) *atomic.Uint64 {
	return p.Control.Word(layout.YReady(slot))
}

// params is one rank's view of an operation.
type params struct {
	maxTokens, hidden, experts, topK, tokens uint64
	extra                                    uint64 // flat: the widths of the extra columns
	rowType, outputType                      protocol.DType
	use                                      protocol.Use
	hasMore, flat, noRouting                 bool
	preReduce                                bool // its combine is pre-reduced
}

// packExtra puts the widths of the extra columns in one word.
func packExtra(a *ep.DispatchArgs) (packed uint64) {
	if !a.Flat {
		return 0
	}
	for i, n := range a.ExtraRowBytes {
		packed |= uint64(n) << (protocol.ExtraBits * i)
	}
	return packed
}

// recordWords are the words of a record without the widths of extra columns.
type recordWords = [protocol.ParamExtras]uint64

func (p *params) words(op uint64) recordWords {
	return recordWords{op + 1, p.maxTokens, p.hidden, p.experts, uint64(p.flags()), p.topK, p.tokens}
}

func (p *params) flags() protocol.Flags {
	bit := protocol.Flags.Bit
	return p.rowType.Flags() | p.outputType.Flags() | p.use.Flags() | bit(protocol.FlagHasMore, p.hasMore) |
		bit(protocol.FlagFlat, p.flat) | bit(protocol.FlagNoRouting, p.noRouting) | bit(protocol.FlagPreReduce, p.preReduce)
}

func (p *params) store(slab domain.Segment, rank int, op uint64) {
	at, words := layout.Params(rank), p.words(op)
	words[protocol.ParamOp] |= sealOf(rank, &words, p.extra) << sealShift
	for i, v := range words {
		protocol.Ensure(slab.Word(at+int64(i)*8), v)
	}
	if p.flat {
		protocol.Ensure(slab.Word(at+protocol.ParamExtras*8), p.extra)
	}
}

// The first word of a record carries a check of all of it in its upper bits, which no
// operation's number reaches.
const sealShift = 48

func sealOf(rank int, words *recordWords, extra uint64) uint64 {
	sum := uint64(rank) + 1
	for _, w := range words {
		sum = mix(sum ^ w)
	}
	return mix(sum^extra) >> sealShift
}

func mix(v uint64) uint64 {
	v *= 0x9e3779b97f4a7c15
	return v ^ v>>32
}

// loadParams reads the record of a source once. Not ok: no rank has stored it so.
func loadParams(slab domain.Segment, rank int) (op uint64, p params, ok bool) {
	at, words := layout.Params(rank), recordWords{}
	for i := range words {
		words[i] = slab.Word(at + int64(i)*8).Load()
	}
	extra := uint64(0)
	if words[protocol.ParamFlags]&protocol.FlagFlat != 0 {
		extra = slab.Word(at + protocol.ParamExtras*8).Load()
	}
	number := words[protocol.ParamOp]
	words[protocol.ParamOp] &= 1<<sealShift - 1
	ok = number == 0 || sealOf(rank, &words, extra) == number>>sealShift
	p = paramsOf(words[protocol.ParamFlags])
	p.extra = extra
	p.maxTokens, p.hidden, p.experts = words[protocol.ParamMaxTokens], words[protocol.ParamHidden], words[protocol.ParamExperts]
	p.topK, p.tokens = words[protocol.ParamTopK], words[protocol.ParamTokens]
	return words[protocol.ParamOp] - 1, p, ok
}

// paramsOf returns the params that a flags word says.
func paramsOf(flags uint64) (p params) {
	p.rowType, p.outputType = protocol.Flags(flags).DTypes()
	p.use = protocol.Flags(flags).Use()
	p.hasMore, p.flat = flags&protocol.FlagHasMore != 0, flags&protocol.FlagFlat != 0
	p.noRouting, p.preReduce = flags&protocol.FlagNoRouting != 0, flags&protocol.FlagPreReduce != 0
	return p
}

// extraBytes is the width of an extra column.
func (p *params) extraBytes(i int) uint64 {
	return p.extra >> (protocol.ExtraBits * i) & protocol.MaxExtraBytes
}

// shape is what lies in a slab of such an operation.
func (p *params) shape(ranks int) layout.Shape {
	s := layout.Shape{
		MaxTokens: int64(p.maxTokens), Hidden: int64(p.hidden), NumExperts: int64(p.experts), NumRanks: int64(ranks),
		RowType: p.rowType, OutputType: p.outputType, Flat: p.flat, OneWay: p.use.OneWay(),
	}
	if !p.flat {
		return s
	}
	if !p.noRouting {
		s.Columns[layout.ColumnTopkIdx], s.Columns[layout.ColumnTopkWeights] = 8*int64(p.topK), 4*int64(p.topK)
	}
	for i := range protocol.NumExtras {
		s.Columns[layout.ColumnExtra+i] = int64(p.extraBytes(i))
	}
	return s
}

// differs names the first parameter on which two ranks must agree and do not.
func (p *params) differs(o *params) (name string, mine, theirs any, ok bool) {
	switch {
	case p.use != o.use:
		return "the call", p.use, o.use, true
	case p.flat != o.flat:
		return "form", formName(p.flat), formName(o.flat), true
	case p.use.OneWay() && (p.experts != o.experts || p.hidden != o.hidden || p.extra != o.extra):
		return p.oneWayDiffers(o)
	case p.maxTokens != o.maxTokens:
		return "num_max_tokens_per_rank", p.maxTokens, o.maxTokens, true
	case p.hidden != o.hidden:
		return "hidden", p.hidden, o.hidden, true
	case p.experts != o.experts:
		return "num_experts", p.experts, o.experts, true
	}
	if name, mine, theirs, bad := protocol.Differ(p.rowType, o.rowType, p.outputType, o.outputType); bad {
		return name, mine, theirs, true
	}
	return p.columnDiffers(o)
}

// columnDiffers looks at what flat rows bring along.
func (p *params) columnDiffers(o *params) (name string, mine, theirs any, ok bool) {
	switch {
	case !p.flat: // the other is not flat either
		return "", nil, nil, false
	case p.noRouting != o.noRouting:
		return "sending of topk_idx and topk_weights", !p.noRouting, !o.noRouting, true
	case !p.noRouting && p.topK != o.topK:
		return "num_topk", p.topK, o.topK, true
	}
	for i := range protocol.NumExtras {
		if a, b := p.extraBytes(i), o.extraBytes(i); a != b {
			return fmt.Sprintf("bytes per row of extra[%d]", i), a, b, true
		}
	}
	return "", nil, nil, false
}

func (p *params) same(o *params) bool {
	_, _, _, bad := p.differs(o)
	return !bad
}

func formName(flat bool) string {
	if flat {
		return "flat"
	}
	return "packed"
}
