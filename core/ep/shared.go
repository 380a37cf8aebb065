package ep

import (
	"fmt"
	"sync/atomic"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/transport"
)

// peer is one rank as this rank sees it, this rank itself included. The zero
// value is an absent rank, which is in no member set of this rank.
type peer struct {
	proc    transport.Process
	control transport.Segment
	remote  bool // reached by messages: control is a page of ours
}

func newPeer(dom transport.Domain, rank int) peer {
	p := peer{proc: dom.Process(rank), control: dom.Control(rank)}
	if remote := dom.Remote(); remote != nil {
		p.remote = remote.Ranks().Has(rank)
	}
	return p
}

// open holds (op + 1, slab id) that may be written in a slot.
func (p *peer) open(slot int) *atomic.Uint64 { return p.control.Word(layout.Open(slot)) }

// yReady says which expert outputs of a slot may be read.
func (p *peer) yReady(slot int) *atomic.Uint64 { return p.control.Word(layout.YReady(slot)) }

// waitsFor has one bit for each rank that the peer waits for.
func (p *peer) waitsFor() *atomic.Uint64 { return p.control.Word(layout.WaitsFor()) }

// since is when the wait that waitsFor shows began.
func (p *peer) since() *atomic.Uint64 { return p.control.Word(layout.Since()) }

// beat advances while the peer waits.
func (p *peer) beat() *atomic.Uint64 { return p.control.Word(layout.Beat()) }

// quiesced is one more than the last epoch in which the peer writes nothing more.
func (p *peer) quiesced() *atomic.Uint64 { return p.control.Word(layout.Quiesced()) }

// isQuiesced reports whether the rank is known to write nothing more in an epoch:
// its process has ended, or its buffer says so, or it is remote and cannot write itself.
func (p *peer) isQuiesced(epoch uint16) bool { return p.remote || p.ended(epoch) }

// maxQuiesced is for the last epoch that there can be.
const maxQuiesced = 1 << 16

func (p *peer) ended(epoch uint16) bool {
	if p.proc.Lost() != nil {
		return true
	}
	quiesced := p.quiesced().Load() // a wild one promises nothing
	return quiesced > uint64(epoch) && quiesced <= maxQuiesced
}

// Indices of the words in a params record. They are written before arrive
// and read after it, so that a mismatch can be explained on both sides.
const (
	paramOp = iota
	paramMaxTokens
	paramHidden
	paramExperts
	paramFlags
	paramTopK
	paramTokens
	paramExtra
)

// Bits of the flags word of a params record.
const (
	flagFP8     = 1
	flagHasMore = 2
	// The scale format is a number of two bits.
	scalesShift, scalesMask = 2, 3
	flagFP32Outputs         = 1 << 4
	flagFlat                = 1 << 5
	flagNoRouting           = 1 << 6
	flagPreReduce           = 1 << 7
)

// params is one rank's view of an operation.
type params struct {
	maxTokens, hidden, experts, topK, tokens   uint64
	extra                                      uint64 // flat: 16 bits of width per column
	fp8, hasMore, fp32Outputs, flat, noRouting bool
	preReduce                                  bool // its combine is pre-reduced
	scales                                     device.ScaleFormat
}

// packExtra puts the widths of the extra columns in one word.
func packExtra(a *DispatchArgs) (packed uint64) {
	if !a.Flat {
		return 0
	}
	for i, n := range a.ExtraRowBytes {
		packed |= uint64(n) << (16 * i)
	}
	return packed
}

// words is the record of an operation but for the widths of extra columns.
func (p *params) words(op uint64) [paramExtra]uint64 {
	flags := uint64(p.scales) << scalesShift
	if p.fp8 {
		flags |= flagFP8
	}
	if p.hasMore {
		flags |= flagHasMore
	}
	if p.fp32Outputs {
		flags |= flagFP32Outputs
	}
	if p.flat {
		flags |= flagFlat
	}
	if p.noRouting {
		flags |= flagNoRouting
	}
	if p.preReduce {
		flags |= flagPreReduce
	}
	return [...]uint64{op + 1, p.maxTokens, p.hidden, p.experts, flags, p.topK, p.tokens}
}

func (p *params) store(slab transport.Segment, rank int, op uint64) {
	at, words := layout.Params(rank), p.words(op)
	words[paramOp] |= sealOf(rank, &words, p.extra) << sealShift
	for i, v := range words {
		ensure(slab.Word(at+int64(i)*8), v)
	}
	if p.flat {
		ensure(slab.Word(at+paramExtra*8), p.extra)
	}
}

