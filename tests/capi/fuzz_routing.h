/*
 * The calls of moewire_routing.h that fuzz.c makes. Memory that the contract lets the
 * library read is always there: how much depends on the routing.
 */
#ifndef FUZZ_ROUTING_H
#define FUZZ_ROUTING_H

#include "fuzz_buffers.h"
#include "moewire_routing.h"

/* The routings that may be used. No other id is one. */
static struct open_routing {
	uint64_t id;
	mw_routing_info_t info;
} open_routings[8];
static struct ids routings;
static unsigned num_routings;

static const struct open_routing *routing_of(uint64_t id)
{
	for (size_t i = 0; i < COUNT(open_routings); i++)
		if (id != 0 && open_routings[i].id == id)
			return &open_routings[i];
	return NULL;
}

/* Keeps a routing in place of the oldest one, if it may be used. An operation outlives its routing. */
static void keep_routing(mw_routing_t routing)
{
	struct open_routing made = {.id = routing.id, .info = {.size = sizeof made.info}};
	remember(&routings, routing.id);
	if (mw_routing_info(routing, &made.info) != MW_OK) {
		STATUS(MW_OK, mw_routing_close(routing));
		return;
	}
	struct open_routing *at = &open_routings[num_routings++ % COUNT(open_routings)];
	if (at->id)
		STATUS(MW_OK, mw_routing_close((mw_routing_t){at->id}));
	*at = made;
}

/* Routings of one rank alone, as a rule: a call that is given up ends the epoch of two. */
static mw_buffer_t routing_buffer(void)
{
	return rarely(16) ? some_buffer() : lone;
}

static mw_status_t call_routing_create(void)
{
	mw_buffer_t buffer = routing_buffer();
	mw_routing_args_t a = {
		.size = sizeof a, .num_tokens = (int64_t)below(T + 1), .num_topk = (int64_t)below(K + 1), .num_experts = E,
		.timeout_us = some_time(), .slice_us = some_time()};
	mutate(&a, sizeof a);
	may_wait(buffer, &a.slice_us);
	mw_routing_args_t seen = a;
	as_read(&seen, sizeof seen);
	a.topk_idx = memory(1, product(seen.num_tokens, seen.num_topk, 8), 1 << 16);
	a.is_token_in_rank = rarely(2) ? memory(3, product(seen.num_tokens, 2, 1), 1 << 16) : 0;
	a.num_tokens_per_expert = rarely(2) ? memory(4, product(seen.num_experts, 4, 1), 1 << 20) : 0;
	void *given = rarely(32) ? NULL : exactly(&a, sizeof a);
	mw_routing_t routing = {UNTOUCHED};
	mw_op_t op = {UNTOUCHED};
	mw_status_t status = mw_routing_create(buffer, given, rarely(32) ? NULL : &routing, rarely(32) ? NULL : &op);
	free(given);
	CHECK((status >= 0) == (routing.id != UNTOUCHED) && (status >= 0) == (op.id != UNTOUCHED));
	if (status >= 0) {
		if (op.id)
			remember(&ops, op.id);
		keep_routing(routing);
	}
	return status;
}

static mw_status_t call_routing_read(void)
{
	static unsigned char room[1 << 16];
	mw_routing_t routing = {some_id(&routings)};
	mw_routing_info_t info = {.size = sizeof info};
	uint64_t len = UNTOUCHED, cap = rarely(4) ? below(64) : sizeof room;
	int64_t rows = 77, alignment = rarely(2) ? 1 + (int64_t)below(9) : (int64_t)strange64();
	mw_status_t status;
	switch (below(4)) {
	case 0: {
		mutate(&info, 8);
		void *out = rarely(32) ? NULL : exactly(&info, sizeof info);
		status = mw_routing_info(routing, out);
		free(out);
		return status;
	}
	case 1:
		status = mw_routing_num_rows(routing, alignment, rarely(32) ? NULL : &rows);
		CHECK(status == MW_OK || rows == 77);
		return status;
	default:
		status = mw_routing_read(routing, rarely(8) ? (uint32_t)strange64() : 1 + (uint32_t)below(6),
		                         rarely(2) ? 0 : alignment, rarely(8) ? NULL : room + below(8), cap > 8 ? cap - 8 : 0,
		                         rarely(32) ? NULL : &len);
		CHECK(status != MW_OK || len != UNTOUCHED);
		return status;
	}
}

