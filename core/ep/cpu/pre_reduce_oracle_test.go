package cpu_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// want is the definition of what combine gives for the stand-in experts.
func (s shape) want(in *input, dead func(expert int64) bool) []byte {
	if !s.preReduce {
		return wantCombine(in, s.hidden, s.topk, dead)
	}
	y := make([]byte, 2)
	return s.wantPreReduce(in, dead, func(token int, e int64, h int) float32 {
		expert(int(e), in.x[(token*s.hidden+h)*2:][:2], y)
		return bf16ToFloat(y)
	})
}

// wantPreReduce is the definition of a pre-reduced combine, one value at a time:
// sums of each rank, rounded, and then those of a token, in the order in which
// it selects the ranks first.
func (s shape) wantPreReduce(in *input, dead func(expert int64) bool, y func(token int, e int64, h int) float32) []byte {
	out := make([]byte, 0, in.tokens*s.hidden*2)
	local := int64(s.experts / s.ranks)
	for t := range in.tokens {
		ids, weights := in.topk[t*s.topk:][:s.topk], in.weights[t*s.topk:][:s.topk]
		var ranks []int64
		for _, id := range ids {
			if id >= 0 && !dead(id) && !slices.Contains(ranks, id/local) {
				ranks = append(ranks, id/local)
			}
		}
		for h := range s.hidden {
			all := float32(0)
			for _, r := range ranks {
				sum := float32(0)
				for k, id := range ids {
					if id >= 0 && id/local == r {
						sum = float32(sum + float32(weights[k]*y(t, id, h)))
					}
				}
				if !s.fp32 {
					sum = math.Float32frombits(uint32(floatToBF16(sum)) << 16)
				}
				all = float32(all + sum)
			}
			out = binary.LittleEndian.AppendUint16(out, floatToBF16(all))
		}
	}
	return out
}

// wantAny is wantPreReduce, or the plain sum in order of k.
func (s shape) wantAny(in *input, dead func(expert int64) bool, y func(token int, e int64, h int) float32) []byte {
	if s.preReduce {
		return s.wantPreReduce(in, dead, y)
	}
	out := make([]byte, 0, in.tokens*s.hidden*2)
	for i := range in.tokens * s.hidden {
		t, sum := i/s.hidden, float32(0)
		for k, id := range in.topk[t*s.topk:][:s.topk] {
			if id >= 0 && !dead(id) {
				sum = float32(sum + float32(in.weights[t*s.topk+k]*y(t, id, i%s.hidden)))
			}
		}
		out = binary.LittleEndian.AppendUint16(out, floatToBF16(sum))
	}
	return out
}

// noise is what expert e answers to a token: digits that no other answer has.
func (s shape) noise(source, token int, e int64, h int) float32 {
	x := uint32(source)*0x9e3779b1 ^ uint32(token)*0x85ebca77 ^ uint32(e)*0xc2b2ae3d ^ uint32(h)*0x27d4eb2f
	x ^= x >> 15
	x *= 0x2c1b3c6d
	x ^= x >> 12
	v := float32(int32(x)>>8) / (1 << 20)
	if s.fp32 {
		return v
	}
	return math.Float32frombits(uint32(floatToBF16(v)) << 16)
}

// answer writes the answers of this rank's experts to the rows of all ranks.
// They depend only on the token's rank and number: a row that lies elsewhere than its
// index says, or is of another format, changes no answer.
func (d *dispatched) answer(rank int, s shape, y []byte) {
	l, c := s.experts/s.ranks, s.ranks*s.maxTokens
	for e := range l {
		for src := range s.ranks {
			place := d.layout[e*s.ranks+src]
			for i := range int(place & (1<<32 - 1)) {
				at := e*c + int(place>>32) + i
				token := int(int32(binary.LittleEndian.Uint32(d.res.SrcInfo[at*4:])))
				for h := range s.hidden {
					v := s.noise(src, token, int64(rank*l+e), h)
					if s.fp32 {
						binary.LittleEndian.PutUint32(y[4*(at*s.hidden+h):], math.Float32bits(v))
					} else {
						binary.LittleEndian.PutUint16(y[2*(at*s.hidden+h):], floatToBF16(v))
					}
				}
			}
		}
	}
}

func differ(s shape, rank int, got, want []byte) error {
	for i := 0; i < len(want); i += 2 {
		if g, w := binary.LittleEndian.Uint16(got[i:]), binary.LittleEndian.Uint16(want[i:]); g != w {
			return fmt.Errorf("%v preReduce=%v fp32=%v: rank %d token %d value %d is %#04x, want %#04x", s, s.preReduce, s.fp32, rank, i/2/s.hidden, i/2%s.hidden, g, w)
		}
	}
	return nil
}
