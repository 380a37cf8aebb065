/* Compares the received rows and the sums of a rank with the model. */
#ifndef RESULTS_H
#define RESULTS_H

#include "rank.h"

static void check_row(const struct rank *me, int64_t row, const uint16_t *x, int fp8)
{
	int rows = num_ranks * M;
	if (!fp8) {
		const uint16_t *got = (const uint16_t *)(uintptr_t)me->result.recv_x + row * H;
		CHECK(memcmp(got, x, H * sizeof *x) == 0);
		return;
	}
	const uint8_t *got = (const uint8_t *)(uintptr_t)me->result.recv_x + row * H;
	const float *scales = (const float *)(uintptr_t)me->result.recv_scales;
	for (int b = 0; b < H / BLOCK; b++) {
		float amax = 1e-4f;
		for (int i = 0; i < BLOCK; i++) {
			float v = from_bf16(x[b * BLOCK + i]);
			amax = v > amax ? v : -v > amax ? -v : amax;
		}
		float scale = 448.0f / amax;
		CHECK(scales[(row / rows * (H / BLOCK) + b) * rows + row % rows] == amax / 448.0f);
		for (int i = 0; i < BLOCK; i++) {
			volatile float scaled = from_bf16(x[b * BLOCK + i]) * scale;
			CHECK(got[b * BLOCK + i] == to_e4m3(scaled));
		}
	}
}

/* Checks that every source's rows lie in token order, somewhere in a block without holes. */
static void check_received(const struct rank *me, int round, int fp8)
{
	static _Thread_local struct batch from;
	const int32_t *src_info = (const int32_t *)(uintptr_t)me->result.src_info;
	int32_t total[L] = {0};
	for (int source = 0; source < num_ranks; source++) {
		make_batch(&from, seed, round, source, num_experts);
		for (int l = 0; l < L; l++) {
			int64_t packed = me->layout_range[l * num_ranks + source];
			int64_t row = packed >> 32, end = row + (packed & 0xffffffff);
			CHECK(end <= me->recv_count[l]);
			total[l] += (int32_t)(end - row);
			for (int t = 0; t < from.num_tokens; t++) {
				if (!selects(&from, t, me->rank * L + l))
					continue;
				CHECK(row < end);
				CHECK(src_info[l * num_ranks * M + row] == t);
				check_row(me, (int64_t)l * num_ranks * M + row, from.x + t * H, fp8);
				row++;
			}
			CHECK(row == end);
		}
	}
	for (int l = 0; l < L; l++)
		CHECK(total[l] == me->recv_count[l]);
}

static void compute_experts(const struct rank *me, uint16_t *y)
{
	const uint16_t *x = (const uint16_t *)(uintptr_t)me->result.recv_x;
	for (int l = 0; l < L; l++)
		for (int64_t i = 0; i < (int64_t)me->recv_count[l] * H; i++) {
			int64_t at = (int64_t)l * num_ranks * M * H + i;
			y[at] = expert_output(x[at], me->rank * L + l);
		}
}

static void check_combined(const struct rank *me, const uint16_t *out)
{
	for (int t = 0; t < me->in.num_tokens; t++)
		for (int h = 0; h < H; h++)
			if (out[t * H + h] != combined(&me->in, t, h))
				FAIL("rank %d token %d value %d: got %#x, want %#x", me->rank, t, h,
				     out[t * H + h], combined(&me->in, t, h));
}

#endif