/* The rows of a layout; -1: it is none. */
static int64_t rows_of(const struct open_routing *r, int expanded, int64_t alignment)
{
	int64_t rows = r->info.num_rows;
	if (expanded && mw_routing_num_rows((mw_routing_t){r->id}, alignment, &rows) != MW_OK)
		return -1;
	return rows;
}

static mw_status_t call_scatter(void)
{
	mw_buffer_t buffer = routing_buffer();
	mw_scatter_args_t a = {
		.size = sizeof a, .flags = (uint32_t)below(8), .routing = {some_id(&routings)}, .row_bytes = 16 * (1 + (int64_t)below(9)),
		.extra_row_bytes = rarely(2) ? (uint32_t)below(9) : 0, .timeout_us = some_time(), .slice_us = some_time()};
	a.expert_alignment = a.flags & MW_SCATTER_EXPANDED ? 1 + (int64_t)below(9) : 0;
	mutate(&a, sizeof a);
	may_wait(buffer, &a.slice_us);
	mw_scatter_args_t seen = a;
	as_read(&seen, sizeof seen);
	const struct open_routing *r = routing_of(seen.routing.id);
	a.x = a.out = a.topk_weights = a.out_weights = a.extra = a.out_extra = 0;
	if (r != NULL) {
		int64_t t = r->info.num_tokens, k = r->info.num_topk, extra = seen.extra_row_bytes, limit = 1 << 20;
		int expanded = (seen.flags & MW_SCATTER_EXPANDED) != 0;
		int64_t rows = rows_of(r, expanded, seen.expert_alignment);
		a.x = memory(0, product(t, seen.row_bytes, 1), limit);
		a.out = memory(1, product(rows, seen.row_bytes, 1), limit);
		a.topk_weights = memory(2, product(t, k, 4), limit);
		a.out_weights = memory(3, product(rows, expanded ? 1 : k, 4), limit);
		a.extra = memory(4, product(t, extra, 1), limit);
		a.out_extra = memory(5, product(rows, extra, 1), limit);
	}
	void *given = rarely(32) ? NULL : exactly(&a, sizeof a);
	mw_op_t op = {UNTOUCHED};
	mw_status_t status = mw_buffer_scatter(buffer, given, rarely(32) ? NULL : &op);
	free(given);
	CHECK((status >= 0) == (op.id != UNTOUCHED));
	if (status >= 0 && op.id)
		remember(&ops, op.id);
	return status;
}

static mw_status_t call_gather(void)
{
	mw_buffer_t buffer = routing_buffer();
	mw_gather_args_t a = {
		.size = sizeof a, .flags = (uint32_t)below(32), .routing = {some_id(&routings)}, .hidden = 8 * (1 + (int64_t)below(9)),
		.timeout_us = some_time(), .slice_us = some_time()};
	a.expert_alignment = a.flags & MW_GATHER_EXPANDED ? 1 + (int64_t)below(9) : 0;
	mutate(&a, sizeof a);
	may_wait(buffer, &a.slice_us);
	mw_gather_args_t seen = a;
	as_read(&seen, sizeof seen);
	const struct open_routing *r = routing_of(seen.routing.id);
	a.x = a.out = a.topk_weights = a.out_weights = a.bias[0] = a.bias[1] = 0;
	if (r != NULL) {
		int64_t t = r->info.num_tokens, k = r->info.num_topk, limit = 1 << 20;
		int expanded = (seen.flags & MW_GATHER_EXPANDED) != 0;
		int64_t rows = rows_of(r, expanded, seen.expert_alignment);
		a.x = memory(0, product(rows, seen.hidden, 4), limit);
		a.out = memory(1, product(t, seen.hidden, 4), limit);
		a.topk_weights = memory(2, product(rows, expanded ? 1 : k, 4), limit);
		a.out_weights = memory(3, product(t, k, 4), limit);
		for (int i = 0; i < MW_MAX_BIASES; i++)
			a.bias[i] = rarely(2) ? memory(4 + i, product(t, seen.hidden, 4), limit) : 0;
	}
	void *given = rarely(32) ? NULL : exactly(&a, sizeof a);
	mw_op_t op = {UNTOUCHED};
	mw_status_t status = mw_buffer_gather(buffer, given, rarely(32) ? NULL : &op);
	free(given);
	CHECK((status >= 0) == (op.id != UNTOUCHED));
	if (status >= 0 && op.id)
		remember(&ops, op.id);
	return status;
}

static mw_status_t call_routing(void)
{
	switch (below(4)) {
	case 0: return call_routing_create();
	case 1: return call_routing_read();
	case 2: return call_scatter();
	default: return call_gather();
	}
}

#endif
