package chaos

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/moewire/moewire/core/ep/protocol"
)

// shape of one operation.
type shape struct {
	ranks, maxTokens, hidden, experts, topk int
	fp8                                     bool
	flat                                    bool // rows of ranks, not of experts
}

func (s *shape) rowType() protocol.DType {
	if s.fp8 {
		return protocol.FP8
	}
	return protocol.BF16
}

func (s *shape) owner(expert int64) int { return int(expert) / (s.experts / s.ranks) }

// Patterns of dispatches and combines.
const (
	dc = iota
	ddcc
	dcc
	dRelease
	hooks  // d d c c, each in two phases
	masked // d c, and some pairs of ranks leave each other out
	numPatterns
)

// step is one pattern. All ranks derive the same one from seed, term and
// number, and with it the inputs of all ranks.
type step struct {
	shape
	pattern int
	apart   []uint64 // by rank: the ranks that it leaves out
	seed    uint64
	pause   bool
}

func stepOf(seed, term, n uint64, ranks int) *step {
	r := rand.New(rand.NewPCG(seed^term<<40, n))
	st := &step{pattern: r.IntN(numPatterns), seed: r.Uint64(), apart: make([]uint64, ranks), pause: r.IntN(16) == 0}
	st.shape = shape{
		ranks: ranks, maxTokens: 1 + r.IntN(10), hidden: 8 << r.IntN(5),
		experts: ranks * (1 + r.IntN(3)), topk: 1 + r.IntN(4), fp8: r.IntN(3) == 0, flat: r.IntN(3) == 0,
	}
	if st.fp8 {
		st.hidden = 128 * (1 + r.IntN(2))
	}
	for st.pattern == masked && r.IntN(3) != 0 {
		if a, b := r.IntN(ranks), r.IntN(ranks); a != b {
			st.apart[a] |= 1 << b
			st.apart[b] |= 1 << a
		}
	}
	return st
}

// input is one rank's part of one operation.
type input struct {
	x       []byte
	topk    []int64
	weights []float32
	tokens  int
}

// inputs returns what every rank brings to the d-th dispatch of the step.
func (st *step) inputs(d int) []input {
	ins := make([]input, st.ranks)
	for i := range ins {
		r := rand.New(rand.NewPCG(st.seed, uint64(d*st.ranks+i)))
		ins[i] = input{tokens: r.IntN(st.maxTokens + 1)}
		ins[i].draw(r, &st.shape)
	}
	return ins
}

func (in *input) draw(r *rand.Rand, s *shape) {
	in.x = make([]byte, in.tokens*s.hidden*2)
	for i := 0; i < len(in.x); i += 8 { // bf16 of 2^-8 to 2^7, both signs
		v := r.Uint64()&0x83ff_83ff_83ff_83ff + 0x3c00_3c00_3c00_3c00
		binary.LittleEndian.PutUint64(in.x[i:], v)
	}
	in.topk, in.weights = make([]int64, in.tokens*s.topk), make([]float32, in.tokens*s.topk)
	for i := range in.topk {
		in.topk[i], in.weights[i] = int64(r.IntN(s.experts+1))-1, r.Float32()
	}
}
