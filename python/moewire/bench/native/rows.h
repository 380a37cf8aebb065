// Rows of bf16 and fp8 in plain C, for the copy floor and for peers: what a
// compiler makes of straightforward loops. Nothing here knows Moewire.
//
// The arithmetic is that of docs/numerics.md for finite numbers: products and
// sums in float32, in order, unfused (compile with -ffp-contract=off), rounded
// once to nearest even.

#ifndef BENCH_ROWS_H
#define BENCH_ROWS_H

#include <stdint.h>
#include <string.h>

#define BLOCK 128 // values with one fp8 scale
#define WIDTH 64  // bytes of a vector; narrower machines use several
#define TILE 4	  // vectors of pairs summed at a time: the sums stay in registers

typedef uint32_t words __attribute__((vector_size(WIDTH)));
typedef float floats __attribute__((vector_size(WIDTH)));

static inline float as_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline uint32_t as_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static inline uint16_t to_bf16(float value)
{
	uint32_t bits = as_bits(value);

	return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline void reduce_tile(uint16_t *out, const uint16_t *const *rows,
			       const float *weights, int64_t num_rows, int64_t at)
{
	floats even[TILE] = {{0}}, odd[TILE] = {{0}};

	for (int64_t k = 0; k < num_rows; k++)
#pragma GCC unroll 4
		for (int i = 0; i < TILE; i++) {
			words pair;

			memcpy(&pair, rows[k] + at + i * WIDTH / 2, WIDTH);
			even[i] += weights[k] * (floats)(pair << 16);
			odd[i] += weights[k] * (floats)(pair & 0xffff0000u);
		}
#pragma GCC unroll 4
	for (int i = 0; i < TILE; i++) {
		words e = (words)even[i], o = (words)odd[i], pair;

		// To nearest even; the even values lie low in their pair.
		e += 0x7fffu + ((e >> 16) & 1u);
		o += 0x7fffu + ((o >> 16) & 1u);
		pair = (e >> 16) | (o & 0xffff0000u);
		memcpy(out + at + i * WIDTH / 2, &pair, WIDTH);
	}
}

// out[h] = sum over k of weights[k] * rows[k][h].
static inline void reduce_row(uint16_t *out, const uint16_t *const *rows,
			      const float *weights, int64_t num_rows, int64_t hidden)
{
	int64_t at = 0;

	for (; at + TILE * WIDTH / 2 <= hidden; at += TILE * WIDTH / 2)
		reduce_tile(out, rows, weights, num_rows, at);
	for (; at < hidden; at++) {
		float sum = 0;

		for (int64_t k = 0; k < num_rows; k++)
			sum += weights[k] * as_float((uint32_t)rows[k][at] << 16);
		out[at] = to_bf16(sum);
	}
}

static inline float largest(const uint16_t *restrict x)
{
	uint16_t most = 0;

	for (int i = 0; i < BLOCK; i++) {
		uint16_t magnitude = x[i] & 0x7fff;

		most = magnitude > most ? magnitude : most;
	}
	return as_float((uint32_t)most << 16);
}

// The e4m3 code of 0 <= y <= 448. Adding 2^(E+20), E being y's exponent but at
// least -6, rounds y at e4m3's spacing and leaves it in the low bits.
static inline uint8_t encode(float y)
{
	uint32_t least = 0x3c800000u, exponent = as_bits(y) & 0x7f800000u;
	uint32_t e = exponent > least ? exponent : least;

	return (uint8_t)(as_bits(y + as_float(e + (20u << 23) + 0x38u)) + (e >> 20));
}

static inline void quantise_row(uint8_t *restrict q, float *restrict scales,
				const uint16_t *restrict x, int64_t hidden)
{
	for (int64_t g = 0; g < hidden / BLOCK; g++, q += BLOCK, x += BLOCK) {
		float amax = largest(x), scale;

		amax = amax < 1e-4f ? 1e-4f : amax;
		scale = 448.0f / amax;
		for (int i = 0; i < BLOCK; i++) {
			float y = scale * as_float((uint32_t)(x[i] & 0x7fffu) << 16);

			q[i] = (uint8_t)(encode(y) | ((x[i] >> 8) & 0x80u));
		}
		scales[g] = amax / 448.0f;
	}
}

static inline float decode(uint8_t code)
{
	uint32_t m = code & 0x7fu;
	float magnitude = m < 8 ? (float)m * 0x1p-9f : as_float((m << 20) + (120u << 23));

	return code & 0x80u ? -magnitude : magnitude;
}

// scales may start anywhere: they travel behind the row's bytes.
static inline void dequantise_row(uint16_t *restrict out, const uint8_t *restrict q,
				  const uint8_t *scales, int64_t hidden)
{
	for (int64_t g = 0; g < hidden / BLOCK; g++) {
		float scale;

		memcpy(&scale, scales + 4 * g, sizeof(scale));
		for (int64_t i = g * BLOCK; i < (g + 1) * BLOCK; i++)
			out[i] = to_bf16(scale * decode(q[i]));
	}
}

#endif
