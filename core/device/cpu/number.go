package cpu

import "math"

// The number formats, in Go. A product or sum that feeds another operation is
// always wrapped in float32(): that forbids the compiler to fuse the two.

const (
	bf16NaN = 0x7fc0
	bf16Inf = 0x7f80
	e4m3NaN = 0x7f
	e4m3Max = 448 // largest finite e4m3fn magnitude, code 0x7e
)

func fromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// toBF16 rounds to nearest even; every NaN becomes the canonical one.
func toBF16(f float32) uint16 {
	if f != f {
		return bf16NaN
	}
	u := math.Float32bits(f)
	return uint16((u + 0x7fff + (u >> 16 & 1)) >> 16)
}

// toE4M3 rounds to nearest even and saturates. A NaN loses its sign; any other
// value, zero included, keeps it.
func toE4M3(f float32) byte {
	if f != f {
		return e4m3NaN
	}
	u := math.Float32bits(f)
	sign := byte(u >> 24 & 0x80)
	u &= 0x7fffffff
	a := math.Float32frombits(u)
	if a >= e4m3Max {
		return sign | 0x7e
	}
	if a < 0x1p-6 {
		// The sum has e4m3's subnormal spacing 2^-9, so it rounds for us.
		return sign | byte(math.Float32bits(a+0x1p14))
	}
	u += 0x7ffff + (u >> 20 & 1)
	return sign | byte(u>>20-(127-7)<<3)
}

// fromE4M3Table holds the value of each code.
var fromE4M3Table = func() (t [256]float32) {
	for c := range t {
		t[c] = fromE4M3(byte(c))
	}
	return t
}()

func fromE4M3(c byte) float32 {
	exp, frac := int(c>>3&15), float64(c&7)
	v := math.Ldexp(8+frac, exp-10)
	switch {
	case c&0x7f == e4m3NaN:
		v = math.NaN()
	case exp == 0:
		v = math.Ldexp(frac, -9)
	}
	if c&0x80 != 0 {
		v = math.Copysign(v, -1)
	}
	return float32(v)
}
