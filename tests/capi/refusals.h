/* Dispatches and combines with arguments that must be refused, and consume nothing. */
#ifndef REFUSALS_H
#define REFUSALS_H

#include "rank.h"

static const uint32_t UE8M0 = MW_DISPATCH_FP8 | MW_DISPATCH_ROUND_SCALE | MW_DISPATCH_UE8M0;

/* The call is refused. It consumes nothing, and other ranks do not notice. */
static void check_bad_arguments(struct rank *me)
{
	int64_t beyond[K] = {0, num_experts, 0}, below[K] = {0, 0, -2};
	int32_t active[MAX_R] = {1, 1, 1, 1};
	mw_op_t op = {UNTOUCHED};
#define BAD(change) \
	do { \
		mw_dispatch_args_t args = dispatch_args(me, 0); \
		args.num_tokens = 1; \
		args.topk_idx = ADDRESS(below + 0 * K); \
		below[2] = 0; \
		change; \
		REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_dispatch(me->buffer, &args, &op)); \
		CHECK(op.id == UNTOUCHED); \
	} while (0)
	BAD(args.num_tokens = M + 1);
	BAD(args.num_tokens = -1);
	BAD(args.x = 0);
	BAD(args.topk_idx = 0);
	BAD(args.topk_idx = ADDRESS(beyond));
	BAD(below[2] = -2);
	BAD(args.hidden = 12);
	BAD(args.hidden = 0);
	BAD(args.hidden = -8);
	BAD((args.hidden = 136, args.flags = MW_DISPATCH_FP8));
	BAD(args.flags = MW_DISPATCH_ROUND_SCALE);
	BAD((args.hidden = 512, args.flags = MW_DISPATCH_FP8 | MW_DISPATCH_UE8M0));
	BAD((args.hidden = 640, args.flags = UE8M0));
	BAD(args.num_topk = 0);
	BAD(args.num_topk = MW_MAX_TOPK + 1);
	BAD(args.num_max_tokens_per_rank = 0);
	BAD(args.num_max_tokens_per_rank = INT64_MAX);
	BAD(args.num_experts = 0);
	BAD(args.num_experts = INT64_MAX);
	BAD(args.flags = 0x1000);
	BAD(args.phase = 9);
	BAD(args.reserved = 1);
	BAD(args.stream = 1); /* only for CUDA, as are the next two */
	BAD(args.peers_have_more = ADDRESS(active));
	BAD(args.wait_ns = ADDRESS(below));
	BAD(args.x = UINT64_MAX - 1);
	BAD(args.topk_idx = args.topk_idx + 1); /* misaligned */
	BAD(args.result = NULL);
	BAD(args.recv_count = 0);
	BAD(args.layout_range = 0);
	BAD((args.active_ranks = ADDRESS(active), args.num_active_ranks = num_ranks - 1));
	if (num_ranks > 1)
		BAD(args.num_experts = num_experts + 1);
#undef BAD
}

static void check_bad_combines(struct rank *me, uint64_t y, uint16_t *out)
{
	int64_t other[M * K];
	mw_op_t op = {UNTOUCHED};
#define BAD(status, change) \
	do { \
		mw_combine_args_t args = combine_args(me, y, out); \
		change; \
		REFUSED(status, mw_buffer_combine(me->buffer, &args, &op)); \
		CHECK(op.id == UNTOUCHED); \
	} while (0)
	BAD(MW_ERR_HANDLE, args.handle.id = 0);
	BAD(MW_ERR_HANDLE, args.handle.id += 1000003);
	BAD(MW_ERR_INVALID_ARGUMENT, args.x = 0);
	BAD(MW_ERR_INVALID_ARGUMENT, args.num_tokens += 1);
	BAD(MW_ERR_INVALID_ARGUMENT, args.num_topk = K - 1);
	BAD(MW_ERR_INVALID_ARGUMENT, args.flags = 0x100);
	BAD(MW_ERR_INVALID_ARGUMENT, args.stream = 1); /* only for CUDA, as is the next one */
	BAD(MW_ERR_INVALID_ARGUMENT, args.wait_ns = ADDRESS(other));
	BAD(MW_ERR_INVALID_ARGUMENT, (args.flags = MW_COMBINE_ZERO_COPY, args.x = y + 16));
	if (me->in.num_tokens > 0) {
		BAD(MW_ERR_INVALID_ARGUMENT, args.out = 0);
		BAD(MW_ERR_INVALID_ARGUMENT, args.topk_idx = 0);
		BAD(MW_ERR_INVALID_ARGUMENT, args.topk_weights = 0);
		memcpy(other, me->in.topk_idx, sizeof other);
		other[0] = (other[0] + 1) % num_experts;
		BAD(MW_ERR_INVALID_ARGUMENT, args.topk_idx = ADDRESS(other));
	}
#undef BAD
}

#endif
