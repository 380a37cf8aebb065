package chaos

import (
	"encoding/binary"
	"math"
	"sort"
)

// The oracle is written from the definition, one value at a time, and shares
// no code with the library.

func fromBF16(b []byte) float32 {
	return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)
}

// toBF16 rounds to nearest even; there are no NaN here.
func toBF16(f float32) uint16 {
	u := math.Float32bits(f)
	down, rest := uint16(u>>16), u&0xffff
	if rest > 0x8000 || rest == 0x8000 && down&1 == 1 {
		return down + 1
	}
	return down
}

// e4m3 are the magnitudes of the codes 0 to 0x7e; 0x7f is NaN.
var e4m3 = func() (table [128]float32) {
	table[0x7f] = float32(math.NaN())
	for c := range table[:0x7f] {
		exponent, mantissa := c>>3, float64(c&7)
		if exponent == 0 {
			table[c] = float32(math.Ldexp(mantissa, -9))
		} else {
			table[c] = float32(math.Ldexp(8+mantissa, exponent-10))
		}
	}
	return table
}()

// toE4M3 takes the nearest code, of two the even one.
func toE4M3(f float32) byte {
	a, sign := float32(math.Abs(float64(f))), byte(0)
	if math.Signbit(float64(f)) {
		sign = 0x80
	}
	up := sort.Search(0x7f, func(c int) bool { return e4m3[c] >= a })
	if up == 0x7f {
		return sign | 0x7e
	}
	if up == 0 {
		return sign
	}
	below, above := a-e4m3[up-1], e4m3[up]-a
	if below < above || below == above && up&1 == 1 {
		up--
	}
	return sign | byte(up)
}

func fromE4M3(c byte) float32 {
	if c&0x80 != 0 {
		return -e4m3[c&0x7f]
	}
	return e4m3[c]
}

// quantise casts a block of 128 bf16 values.
func quantise(block []byte) (codes []byte, scale float32) {
	amax := float32(1e-4)
	for i := 0; i < len(block); i += 2 {
		amax = max(amax, float32(math.Abs(float64(fromBF16(block[i:])))))
	}
	factor := float32(448) / amax
	for i := 0; i < len(block); i += 2 {
		codes = append(codes, toE4M3(float32(fromBF16(block[i:])*factor)))
	}
	return codes, amax / 448
}

// sent is how a token's row arrives: its bytes, its scales, and what it means.
type sent struct {
	bytes  []byte
	scales []float32
	values []float32
}

func (s *shape) sent(row []byte) (out sent) {
	if !s.fp8 {
		return sent{bytes: row, values: values(row)}
	}
	for at := 0; at < len(row); at += 256 {
		codes, scale := quantise(row[at : at+256])
		out.bytes, out.scales = append(out.bytes, codes...), append(out.scales, scale)
		for _, c := range codes {
			out.values = append(out.values, float32(fromE4M3(c)*scale))
		}
	}
	return out
}

func values(row []byte) (v []float32) {
	for i := 0; i < len(row); i += 2 {
		v = append(v, fromBF16(row[i:]))
	}
	return v
}

// apply is the stand-in for expert e in the n-th combine of a handle.
func apply(e, n int, v float32) uint16 {
	return toBF16(float32(v * (1 + float32(e)/8 - float32(n)*2)))
}

// wantCombine is the definition of the n-th combine, where the experts of
// ranks that are 0 in the mask contribute nothing.
func (s *shape) wantCombine(in *input, n int, mask []int32) []byte {
	out := make([]byte, in.tokens*s.hidden*2)
	for t := range in.tokens {
		row := s.sent(in.x[t*s.hidden*2 : (t+1)*s.hidden*2]).values
		sum := make([]float32, s.hidden)
		for i, id := range in.topk[t*s.topk : (t+1)*s.topk] {
			if id < 0 || mask[s.owner(id)] == 0 {
				continue
			}
			for h := range sum {
				y := math.Float32frombits(uint32(apply(int(id), n, row[h])) << 16)
				sum[h] = float32(sum[h] + float32(in.weights[t*s.topk+i]*y))
			}
		}
		if s.flat {
			sum = s.wantFlat(in, t, n, mask, row)
		}
		for h, v := range sum {
			binary.LittleEndian.PutUint16(out[(t*s.hidden+h)*2:], toBF16(v))
		}
	}
	return out
}

// wantTokens lists the tokens of one source that go to one expert, or, flat,
// to one rank.
func (s *shape) wantTokens(in *input, e int) (tokens []int) {
	for t := range in.tokens {
		for _, id := range in.topk[t*s.topk : (t+1)*s.topk] {
			if s.goesTo(id, e) {
				tokens = append(tokens, t)
				break
			}
		}
	}
	return tokens
}
