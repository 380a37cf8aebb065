package cpu

import (
	"math"

	"github.com/moewire/moewire/core/ep/protocol"
)

// The oracle: slow arithmetic written from docs/numerics.md alone, which
// shares nothing with the implementations. It decides by exact distances in
// float64: every float32, bf16 and e4m3 value, and every difference that is
// taken here, is exact there.

var oracleTable = func() (t [0x7f]float64) {
	for code := range t {
		t[code] = oracleE4M3(code)
	}
	return t
}()

// oracleE4M3 is the magnitude of codes 0 to 0x7e.
func oracleE4M3(code int) float64 {
	exp, frac := code/8, float64(code%8)
	if exp == 0 {
		return frac / 8 * math.Pow(2, -6)
	}
	return (1 + frac/8) * math.Pow(2, float64(exp-7))
}

// oracleEncode tries every code and keeps the nearest, the even one of two.
func oracleEncode(f float32) byte {
	if math.IsNaN(float64(f)) {
		return 0x7f
	}
	a, best, bestDist := math.Abs(float64(f)), 0, math.Inf(1)
	for code, v := range oracleTable {
		d := math.Abs(a - v)
		if d < bestDist || (d == bestDist && code%2 == 0) {
			best, bestDist = code, d
		}
	}
	if math.IsInf(a, 1) {
		best = 0x7e
	}
	if math.Signbit(float64(f)) {
		best |= 0x80
	}
	return byte(best)
}

// oracleRound rounds a float32 to bf16: of the two neighbours the nearer, the
// even one of two. The neighbour above the largest finite value counts as
// 2^128.
func oracleRound(f float32) uint16 {
	if math.IsNaN(float64(f)) {
		return 0x7fc0
	}
	value := func(bits uint16) float64 {
		if bits == 0x7f80 {
			return math.Pow(2, 128)
		}
		return float64(math.Float32frombits(uint32(bits) << 16))
	}
	a := math.Abs(float64(f))
	var sign uint16
	if math.Signbit(float64(f)) {
		sign = 0x8000
	}
	if math.IsInf(a, 1) {
		return sign | 0x7f80
	}
	low := uint16(math.Float32bits(float32(a)) >> 16)
	below, above := a-value(low), value(low+1)-a
	if above < below || (above == below && low%2 == 1) {
		low++
	}
	return sign | low
}

// oracleQuantise casts one block: codes and the bits of the stored scale,
// which is a float32 in every format.
func oracleQuantise(x []uint16, f protocol.DType) ([]byte, uint32) {
	codes, amax := make([]byte, len(x)), uint16(0)
	for _, v := range x {
		amax = max(amax, v&0x7fff)
	}
	// Exact in float64 up to the one rounding that float32() is: a quotient or
	// product of two float32 is rounded correctly that way, because float64
	// has more than twice float32's digits (and no subnormal quotients occur).
	m := math.Max(float64(math.Float32frombits(uint32(amax)<<16)), float64(float32(1e-4)))
	scale, stored := float32(448/m), float32(m/448)
	if f != protocol.FP8 {
		stored = float32(oraclePower(m))
		scale = float32(1 / float64(stored))
	}
	for i, v := range x {
		y := float64(math.Float32frombits(uint32(v)<<16)) * float64(scale)
		codes[i] = oracleEncode(float32(y))
	}
	if amax > 0x7f80 {
		return codes, 0x7fc00000
	}
	return codes, math.Float32bits(stored)
}

// oraclePower tries powers of two until one is large enough for 448 of it to
// reach m. NaN gives NaN, infinity infinity.
func oraclePower(m float64) float64 {
	if math.IsInf(m, 1) || math.IsNaN(m) {
		return m
	}
	p := math.Pow(2, -60)
	for 448*p < m {
		p *= 2
	}
	return p
}

// oracleScaleByte is UE8M0: the exponent p of 2^p plus 127, 255 for anything
// that is no power of two.
func oracleScaleByte(bits uint32) byte {
	f := float64(math.Float32frombits(bits))
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return 255
	}
	return byte(math.Round(math.Log2(f)) + 127)
}

// oracleReduce is one output value.
func oracleReduce(weights, values []float32) uint16 {
	return oracleRound(oracleSum(weights, values))
}

// oracleSum is that before its rounding. float64 holds the exact product and
// the exact sum closely enough that rounding it to float32 is the correct
// rounding (53 >= 2*24+2 digits).
func oracleSum(weights, values []float32) float32 {
	acc := float32(0)
	for k, w := range weights {
		product := float32(float64(w) * float64(values[k]))
		acc = float32(float64(acc) + float64(product))
	}
	return acc
}

// oracleDequantise is one output value.
func oracleDequantise(code byte, scale float32) uint16 {
	v := math.NaN()
	if code&0x7f != 0x7f {
		v = oracleE4M3(int(code & 0x7f))
	}
	if code&0x80 != 0 {
		v = math.Copysign(v, -1)
	}
	return oracleRound(float32(v * float64(scale)))
}
