// Row kernels in GCC/clang vector extensions, compiled once per width.
//
// The including file defines VB (the vector's bytes), ROWS_NAME (text),
// ROWS_TABLE (the symbol to define), max16 (lane-wise signed maximum), where
// there is one stream (an aligned store past the caches), and has already
// switched on the instruction set it wants.
//
// bf16 values come in pairs per 32-bit word: the even one is the low half.
// Shifting it up, or masking the low half off, gives two float32 vectors
// without any shuffle, and the same trick backwards packs the results.
//
// A .h file that is included once per width: the go command would not rebuild
// for a change in a file with another ending.
//
// No product and sum may be fused into one rounding: -std=c11 says so to gcc,
// the pragma to clang.

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#include <string.h>

#define LANES (VB / 4)
#define INLINE static inline __attribute__((always_inline))

typedef uint32_t vu32 __attribute__((vector_size(VB)));
typedef uint64_t vu64 __attribute__((vector_size(VB)));
typedef float vf32 __attribute__((vector_size(VB)));
typedef uint16_t vu16half __attribute__((vector_size(VB / 2)));

INLINE vu32 load(const uint8_t *p)
{
	vu32 v;
	memcpy(&v, p, VB);
	return v;
}

INLINE void store(uint8_t *p, vu32 v)
{
	memcpy(p, &v, VB);
}

INLINE vf32 even(vu32 pair)
{
	return (vf32)(pair << 16);
}

INLINE vf32 odd(vu32 pair)
{
	return (vf32)(pair & 0xffff0000u);
}

// Rounds to nearest even; the bf16 bits are the high half of each lane.
INLINE vu32 round_bf16(vf32 f)
{
	vu32 u = (vu32)f;
	vu32 nan = (vu32)(f != f);
	vu32 r = u + 0x7fffu + ((u >> 16) & 1u);

	return (r & ~nan) | (nan & 0x7fc00000u);
}

INLINE vu32 pack_bf16(vf32 e, vf32 o)
{
	return (round_bf16(e) >> 16) | (round_bf16(o) & 0xffff0000u);
}

#include "reduce.h"

// ---- bf16 to e4m3 ----

// The largest bf16 magnitude of a block, by its bits.
INLINE uint32_t block_amax(const uint8_t *x)
{
	vu32 m = {0};
	uint64_t words[VB / 8], best = 0;

	for (int i = 0; i < 2 * MWCPU_BLOCK; i += VB)
		m = max16(m, load(x + i) & 0x7fff7fffu);
	m = max16(m, (vu32)((vu64)m >> 32));
	m = max16(m, m >> 16);
	memcpy(words, &m, VB);
	for (int i = 0; i < VB / 8; i++)
		best = (words[i] & 0xffff) > best ? (words[i] & 0xffff) : best;
	return (uint32_t)best;
}

// The e4m3 code of non-negative finite y <= 448, in the low byte of each lane;
// the other bytes are noise.
//
// Adding 2^(E+20), with E the exponent of y but at least -6 (where e4m3's
// subnormals begin), makes the adder round y to nearest even at e4m3's spacing
// 2^(E-3) and leaves y / 2^(E-3), 0 to 16, in the low bits. The code is that
// plus 8 * (E+6). The 0x38 is the constant part of that, modulo 256; being
// even it does not disturb ties.
INLINE vu32 encode(vf32 y)
{
	const vu32 least = (vu32){0} + 0x3c800000u; // 2^-6
	vu32 e = max16((vu32)y & 0x7f800000u, least);
	vf32 sum = y + (vf32)(e + ((20u << 23) + 0x38u));

	return (vu32)sum + (e >> 20);
}

INLINE void quantise_finite(uint8_t *q, const uint8_t *x, float scale)
{
	for (int i = 0; i < 2 * MWCPU_BLOCK; i += VB) {
		vu32 pair = load(x + i), code;
		vu16half bytes;

		code = (encode(scale * even(pair & 0x7fffu)) & 0xffu) |
		       (encode(scale * odd(pair & 0x7fff0000u)) << 8);
		code |= ((pair >> 8) & 0x80u) | ((pair >> 16) & 0x8000u);
		bytes = __builtin_convertvector(code, vu16half);
		memcpy(q + i / 2, &bytes, VB / 2);
	}
}

// A block with a NaN: every product is NaN. One with an infinity: the scale
// is 0, finite values become zeros that keep their sign, 0 * inf is NaN.
static void quantise_special(uint8_t *q, const uint8_t *x, uint32_t amax)
{
	for (int i = 0; i < MWCPU_BLOCK; i++) {
		uint16_t v;

		memcpy(&v, x + 2 * i, 2);
		if (amax > 0x7f80 || (v & 0x7fff) == 0x7f80)
			q[i] = 0x7f;
		else
			q[i] = (uint8_t)((v >> 8) & 0x80);
	}
}

