package cpu

import (
	"math"
	"testing"
)

// Table of values that the contract names one by one.
func TestEncodeTable(t *testing.T) {
	tests := []struct {
		name string
		in   float32
		want byte
	}{
		{"zero", 0, 0x00},
		{"minus zero", float32(math.Copysign(0, -1)), 0x80},
		{"least subnormal", 0x1p-9, 0x01},
		{"half of it, tie to even", 0x1p-10, 0x00},
		{"just above half", math.Nextafter32(0x1p-10, 1), 0x01},
		{"tiny negative keeps its sign", -1e-30, 0x80},
		{"1.5 subnormals, tie to even", 0x1.8p-9, 0x02},
		{"largest subnormal", 7 * 0x1p-9, 0x07},
		{"least normal", 0x1p-6, 0x08},
		{"one", 1, 0x38},
		{"minus one", -1, 0xb8},
		{"tie below", 1.0625, 0x38},
		{"tie above", 1.1875, 0x3a},
		{"largest", 448, 0x7e},
		{"saturates", 464.1, 0x7e},
		{"saturates negative", -1e38, 0xfe},
		{"infinity saturates", float32(math.Inf(1)), 0x7e},
		{"NaN", float32(math.NaN()), 0x7f},
		{"negative NaN", math.Float32frombits(0xffc00001), 0x7f},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := toE4M3(tt.in); got != tt.want {
				t.Errorf("toE4M3(%g) = %#02x, want %#02x", tt.in, got, tt.want)
			}
			if got := oracleEncode(tt.in); got != tt.want {
				t.Errorf("oracle(%g) = %#02x, want %#02x", tt.in, got, tt.want)
			}
		})
	}
}

// Every code, every midpoint between two codes, and the float32 on either side.
func TestEncodeMidpoints(t *testing.T) {
	check := func(f float32) {
		for _, v := range []float32{math.Nextafter32(f, 0), f, math.Nextafter32(f, 1000)} {
			for _, v := range []float32{v, -v} {
				if got, want := toE4M3(v), oracleEncode(v); got != want {
					t.Fatalf("toE4M3(%g) = %#02x, want %#02x", v, got, want)
				}
			}
		}
	}
	for code := range 0x7e {
		low, high := oracleE4M3(code), oracleE4M3(code+1)
		check(float32(low))
		check(float32((low + high) / 2))
	}
}

func TestEncodeRandom(t *testing.T) {
	r := newRand(t)
	for range 200_000 {
		f := math.Float32frombits(r.Uint32())
		if r.IntN(2) == 0 { // the range where not everything saturates
			f = float32(math.Exp2(r.Float64()*22 - 13))
		}
		if got, want := toE4M3(f), oracleEncode(f); got != want {
			t.Fatalf("toE4M3(%g) = %#02x, want %#02x", f, got, want)
		}
	}
}

func TestDecodeEveryCode(t *testing.T) {
	for c := range 256 {
		got := fromE4M3(byte(c))
		if c&0x7f == 0x7f {
			if got == got {
				t.Errorf("fromE4M3(%#02x) = %g, want NaN", c, got)
			}
			continue
		}
		want := math.Copysign(oracleE4M3(c&0x7f), 1-float64(c>>7)*2)
		if math.Float64bits(float64(got)) != math.Float64bits(want) {
			t.Errorf("fromE4M3(%#02x) = %g, want %g", c, got, want)
		}
	}
}

// Rounding to bf16 at every bf16 pattern: exact, the midpoint above it and the
// float32 on either side of that.
func TestRoundEveryPattern(t *testing.T) {
	for hi := range uint32(1 << 16) {
		for _, lo := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			f := math.Float32frombits(hi<<16 | lo)
			if got, want := toBF16(f), oracleRound(f); got != want {
				t.Fatalf("toBF16(%#08x) = %#04x, want %#04x", hi<<16|lo, got, want)
			}
		}
	}
}
