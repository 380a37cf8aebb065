package ep

import (
	"sync/atomic"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/transport"
)

// peer is one rank's control words, this rank's own included.
type peer struct {
	open   []*atomic.Uint64 // [slots]: (op + 1, slab id) that may be written
	yReady []*atomic.Uint64 // [slots]: expert outputs that may be read
}

func newPeer(control transport.Segment, slots int) peer {
	p := peer{open: make([]*atomic.Uint64, slots), yReady: make([]*atomic.Uint64, slots)}
	for j := range slots {
		p.open[j] = control.Word(layout.Open(j))
		p.yReady[j] = control.Word(layout.YReady(j))
	}
	return p
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
)

// Bits of the flags word of a params record.
const (
	flagFP8  = 1
	flagMore = 2
	// The scale format is a number of two bits.
	scalesShift, scalesMask = 2, 3
)

// params is one rank's view of an operation.
type params struct {
	maxTokens, hidden, experts, topK, tokens uint64
	fp8, more                                bool
	scales                                   device.ScaleFormat
}

func (p *params) store(slab transport.Segment, rank int, op uint64) {
	at := layout.Params(rank)
	flags := uint64(p.scales) << scalesShift
	if p.fp8 {
		flags |= flagFP8
	}
	if p.more {
		flags |= flagMore
	}
	for i, v := range [...]uint64{op + 1, p.maxTokens, p.hidden, p.experts, flags, p.topK, p.tokens} {
		slab.Word(at + int64(i)*8).Store(v)
	}
}

func loadParams(slab transport.Segment, rank int) (op uint64, p params) {
	at := layout.Params(rank)
	word := func(i int64) uint64 { return slab.Word(at + i*8).Load() }
	flags := word(paramFlags)
	return word(paramOp) - 1, params{
		maxTokens: word(paramMaxTokens), hidden: word(paramHidden), experts: word(paramExperts),
		topK: word(paramTopK), tokens: word(paramTokens),
		fp8: flags&flagFP8 != 0, more: flags&flagMore != 0,
		scales: device.ScaleFormat(flags >> scalesShift & scalesMask),
	}
}

// differs names the first parameter on which two ranks must agree and do not.
func (p *params) differs(o *params) (name string, mine, theirs any, ok bool) {
	switch {
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
	}
	return "", nil, nil, false
}

func dtypeName(fp8 bool) string {
	if fp8 {
		return "fp8"
	}
	return "bf16"
}
