/*
 * One rank of a group. The ranks are threads of this process: a rank's buffer, and
 * the calls on it with their usual arguments.
 */
#ifndef RANK_H
#define RANK_H

#include <pthread.h>
#include <sched.h>

#include "model.h"

static int num_ranks, num_experts;
static uint64_t seed;
static pthread_barrier_t barrier;
static unsigned char metadata[MAX_R][1024];
static mw_bytes_t all[MAX_R];

struct rank {
	int rank;
	mw_buffer_t buffer;
	struct batch in;
	/* what a dispatch writes */
	int32_t recv_count[L];
	int64_t layout_range[L * MAX_R];
	mw_dispatch_result_t result;
};

/* ---------------------------------------------------------------- calls -- */

/* Exchanges metadata and connects: for the first epoch or another one. */
static inline void meet(struct rank *me)
{
	all[me->rank].address = ADDRESS(metadata[me->rank]);
	STATUS(MW_OK, mw_buffer_metadata(me->buffer, metadata[me->rank], sizeof metadata[0],
	                                 &all[me->rank].num_bytes));
	pthread_barrier_wait(&barrier);
	STATUS(MW_OK, mw_buffer_connect(me->buffer, all, (uint32_t)num_ranks, 20000000));
	pthread_barrier_wait(&barrier);
}

static inline void start(struct rank *me)
{
	mw_config_t config = config_of((uint32_t)me->rank, (uint32_t)num_ranks);
	config.flags = MW_CONFIG_DEBUG_FILL;
	STATUS(MW_OK, mw_buffer_create(&config, &me->buffer));
	meet(me);
}

static inline mw_dispatch_args_t dispatch_args(struct rank *me, uint32_t flags)
{
	me->result = (mw_dispatch_result_t){.size = sizeof me->result};
	return (mw_dispatch_args_t){
		.size = sizeof(mw_dispatch_args_t),
		.flags = flags,
		.x = ADDRESS(me->in.x),
		.topk_idx = ADDRESS(me->in.topk_idx),
		.num_tokens = me->in.num_tokens,
		.hidden = H,
		.num_topk = K,
		.num_max_tokens_per_rank = M,
		.num_experts = num_experts,
		.timeout_us = 20000000,
		.slice_us = -1,
		.recv_count = ADDRESS(me->recv_count),
		.layout_range = ADDRESS(me->layout_range),
		.result = &me->result,
	};
}

static inline mw_combine_args_t combine_args(struct rank *me, uint64_t x, uint16_t *out)
{
	return (mw_combine_args_t){
		.size = sizeof(mw_combine_args_t),
		.flags = x == me->result.combine_x ? MW_COMBINE_ZERO_COPY : 0,
		.handle = me->result.handle,
		.x = x,
		.topk_idx = ADDRESS(me->in.topk_idx),
		.topk_weights = ADDRESS(me->in.weights),
		.out = ADDRESS(out),
		.num_tokens = me->in.num_tokens,
		.num_topk = K,
		.timeout_us = 20000000,
		.slice_us = -1,
	};
}

/* Drives an operation to its end in one of three ways, and closes it. */
static inline void finish(mw_op_t op, int how)
{
	if (op.id == 0)
		return;
	mw_status_t status = MW_IN_PROGRESS;
	for (int i = 0; status == MW_IN_PROGRESS; i++) {
		if (how == 0)
			status = mw_op_wait(op, i ? MW_PHASE_DONE : MW_PHASE_SENT, -1);
		else if (how == 1)
			status = mw_op_wait(op, 0, 200);
		else
			status = (sched_yield(), mw_op_test(op));
		if (how == 0 && i == 0 && status == MW_OK)
			status = MW_IN_PROGRESS;
	}
	if (status != MW_OK)
		FAIL("the operation ended with %d", status);
	STATUS(MW_OK, mw_op_test(op)); /* again: the same */
	STATUS(MW_OK, mw_op_cancel(op)); /* ended: changes nothing */
	STATUS(MW_OK, mw_op_test(op));
	STATUS(MW_OK, mw_op_close(op));
	REFUSED(MW_ERR_HANDLE, mw_op_close(op));
	REFUSED(MW_ERR_HANDLE, mw_op_wait(op, 0, 0));
}

#endif
