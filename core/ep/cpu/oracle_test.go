package cpu_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sort"
)

// The oracle is written from the definition, one value at a time, and shares
// no code with the library.

func bf16ToFloat(b []byte) float32 {
	return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)
}

// floatToBF16 rounds to nearest even by looking at both neighbours.
func floatToBF16(f float32) uint16 {
	if f != f {
		return 0x7fc0
	}
	down := uint16(math.Float32bits(f) >> 16)
	up := down + 1
	rest := math.Float32bits(f) & 0xffff
	if rest > 0x8000 || (rest == 0x8000 && down&1 == 1) {
		return up
	}
	return down
}

// input is one rank's part of one operation.
type input struct {
	x       []byte
	topk    []int64
	weights []float32
	tokens  int
}

// routing draws expert ids for one token.
type routing func(r *rand.Rand, k, experts int) []int64

func uniform(r *rand.Rand, k, experts int) []int64 {
	perm := r.Perm(experts)
	ids := make([]int64, k)
	for i := range ids {
		ids[i] = int64(perm[i%experts]) // repeats an expert when k > experts
	}
	return ids
}

func skewed(r *rand.Rand, k, experts int) []int64 {
	ids := make([]int64, k)
	for i := range ids {
		ids[i] = int64(float64(experts) * math.Pow(r.Float64(), 4)) // repeats happen
	}
	return ids
}

func allToOne(_ *rand.Rand, k, experts int) []int64 {
	ids := make([]int64, k)
	for i := range ids {
		ids[i] = int64(experts - 1)
	}
	return ids
}

func nothing(_ *rand.Rand, k, _ int) []int64 {
	ids := make([]int64, k)
	for i := range ids {
		ids[i] = -1
	}
	return ids
}

func someMissing(r *rand.Rand, k, experts int) []int64 {
	ids := uniform(r, k, experts)
	for i := range ids {
		if r.IntN(3) == 0 {
			ids[i] = -1
		}
	}
	return ids
}

var routings = []routing{uniform, skewed, allToOne, nothing, someMissing}

func randomInput(r *rand.Rand, tokens, hidden, k, experts int, route routing) input {
	in := input{tokens: tokens, x: make([]byte, tokens*hidden*2), topk: make([]int64, 0, tokens*k)}
	for i := 0; i < len(in.x); i += 2 {
		binary.LittleEndian.PutUint16(in.x[i:], floatToBF16(float32(r.NormFloat64())))
	}
	for range tokens {
		in.topk = append(in.topk, route(r, k, experts)...)
	}
	in.weights = make([]float32, tokens*k)
	for i := range in.weights {
		in.weights[i] = r.Float32()
	}
	return in
}

// expert is the stand-in for expert e: exact in bf16 up to one rounding.
func expert(e int, row []byte, out []byte) {
	for i := 0; i < len(row); i += 2 {
		binary.LittleEndian.PutUint16(out[i:], floatToBF16(bf16ToFloat(row[i:])*(1+float32(e)/8)))
	}
}

// wantCombine is the definition of the result for one rank.
func wantCombine(in *input, hidden, k int, dead func(expert int64) bool) []byte {
	out := make([]byte, in.tokens*hidden*2)
	y := make([]byte, hidden*2)
	for t := range in.tokens {
		sum := make([]float32, hidden)
		for i, id := range in.topk[t*k : (t+1)*k] {
			if id < 0 || dead(id) {
				continue
			}
			expert(int(id), in.x[t*hidden*2:(t+1)*hidden*2], y)
			for h := range sum {
				product := float32(in.weights[t*k+i] * bf16ToFloat(y[2*h:]))
				sum[h] = float32(sum[h] + product)
			}
		}
		for h, v := range sum {
			binary.LittleEndian.PutUint16(out[(t*hidden+h)*2:], floatToBF16(v))
		}
	}
	return out
}

// wantRows lists the tokens of one source that go to one expert.
func wantRows(in *input, k int, e int64) (tokens []int) {
	for t := range in.tokens {
		for _, id := range in.topk[t*k : (t+1)*k] {
			if id == e {
				tokens = append(tokens, t)
				break
			}
		}
	}
	sort.Ints(tokens)
	return tokens
}