// The first word of a record carries a check of all of it in its upper bits, which no
// operation's number reaches.
const sealShift = 48

func sealOf(rank int, words *[paramExtra]uint64, extra uint64) uint64 {
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

// ensure stores a value that is not there yet. It is for words that no other rank
// writes at the same time. Most of them keep their value from operation to operation,
// and a store would take the cache line away from every rank that reads it.
func ensure(w *atomic.Uint64, v uint64) {
	if w.Load() != v {
		w.Store(v)
	}
}

// loadParams reads the record of a source once. Not ok: no rank has stored it so.
func loadParams(slab transport.Segment, rank int) (op uint64, p params, ok bool) {
	at, words := layout.Params(rank), [paramExtra]uint64{}
	for i := range words {
		words[i] = slab.Word(at + int64(i)*8).Load()
	}
	extra := uint64(0)
	if words[paramFlags]&flagFlat != 0 {
		extra = slab.Word(at + paramExtra*8).Load()
	}
	number := words[paramOp]
	words[paramOp] &= 1<<sealShift - 1
	ok = number == 0 || sealOf(rank, &words, extra) == number>>sealShift
	p = paramsOf(words[paramFlags])
	p.extra = extra
	p.maxTokens, p.hidden, p.experts = words[paramMaxTokens], words[paramHidden], words[paramExperts]
	p.topK, p.tokens = words[paramTopK], words[paramTokens]
	return words[paramOp] - 1, p, ok
}

// paramsOf returns the params that a flags word says.
func paramsOf(flags uint64) params {
	return params{
		fp8: flags&flagFP8 != 0, hasMore: flags&flagHasMore != 0, fp32Outputs: flags&flagFP32Outputs != 0,
		flat: flags&flagFlat != 0, noRouting: flags&flagNoRouting != 0,
		preReduce: flags&flagPreReduce != 0,
		scales:    device.ScaleFormat(flags >> scalesShift & scalesMask),
	}
}

// shape is what lies in a slab of such an operation.
func (p *params) shape(ranks int) layout.Shape {
	s := layout.Shape{
		MaxTokens: int64(p.maxTokens), Hidden: int64(p.hidden), NumExperts: int64(p.experts), NumRanks: int64(ranks),
		FP8: p.fp8, UE8M0: p.scales == device.ScalesUE8M0, FP32Outputs: p.fp32Outputs, Flat: p.flat,
	}
	if !p.flat {
		return s
	}
	if !p.noRouting {
		s.Columns[layout.ColumnTopkIdx], s.Columns[layout.ColumnTopkWeights] = 8*int64(p.topK), 4*int64(p.topK)
	}
	for i := range layout.NumExtras {
		s.Columns[layout.ColumnExtra+i] = int64(p.extra >> (16 * i) & layout.MaxExtraBytes)
	}
	return s
}

// differs names the first parameter on which two ranks must agree and do not.
func (p *params) differs(o *params) (name string, mine, theirs any, ok bool) {
	switch {
	case p.flat != o.flat:
		return "form", formName(p.flat), formName(o.flat), true
	case p.maxTokens != o.maxTokens:
		return "num_max_tokens_per_rank", p.maxTokens, o.maxTokens, true
	case p.hidden != o.hidden:
		return "hidden", p.hidden, o.hidden, true
	case p.experts != o.experts:
		return "num_experts", p.experts, o.experts, true
	case p.fp8 != o.fp8:
		return "dtype", dtypeName(p.fp8), dtypeName(o.fp8), true
	case p.scales != o.scales:
		return "the format of fp8 scales", p.scales, o.scales, true
	case p.fp32Outputs != o.fp32Outputs:
		return "output dtype", OutputName(p.fp32Outputs), OutputName(o.fp32Outputs), true
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
	for i := range layout.NumExtras {
		if a, b := p.extra>>(16*i)&layout.MaxExtraBytes, o.extra>>(16*i)&layout.MaxExtraBytes; a != b {
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

func dtypeName(fp8 bool) string {
	if fp8 {
		return "fp8"
	}
	return "bf16"
}

// OutputName is the type of expert outputs, in words.
func OutputName(fp32Outputs bool) string {
	if fp32Outputs {
		return "float32"
	}
	return "bf16"
}
