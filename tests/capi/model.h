/*
 * The naive model that ranks.c compares with: every rank's inputs, and the rows and sums
 * that it must receive. It shares no code with the library.
 */
#ifndef MODEL_H
#define MODEL_H

#include "check.h"

enum { MAX_R = 4, L = 2, M = 12, K = 3, H = 256, BLOCK = 128 };

/* The inputs of one rank in one round. */
struct batch {
	int num_tokens;
	uint16_t x[M * H];
	int64_t topk_idx[M * K];
	float weights[M * K];
};

static inline float from_bf16(uint16_t v)
{
	uint32_t bits = (uint32_t)v << 16;
	float f;
	memcpy(&f, &bits, sizeof f);
	return f;
}

/* Rounds to nearest, ties to even; finite values only. */
static inline uint16_t to_bf16(float f)
{
	uint32_t bits;
	memcpy(&bits, &f, sizeof bits);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The value of a positive e4m3 code, 0 to 0x7e. */
static inline float from_e4m3(int code)
{
	int exponent = code >> 3, mantissa = code & 7;
	if (exponent == 0)
		return (float)mantissa / 512.0f;
	float value = 1.0f + (float)mantissa / 8.0f;
	for (int e = exponent; e > 7; e--)
		value *= 2.0f;
	for (int e = exponent; e < 7; e++)
		value /= 2.0f;
	return value;
}

/* The nearest e4m3 value, ties to the even code, by trying all of them. */
static inline uint8_t to_e4m3(float v)
{
	double magnitude = v < 0 ? -(double)v : (double)v, best_distance = 1e30;
	uint32_t bits;
	memcpy(&bits, &v, sizeof bits);
	int best = 0;
	for (int code = 0; code <= 0x7e; code++) {
		double distance = (double)from_e4m3(code) - magnitude;
		distance = distance < 0 ? -distance : distance;
		if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
			best_distance = distance;
			best = code;
		}
	}
	return (uint8_t)(best | (int)(bits >> 31) << 7);
}

static inline void make_batch(struct batch *b, uint64_t seed, int round, int rank, int num_experts)
{
	uint64_t state = seed * 1000003u + (uint64_t)round * 1009u + (uint64_t)rank + 1;
	for (int i = 0; i < 8; i++)
		next_random(&state);
	b->num_tokens = round % 7 == 3 ? 0 : (int)(next_random(&state) % (M + 1));
	for (int i = 0; i < b->num_tokens * H; i++) {
		uint64_t r = next_random(&state);
		/* Finite values between about 2^-17 and 2^13, with signs; some zeros. */
		unsigned exponent = 110 + (unsigned)(r >> 40) % 30;
		b->x[i] = r % 61 == 0 ? 0 : (uint16_t)((r >> 50 & 1) << 15 | exponent << 7 | (r >> 20 & 127));
	}
	for (int i = 0; i < b->num_tokens * K; i++) {
		uint64_t r = next_random(&state);
		int expert = round % 5 == 4 ? 0 : (int)((r >> 16) % (uint64_t)num_experts);
		b->topk_idx[i] = (r >> 8) % 6 == 0 ? -1 : expert;
		b->weights[i] = (float)((double)(r >> 33) / 2147483648.0) - 0.25f;
	}
}

static inline int selects(const struct batch *b, int token, int expert)
{
	for (int k = 0; k < K; k++)
		if (b->topk_idx[token * K + k] == expert)
			return 1;
	return 0;
}

/* The output of expert e for one value. */
static inline uint16_t expert_output(uint16_t x, int expert)
{
	return to_bf16(from_bf16(x) * (0.5f + (float)expert * 0.375f));
}

/* One value of the combine: products and sums rounded to float32, in k order. */
static inline uint16_t combined(const struct batch *b, int token, int h)
{
	float sum = 0;
	for (int k = 0; k < K; k++) {
		int64_t expert = b->topk_idx[token * K + k];
		if (expert < 0)
			continue;
		float y = from_bf16(expert_output(b->x[token * H + h], (int)expert));
		volatile float product = b->weights[token * K + k] * y;
		sum = sum + product;
	}
	return to_bf16(sum);
}

#endif
