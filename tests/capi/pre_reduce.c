/*
 * A pre-reduced combine: weights at the dispatch, in memory that is exactly as large as
 * needed, and the same weights at the combine.
 */
#include "check.h"

#include <stddef.h>

enum { H = 8, M = 3, T = 2, K = 3, E = 2 };

/* 1 + 2^-8 lies between two bf16, and rounds to 1. */
static const float WEIGHTS[T * K] = {1, 1.0f / 256, 0, 5, 1.0f / 128, 7};
static const int64_t TOPK_IDX[T * K] = {1, 0, -1, 0, 1, -1};

static void *copy_of(const void *from, size_t bytes)
{
	void *to = malloc(bytes);
	memcpy(to, from, bytes);
	return to;
}

struct call {
	mw_dispatch_args_t args;
	mw_dispatch_result_t result;
	uint16_t x[T * H];
	int64_t layout[E];
	int32_t count[E];
	void *ids, *weights;
};

static void prepare(struct call *c)
{
	memset(c, 0, sizeof *c);
	c->ids = copy_of(TOPK_IDX, sizeof TOPK_IDX);
	c->weights = copy_of(WEIGHTS, sizeof WEIGHTS);
	c->result.size = sizeof c->result;
	c->args = (mw_dispatch_args_t){
		.size = sizeof c->args, .flags = MW_DISPATCH_PRE_REDUCE, .x = ADDRESS(c->x),
		.topk_idx = ADDRESS(c->ids), .num_tokens = T, .hidden = H, .num_topk = K,
		.num_max_tokens_per_rank = M, .num_experts = E, .timeout_us = -1, .slice_us = -1,
		.recv_count = ADDRESS(c->count), .layout_range = ADDRESS(c->layout),
		.result = &c->result, .topk_weights = ADDRESS(c->weights)};
}

static void release(struct call *c)
{
	free(c->ids);
	free(c->weights);
}

static void check_refused(mw_buffer_t buffer)
{
	mw_op_t op = {UNTOUCHED};
	struct call c;
	prepare(&c);
#define BAD(change) \
	do { \
		mw_dispatch_args_t right = c.args; \
		change; \
		REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_dispatch(buffer, &c.args, &op)); \
		CHECK(op.id == UNTOUCHED); \
		c.args = right; \
	} while (0)
	BAD(c.args.topk_weights = 0);
	BAD(c.args.topk_weights += 1); /* misaligned */
	BAD(c.args.flags = 0);         /* weights without the flag that needs them */
	BAD(c.args.flags |= MW_DISPATCH_FLAT);
	BAD(c.args.extra_row_bytes[0] = 4);
	BAD(c.args.size = offsetof(mw_dispatch_args_t, topk_weights)); /* an old caller's struct has no
	                                                                  such field */
#undef BAD
	release(&c);
}

static void exchange(mw_buffer_t buffer)
{
	mw_op_t op = {UNTOUCHED};
	struct call c;
	uint16_t out[T * H];
	int64_t ids[T * K];
	float weights[T * K];
	prepare(&c);
	STATUS(MW_OK, mw_buffer_dispatch(buffer, &c.args, &op));
	CHECK(op.id == 0 && c.count[0] == T && c.count[1] == T);
	release(&c); /* copied */
	uint16_t *y = (uint16_t *)(uintptr_t)c.result.combine_x;
	for (int e = 0; e < E; e++)
		for (int i = 0; i < T * H; i++)
			y[e * M * H + i] = 0x3f80;
	memcpy(ids, TOPK_IDX, sizeof ids);
	memcpy(weights, WEIGHTS, sizeof weights);
	mw_combine_args_t args = {
		.size = sizeof args, .flags = MW_COMBINE_ZERO_COPY, .handle = c.result.handle,
		.x = ADDRESS(y), .topk_idx = ADDRESS(ids), .topk_weights = ADDRESS(weights),
		.out = ADDRESS(out), .num_tokens = T, .num_topk = K, .timeout_us = -1, .slice_us = -1};
	op.id = UNTOUCHED;
	ids[1] = -1;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_combine(buffer, &args, &op));
	ids[1] = 0, weights[3] = 4;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_combine(buffer, &args, &op));
	CHECK(op.id == UNTOUCHED);
	weights[3] = 5, weights[2] = 9; /* weights without a selection */
	STATUS(MW_OK, mw_buffer_combine(buffer, &args, &op));
	CHECK(op.id == 0);
	for (int h = 0; h < H; h++)
		CHECK(out[h] == 0x3f80 && out[H + h] == 0x40a0);
}

int main(void)
{
	mw_buffer_t buffer = lone_buffer();
	exchange(buffer);
	check_refused(buffer);
	exchange(buffer);
	STATUS(MW_OK, mw_buffer_close(buffer));
	puts("pre_reduce: ok");
	return 0;
}
