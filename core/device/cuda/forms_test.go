package cuda

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/internal/testenv"
)

// form is a shape, and what is sent in it.
type form struct {
	name                           string
	ranks                          int
	tokens, hidden, experts        int64
	topK                           int
	flags                          protocol.Flags
	value                          func(*rand.Rand) uint16
	pick                           func(rng *rand.Rand, experts int64, at int) int64
	allTokens, noTokens, specially bool
	extra                          int64 // bytes of an extra column of flat rows
	ready                          func(*group)
}

const flat = protocol.FlagFlat | protocol.FlagOrdered

// edgy is any bit pattern, an edge often.
func edgy(rng *rand.Rand) uint16 {
	if rng.IntN(4) == 0 {
		return edges[rng.IntN(len(edges))]
	}
	return uint16(rng.Uint32())
}

// rarelyEdgy has mostly finite blocks, of all sizes.
func rarelyEdgy(rng *rand.Rand) uint16 {
	if rng.IntN(300) == 0 {
		return edges[rng.IntN(len(edges))]
	}
	return uint16(rng.Uint32()) &^ 0x4000 // below 2
}

func noExpert(*rand.Rand, int64, int) int64               { return -1 }
func lastExpert(_ *rand.Rand, experts int64, _ int) int64 { return experts - 1 }
func eachOnce(_ *rand.Rand, experts int64, at int) int64  { return int64(at) % experts }
func rarely(rng *rand.Rand, experts int64, at int) int64 {
	if rng.IntN(4) > 0 {
		return -1
	}
	return anyExpert(rng, experts, at)
}

var forms = []form{
	{name: "float32 outputs", ranks: 2, tokens: 9, hidden: 256, experts: 4, topK: 3, flags: protocol.FlagFP32Outputs},
	{name: "float32 outputs, fp8", ranks: 3, tokens: 5, hidden: 384, experts: 6, topK: 4, flags: protocol.FlagFP32Outputs | protocol.FlagFP8},
	{name: "outputs that are no numbers", ranks: 2, tokens: 9, hidden: 64, experts: 4, topK: 2, specially: true},
	{name: "float32 outputs that are no numbers", ranks: 2, tokens: 9, hidden: 64, experts: 4, topK: 2, flags: protocol.FlagFP32Outputs, specially: true},
	{name: "any bits", ranks: 2, tokens: 9, hidden: 64, experts: 4, topK: 2, value: edgy},
	{name: "fp8 of any bits", ranks: 2, tokens: 6, hidden: 256, experts: 4, topK: 2, flags: protocol.FlagFP8, value: edgy},
	{name: "fp8 of most bits", ranks: 2, tokens: 6, hidden: 256, experts: 4, topK: 2, flags: protocol.FlagFP8, value: rarelyEdgy},
	{name: "round_scale", ranks: 2, tokens: 6, hidden: 384, experts: 4, topK: 2, flags: protocol.FlagFP8 | protocol.FlagPow2},
	{name: "round_scale of most bits", ranks: 1, tokens: 6, hidden: 640, experts: 4, topK: 2, flags: protocol.FlagFP8 | protocol.FlagPow2, value: rarelyEdgy},
	{name: "UE8M0", ranks: 2, tokens: 6, hidden: 512, experts: 4, topK: 2, flags: protocol.FlagFP8 | protocol.FlagUE8M0},
	{name: "UE8M0 of most bits", ranks: 2, tokens: 4, hidden: 1536, experts: 4, topK: 2, flags: protocol.FlagFP8 | protocol.FlagUE8M0, value: rarelyEdgy},
	{name: "UE8M0 of any bits", ranks: 2, tokens: 4, hidden: 512, experts: 4, topK: 2, flags: protocol.FlagFP8 | protocol.FlagUE8M0, value: edgy},
	{name: "hidden 8", ranks: 2, tokens: 9, hidden: 8, experts: 4, topK: 2},
	{name: "hidden 24", ranks: 2, tokens: 9, hidden: 24, experts: 4, topK: 2, flags: protocol.FlagFP32Outputs},
	{name: "hidden 520", ranks: 2, tokens: 5, hidden: 520, experts: 4, topK: 2},
	{name: "hidden 1032", ranks: 2, tokens: 5, hidden: 1032, experts: 4, topK: 3, flags: protocol.FlagFP32Outputs},
	{name: "fp8 hidden 128", ranks: 2, tokens: 9, hidden: 128, experts: 4, topK: 2, flags: protocol.FlagFP8},
	{name: "fp8 hidden 1152", ranks: 2, tokens: 4, hidden: 1152, experts: 4, topK: 2, flags: protocol.FlagFP8},
	{name: "topk 64", ranks: 2, tokens: 5, hidden: 16, experts: 64, topK: 64},
	{name: "topk 64, each expert once", ranks: 2, tokens: 5, hidden: 128, experts: 64, topK: 64, flags: protocol.FlagFP8, pick: eachOnce},
	{name: "topk 64 of one expert", ranks: 2, tokens: 4, hidden: 16, experts: 2, topK: 64},
	{name: "no tokens", ranks: 2, tokens: 4, hidden: 16, experts: 4, topK: 2, noTokens: true},
	{name: "no selections", ranks: 2, tokens: 4, hidden: 16, experts: 4, topK: 2, pick: noExpert},
	{name: "few selections", ranks: 2, tokens: 16, hidden: 16, experts: 8, topK: 4, pick: rarely},
	{name: "all at one expert", ranks: 3, tokens: 30, hidden: 16, experts: 6, topK: 1, pick: lastExpert, allTokens: true},
	{name: "all twice at one expert", ranks: 3, tokens: 30, hidden: 16, experts: 6, topK: 2, pick: lastExpert, allTokens: true},
	{name: "many experts", ranks: 2, tokens: 3, hidden: 8, experts: 4096, topK: 8},
	{name: "an expert per rank", ranks: 5, tokens: 4, hidden: 16, experts: 5, topK: 3},
	{name: "pre-reduced", ranks: 3, tokens: 9, hidden: 64, experts: 6, topK: 5, flags: protocol.FlagPreReduce},
	{name: "pre-reduced, float32 outputs", ranks: 3, tokens: 9, hidden: 64, experts: 6, topK: 5, flags: protocol.FlagPreReduce | protocol.FlagFP32Outputs},
	{name: "pre-reduced, no numbers", ranks: 2, tokens: 9, hidden: 64, experts: 4, topK: 3, flags: protocol.FlagPreReduce, specially: true},
	{name: "pre-reduced, float32, no numbers", ranks: 2, tokens: 9, hidden: 64, experts: 4, topK: 3, flags: protocol.FlagPreReduce | protocol.FlagFP32Outputs, specially: true},
	{name: "pre-reduced, topk 64 of one expert", ranks: 2, tokens: 4, hidden: 16, experts: 2, topK: 64, flags: protocol.FlagPreReduce},
	{name: "pre-reduced, in order, many ranks", ranks: 9, tokens: 2, hidden: 8, experts: 18, topK: 7, flags: protocol.FlagPreReduce | protocol.FlagOrdered},
	{name: "in order", ranks: 3, tokens: 30, hidden: 16, experts: 6, topK: 3, flags: protocol.FlagOrdered},
	{name: "in order, fp8", ranks: 2, tokens: 9, hidden: 256, experts: 4, topK: 2, flags: protocol.FlagOrdered | protocol.FlagFP8},
	{name: "in order, no tokens", ranks: 2, tokens: 4, hidden: 16, experts: 4, topK: 2, flags: protocol.FlagOrdered, noTokens: true},
	{name: "in order, few selections", ranks: 2, tokens: 16, hidden: 16, experts: 8, topK: 4, flags: protocol.FlagOrdered, pick: rarely},
	{name: "in order, all twice at one expert", ranks: 3, tokens: 30, hidden: 16, experts: 6, topK: 2, flags: protocol.FlagOrdered, pick: lastExpert, allTokens: true},
	{name: "in order, many ranks", ranks: 9, tokens: 2, hidden: 8, experts: 18, topK: 4, flags: protocol.FlagOrdered},
	{name: "flat", ranks: 3, tokens: 9, hidden: 64, experts: 12, topK: 5, flags: flat, extra: 48},
	{name: "flat, fp8, float32 outputs", ranks: 2, tokens: 9, hidden: 256, experts: 4, topK: 2, flags: flat | protocol.FlagFP8 | protocol.FlagFP32Outputs, extra: 12},
	{name: "flat, one rank, no numbers", ranks: 1, tokens: 9, hidden: 64, experts: 4, topK: 3, flags: flat, specially: true},
	{name: "flat, no numbers", ranks: 3, tokens: 9, hidden: 64, experts: 6, topK: 3, flags: flat, specially: true, extra: 7},
	{name: "flat, no routing", ranks: 2, tokens: 9, hidden: 16, experts: 8, topK: 4, flags: flat | protocol.FlagNoRouting},
	{name: "flat, few selections", ranks: 2, tokens: 16, hidden: 16, experts: 8, topK: 4, flags: flat, pick: rarely, extra: 1},
	{name: "flat, no tokens", ranks: 2, tokens: 4, hidden: 16, experts: 4, topK: 2, flags: flat, noTokens: true},
	{name: "flat, topk 64", ranks: 3, tokens: 5, hidden: 16, experts: 66, topK: 64, flags: flat},
	{name: "flat, many ranks", ranks: 9, tokens: 2, hidden: 8, experts: 18, topK: 4, flags: flat, extra: 300},
	{name: "many ranks", ranks: 9, tokens: 2, hidden: 8, experts: 18, topK: 4},
}

