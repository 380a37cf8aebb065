package cuda

import (
	"math"
	"slices"
)

// The oracle: docs/numerics.md in plain loops, which share nothing with the
// kernels.

// edges are bf16 values at which something changes: zeros, subnormals, either
// side of 1e-4, the largest, infinities, NaNs.
var edges = []uint16{
	0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x38d1, 0x38d2, 0x3f80, 0xbf80, 0x7f7f, 0xff7f,
	0x7f80, 0xff80, 0x7f81, 0x7fc0, 0xffc0, 0xffff,
}

// rounded is a sum as bf16: the nearer of its two neighbours, the even one of
// two as near.
func rounded(sum float32) uint16 {
	if sum != sum {
		return 0x7fc0
	}
	low := uint16(math.Float32bits(sum) >> 16)
	if math.IsInf(float64(sum), 0) {
		return low
	}
	value := func(b uint16) float64 {
		if b&0x7fff == 0x7f80 {
			return math.Copysign(math.Ldexp(1, 128), float64(sum)) // what the step would lead to
		}
		return float64(float(b))
	}
	below, above := math.Abs(float64(sum)-value(low)), math.Abs(value(low+1)-float64(sum))
	if above < below || above == below && low%2 == 1 {
		return low + 1
	}
	return low
}

// castBlock is 128 values as fp8, and the bits of their scale as a float32:
// amax/448, or the next power of two.
func castBlock(x []uint16, pow2 bool) (codes []byte, scale uint32) {
	magnitudes := make([]uint16, len(x))
	for i, v := range x {
		magnitudes[i] = v & 0x7fff
	}
	most := slices.Max(magnitudes)
	if most >= 0x7f80 {
		return castBroken(x, most > 0x7f80)
	}
	amax := max(float32(1e-4), float(most))
	by, stored := float32(448/float64(amax)), float32(float64(amax)/448)
	if pow2 {
		for stored = float32(math.Ldexp(1, -40)); 448*float64(stored) < float64(amax); {
			stored *= 2
		}
		by = float32(1 / float64(stored))
	}
	for _, v := range x {
		codes = append(codes, nearestE4M3(float32(float64(float(v))*float64(by))))
	}
	return codes, math.Float32bits(stored)
}

// castBroken is the table for blocks that hold a NaN or an infinity.
func castBroken(x []uint16, nan bool) (codes []byte, scale uint32) {
	for _, v := range x {
		switch {
		case nan || v&0x7fff == 0x7f80:
			codes = append(codes, 0x7f)
		default:
			codes = append(codes, byte(v>>8&0x80))
		}
	}
	if nan {
		return codes, 0x7fc00000
	}
	return codes, 0x7f800000
}

// nearestE4M3 finds the nearest code by trying all; of two as near, the even.
func nearestE4M3(f float32) byte {
	best, bestAt := math.Inf(1), byte(0)
	for code := range byte(0x7f) {
		exp, frac := int(code>>3), float64(code&7)
		v := math.Ldexp(8+frac, exp-10)
		if exp == 0 {
			v = math.Ldexp(frac, -9)
		}
		apart := math.Abs(v - math.Abs(float64(f)))
		if apart < best || apart == best && code&1 == 0 {
			best, bestAt = apart, code
		}
	}
	if math.Signbit(float64(f)) {
		bestAt |= 0x80
	}
	return bestAt
}