INLINE float float_of(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, 4);
	return f;
}

// The stored scale of a finite block and, in *scale, what it is cast with.
INLINE float scale_float32(uint32_t bits, float *scale)
{
	float amax = float_of(bits << 16);

	amax = amax < 1e-4f ? 1e-4f : amax;
	*scale = 448.0f / amax;
	return amax / 448.0f;
}

// The least power of two that is at least amax / 448. 448 is 1.75 * 2^8: of
// amax only the exponent counts, and whether its fraction exceeds .75, which
// the addition carries. 0x38d2 is the least bf16 above the floor of 1e-4; both
// lie below 1.75 * 2^-14.
INLINE float scale_pow2(uint32_t bits, float *scale)
{
	uint32_t amax = bits < 0x38d2 ? 0x38d2 : bits;
	uint32_t exponent = ((amax + 0x1f) >> 7) - 8;

	*scale = float_of((254 - exponent) << 23);
	return float_of(exponent << 23);
}

INLINE float quantise_block(uint8_t *q, const uint8_t *x, int pow2)
{
	uint32_t bits = block_amax(x);
	float scale, stored;

	if (__builtin_expect(bits >= 0x7f80, 0)) {
		quantise_special(q, x, bits);
		return float_of(bits > 0x7f80 ? 0x7fc00000u : 0x7f800000u);
	}
	stored = pow2 ? scale_pow2(bits, &scale) : scale_float32(bits, &scale);
	quantise_finite(q, x, scale);
	return stored;
}

static void quantise_row(uint8_t *q, float *scales, const uint8_t *x,
			 int64_t hidden)
{
	for (int64_t g = 0; g < hidden / MWCPU_BLOCK; g++)
		scales[g] = quantise_block(q + MWCPU_BLOCK * g,
					   x + 2 * MWCPU_BLOCK * g, 0);
}

static void quantise_row_pow2(uint8_t *q, float *scales, const uint8_t *x,
			      int64_t hidden)
{
	for (int64_t g = 0; g < hidden / MWCPU_BLOCK; g++)
		scales[g] = quantise_block(q + MWCPU_BLOCK * g,
					   x + 2 * MWCPU_BLOCK * g, 1);
}

// ---- e4m3 to bf16 ----

// The value of the code in the low byte of each lane. The lane's other bytes are 0.
INLINE vf32 decode(vu32 code)
{
	vu32 m = code & 0x7fu;
	vu32 sub = (vu32)(m < 8u);
	vu32 nan = (vu32)(m == 0x7fu);
	vu32 bits = (m << 20) + (120u << 23);
	// A subnormal is read as 2^-6 * (1 + m/8), less 2^-6: exact.
	vf32 f = (vf32)(bits + (sub & (1u << 23))) -
		 (vf32)(sub & 0x3c800000u);

	return (vf32)((vu32)f | (nan & 0x7fc00000u) | ((code & 0x80u) << 24));
}

static void dequantise_row(uint8_t *out, const uint8_t *q,
			   const uint8_t *scales, int64_t stride,
			   int64_t hidden)
{
	for (int64_t g = 0; g < hidden / MWCPU_BLOCK; g++) {
		float scale;

		memcpy(&scale, scales + 4 * g * stride, 4);
		for (int i = 0; i < MWCPU_BLOCK; i += VB / 2) {
			vu16half bytes;
			vu32 pair;

			memcpy(&bytes, q + MWCPU_BLOCK * g + i, VB / 2);
			pair = __builtin_convertvector(bytes, vu32);
			store(out + 2 * (MWCPU_BLOCK * g + i),
			      pack_bf16(scale * decode(pair & 0xffu),
					scale * decode(pair >> 8)));
		}
	}
}

// ---- copies past the caches ----

#ifdef stream
static void stream_row(uint8_t *to, const uint8_t *from, int64_t bytes)
{
	int64_t at = (int64_t)(-(uintptr_t)to & (VB - 1));

	at = at < bytes ? at : bytes;
	memcpy(to, from, (size_t)at);
	for (; at + VB <= bytes; at += VB)
		stream(to + at, load(from + at));
	memcpy(to + at, from + at, (size_t)(bytes - at));
}
#else
#define stream_row NULL
#endif

const struct mwcpu_kernels ROWS_TABLE = {
	ROWS_NAME,
	reduce_row,
	reduce_row_fp32,
	reduce_runs,
	reduce_runs_fp32,
	sum_row_fp32,
	quantise_row,
	quantise_row_pow2,
	dequantise_row,
	stream_row,
};
