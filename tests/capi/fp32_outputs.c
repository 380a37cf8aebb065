/*
 * float32 expert outputs: in the combine buffer and elsewhere, in memory that is exactly
 * as large as needed, so that the sanitizer sees one byte too many.
 */
#include "check.h"

enum { H = 24, M = 2, ROWS = M };

/* 1 and a bit more than half a step of bf16 above it: float32 rounds up. */
static const uint32_t Y_BITS = 0x3f808001, NAN_BITS = 0xffffffff;

static mw_dispatch_result_t dispatch(mw_buffer_t buffer, uint32_t flags)
{
	static uint16_t x[H];
	static int64_t topk[1], layout[1];
	static int32_t count[1];
	mw_dispatch_result_t result = {.size = sizeof result};
	mw_op_t op = {UNTOUCHED};
	mw_dispatch_args_t args = {
		.size = sizeof args, .flags = flags, .x = ADDRESS(x), .topk_idx = ADDRESS(topk),
		.num_tokens = 1, .hidden = H, .num_topk = 1, .num_max_tokens_per_rank = M,
		.num_experts = 1, .timeout_us = -1, .slice_us = -1, .recv_count = ADDRESS(count),
		.layout_range = ADDRESS(layout), .result = &result};
	STATUS(MW_OK, mw_buffer_dispatch(buffer, &args, &op));
	CHECK(op.id == 0 && count[0] == 1);
	return result;
}

static void combine(mw_buffer_t buffer, const mw_dispatch_result_t *of, const void *y, uint32_t flags)
{
	int64_t topk[1] = {0};
	float weights[1] = {1};
	mw_op_t op = {UNTOUCHED};
	uint16_t *out = malloc(H * sizeof *out);
	mw_combine_args_t args = {
		.size = sizeof args, .flags = flags, .handle = of->handle, .x = ADDRESS(y),
		.topk_idx = ADDRESS(topk), .topk_weights = ADDRESS(weights), .out = ADDRESS(out),
		.num_tokens = 1, .num_topk = 1, .timeout_us = -1, .slice_us = -1};
	STATUS(MW_OK, mw_buffer_combine(buffer, &args, &op));
	CHECK(op.id == 0);
	for (int h = 0; h < H; h++)
		CHECK(out[h] == 0x3f81);
	free(out);
}

/* The one received row, and NaN in all memory that no code may read. */
static void compute(uint32_t *y)
{
	for (int i = 0; i < ROWS * H; i++)
		y[i] = i < H ? Y_BITS : NAN_BITS;
}

int main(void)
{
	mw_buffer_t buffer = lone_buffer();
	mw_dispatch_result_t result = dispatch(buffer, MW_DISPATCH_FP32_OUTPUTS);
	uint32_t *y = malloc(ROWS * H * sizeof *y);
	uint64_t address = 0;
	mw_counters_t counters = {.size = sizeof counters};

	compute(y);
	combine(buffer, &result, y, 0);
	free(y);
	STATUS(MW_OK, mw_buffer_combine_buffer(buffer, result.handle, -1, &address));
	CHECK(address == result.combine_x);
	compute((uint32_t *)(uintptr_t)address);
	combine(buffer, &result, (void *)(uintptr_t)address, MW_COMBINE_ZERO_COPY);
	STATUS(MW_OK, mw_buffer_counters(buffer, &counters));
	CHECK(counters.num_bytes_copied == 4 * H && counters.num_bytes_reduced == 2 * 4 * H);
	STATUS(MW_OK, mw_buffer_close(buffer));
	puts("fp32_outputs: ok");
	return 0;
}