// TestForms runs every form twice, in random order of all threads, and
// compares it with plain loops and with the CPU's kernels.
func TestForms(t *testing.T) {
	emu := driver(t)
	seed := testenv.Seed(t)
	for i, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			emu.Schedule(rng.Uint64(), 32, 6+f.ranks) // waits of all ranks are resident together
			f.run(t, rng)
		})
	}
}

func (f *form) run(t *testing.T, rng *rand.Rand) {
	s := layout.Shape{
		MaxTokens: f.tokens, Hidden: f.hidden, NumExperts: f.experts, NumRanks: int64(f.ranks),
	}
	s.RowType, s.OutputType = f.flags.DTypes()
	s.Flat, s.Columns = f.flags&protocol.FlagFlat != 0, flatColumns(f.topK, f.flags, f.extra)
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	g := newGroup(t, f.ranks, 2, slabs.SizeBytes)
	if f.ready != nil {
		f.ready(g)
	}
	if f.value != nil {
		g.value = f.value
	}
	if f.pick != nil {
		g.pick = f.pick
	}
	if f.allTokens {
		g.fewest = int(f.tokens)
	}
	for i := range 2 {
		o := g.random(rng, s, f.topK, f.flags, i%2)
		if f.noTokens {
			o.empty()
		}
		o.special = f.specially
		g.exchange(rng, o, &slabs)
	}
}

// empty takes the tokens of all ranks away.
func (o *op) empty() {
	for r := range o.tokens {
		o.tokens[r], o.calls[r].NumTokens = 0, 0
		o.x[r], o.ids[r], o.kept[r], o.w[r], o.outs[r] = nil, nil, nil, nil, nil
	}
}
