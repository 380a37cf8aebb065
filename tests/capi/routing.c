/*
 * Routings of ranks that are threads of one process, compared with the model: what a
 * routing says, scatter and gather in both layouts, blocking and not; arguments that must
 * be refused. All memory is exactly as large as needed: the sanitizer sees one byte more.
 */
#include <stddef.h>

#include "rank.h"
#include "moewire_routing.h"

enum { ROUNDS = 12, EXTRA_BYTES = 5, ALIGNMENT = 4 };

/* What one rank keeps of a routing. */
struct routed {
	struct rank *me;
	mw_routing_t routing;
	mw_routing_info_t info;
	int64_t *rows_from, *ids;
	int32_t *tokens, *expanded;
};

static void *exact(size_t bytes) { return bytes ? calloc(1, bytes) : NULL; }

/* One of a routing's tables, in memory of its length. */
static void *table(mw_routing_t routing, uint32_t what, int64_t alignment, size_t bytes)
{
	uint64_t len = UNTOUCHED;
	STATUS(MW_OK, mw_routing_read(routing, what, alignment, NULL, 0, &len));
	CHECK(len == bytes);
	void *to = exact(bytes);
	if (bytes)
		REFUSED(MW_ERR_INVALID_ARGUMENT, mw_routing_read(routing, what, alignment, to, bytes - 1, &len));
	STATUS(MW_OK, mw_routing_read(routing, what, alignment, to, bytes, &len));
	CHECK(len == bytes);
	return to;
}

static int is_here(const struct batch *b, int t, int rank)
{
	for (int k = 0; k < K; k++)
		if (b->topk_idx[t * K + k] >= 0 && b->topk_idx[t * K + k] / L == rank)
			return 1;
	return 0;
}

/* Compares all tables with the model. */
static void check_routing(struct routed *r, int round)
{
	static _Thread_local struct batch from;
	int64_t n = r->info.num_rows, row = 0;
	int32_t counts[L] = {0};
	for (int source = 0; source < num_ranks; source++) {
		CHECK(r->rows_from[source] == row);
		make_batch(&from, seed, round, source, num_experts);
		for (int t = 0; t < from.num_tokens; t++) {
			if (!is_here(&from, t, r->me->rank))
				continue;
			CHECK(row < n && r->tokens[row] == t);
			for (int k = 0; k < K; k++) {
				int64_t e = from.topk_idx[t * K + k], want = e >= 0 && e / L == r->me->rank ? e % L : -1;
				CHECK(r->ids[row * K + k] == want);
				CHECK((r->expanded[row * K + k] >= 0) == (want >= 0));
				if (want >= 0)
					counts[want]++;
			}
			row++;
		}
	}
	CHECK(row == n && r->rows_from[num_ranks] == n);
	int32_t *said = table(r->routing, MW_ROUTING_COUNTS, 0, sizeof counts);
	CHECK(memcmp(said, counts, sizeof counts) == 0);
	free(said);
}

static void make(struct routed *r, struct rank *me, int round)
{
	make_batch(&me->in, seed, round, me->rank, num_experts);
	mw_routing_args_t a = {
		.size = sizeof a, .num_tokens = me->in.num_tokens, .num_topk = K, .num_experts = num_experts,
		.topk_idx = ADDRESS(me->in.topk_idx), .timeout_us = 20000000, .slice_us = round % 2 ? 0 : -1};
	mw_op_t op = {UNTOUCHED};
	*r = (struct routed){.me = me, .info = {.size = sizeof r->info}};
	mw_status_t status = mw_routing_create(me->buffer, &a, &r->routing, &op);
	CHECK(status == MW_OK || status == MW_IN_PROGRESS);
	CHECK((op.id != 0) == (status == MW_IN_PROGRESS));
	if (op.id && mw_op_test(op) == MW_IN_PROGRESS)
		REFUSED(MW_ERR_INVALID_ARGUMENT, mw_routing_info(r->routing, &r->info));
	finish(op, round % 3);
	STATUS(MW_OK, mw_routing_info(r->routing, &r->info));
	CHECK(r->info.num_tokens == me->in.num_tokens && r->info.num_topk == K && r->info.num_bytes > 0);
	CHECK(r->info.num_experts == num_experts && r->info.num_local_experts == L);
	CHECK(r->info.num_ranks == (uint32_t)num_ranks);
	size_t n = (size_t)r->info.num_rows;
	r->rows_from = table(r->routing, MW_ROUTING_ROWS_FROM, 0, (size_t)(num_ranks + 1) * 8);
	r->ids = table(r->routing, MW_ROUTING_LOCAL_IDS, 0, n * K * 8);
	r->tokens = table(r->routing, MW_ROUTING_SOURCE_TOKENS, 0, n * 4);
	r->expanded = table(r->routing, MW_ROUTING_EXPANDED_ROWS, ALIGNMENT, n * K * 4);
	free(table(r->routing, MW_ROUTING_TOKENS_FOR, 0, (size_t)num_ranks * 4));
	check_routing(r, round);
}

static void drop(struct routed *r)
{
	free(r->rows_from);
	free(r->ids);
	free(r->tokens);
	free(r->expanded);
	STATUS(MW_OK, mw_routing_close(r->routing));
	REFUSED(MW_ERR_HANDLE, mw_routing_close(r->routing));
	REFUSED(MW_ERR_HANDLE, mw_routing_info(r->routing, &r->info));
}

static int64_t rows_in(const struct routed *r, int expanded)
{
	int64_t rows = r->info.num_rows;
	if (expanded)
		STATUS(MW_OK, mw_routing_num_rows(r->routing, ALIGNMENT, &rows));
	return rows;
}

static uint8_t extra_of(int rank, int token, int byte) { return (uint8_t)(rank * 17 + token * 7 + byte); }

/* Scatters rows, weights and extra data, and compares each with its source. */
static void scatter(struct routed *r, int round, int expanded)
{
	static _Thread_local struct batch from;
	struct rank *me = r->me;
	int64_t rows = rows_in(r, expanded);
	size_t tokens = (size_t)me->in.num_tokens, num_weights = (size_t)(expanded ? rows : rows * K);
	uint8_t *extra = exact(tokens * EXTRA_BYTES), *out_extra = exact((size_t)rows * EXTRA_BYTES);
	uint16_t *out = exact((size_t)rows * H * 2);
	float *weights = exact(num_weights * 4);
	for (size_t i = 0; i < tokens * EXTRA_BYTES; i++)
		extra[i] = extra_of(me->rank, (int)i / EXTRA_BYTES, (int)i % EXTRA_BYTES);
	mw_scatter_args_t a = {
		.size = sizeof a, .flags = MW_SCATTER_WEIGHTS | (expanded ? MW_SCATTER_EXPANDED | MW_SCATTER_ZERO_GAPS : 0),
		.routing = r->routing, .x = ADDRESS(me->in.x), .row_bytes = 2 * H, .out = ADDRESS(out),
		.topk_weights = ADDRESS(me->in.weights), .out_weights = ADDRESS(weights), .extra = ADDRESS(extra),
		.out_extra = ADDRESS(out_extra), .extra_row_bytes = EXTRA_BYTES, .expert_alignment = expanded ? ALIGNMENT : 0,
		.timeout_us = 20000000, .slice_us = round % 2 ? 0 : -1};
	mw_op_t op = {UNTOUCHED};
	mw_status_t status = mw_buffer_scatter(me->buffer, &a, &op);
	CHECK(status == MW_OK || status == MW_IN_PROGRESS);
	finish(op, (round + 1) % 3);
	int source = -1;
	for (int64_t row = 0; row < r->info.num_rows; row++) {
		while (source < 0 || r->rows_from[source + 1] <= row)
			make_batch(&from, seed, round, ++source, num_experts);
		int t = r->tokens[row];
		for (int k = 0; k < K; k++) {
			int64_t at = expanded ? r->expanded[row * K + k] : row;
			float want = r->ids[row * K + k] < 0 ? 0 : from.weights[t * K + k];
			CHECK(at < 0 || weights[expanded ? at : row * K + k] == want);
			if (at < 0)
				continue;
			CHECK(memcmp(out + at * H, from.x + t * H, H * 2) == 0);
			for (int i = 0; i < EXTRA_BYTES; i++)
				CHECK(out_extra[at * EXTRA_BYTES + i] == extra_of(source, t, i));
		}
	}
	free(extra);
	free(out_extra);
	free(out);
	free(weights);
}

/* The row that a rank gives back for a token: small whole numbers, so that sums are exact. */
static float answer(int rank, int source, int token) { return (float)(1 + rank + source * 3 + token % 16); }

/* Gathers rows of one number each, in bf16 or float32. */
static void gather(struct routed *r, int expanded, int fp32)
{
	struct rank *me = r->me;
	int64_t rows = rows_in(r, expanded);
	size_t width = fp32 ? 4 : 2, tokens = (size_t)me->in.num_tokens, num_weights = (size_t)(expanded ? rows : rows * K);
	unsigned char *x = exact((size_t)rows * H * width), *out = exact(tokens * H * width), *bias = exact(tokens * H * width);
	float *weights = exact(num_weights * 4), *home = exact(tokens * K * 4);
	for (size_t i = 0; i < num_weights; i++)
		weights[i] = (float)(1 + me->rank);
	int source = -1;
	for (int64_t row = 0; row < r->info.num_rows; row++) {
		while (source < 0 || r->rows_from[source + 1] <= row)
			source++;
		int given = 0; /* expanded: the whole answer in the first selection, 0 in the others */
		for (int k = 0; k < K; k++) {
			int64_t at = expanded ? r->expanded[row * K + k] : row;
			if (at < 0 || (!expanded && k > 0))
				continue;
			float v = given++ ? 0 : answer(me->rank, source, r->tokens[row]);
			for (int h = 0; h < H; h++) {
				uint16_t narrow = to_bf16(v);
				memcpy(x + (size_t)(at * H + h) * width, fp32 ? (void *)&v : (void *)&narrow, width);
			}
		}
	}
	mw_gather_args_t a = {
		.size = sizeof a, .flags = MW_GATHER_WEIGHTS | MW_GATHER_OWNERS_ONLY | (expanded ? MW_GATHER_EXPANDED : 0) |
		(fp32 ? MW_GATHER_FP32_ROWS | MW_GATHER_FP32_OUT : 0), .routing = r->routing, .x = ADDRESS(x), .hidden = H,
		.out = ADDRESS(out), .topk_weights = ADDRESS(weights), .out_weights = ADDRESS(home), .bias = {0, ADDRESS(bias)},
		.expert_alignment = expanded ? ALIGNMENT : 0, .timeout_us = 20000000, .slice_us = -1};
	mw_op_t op = {UNTOUCHED};
	STATUS(MW_OK, mw_buffer_gather(me->buffer, &a, &op));
	CHECK(op.id == 0);
	for (int t = 0; t < me->in.num_tokens; t++) {
		float sum = 0;
		for (int rank = 0; rank < num_ranks; rank++)
			sum += is_here(&me->in, t, rank) ? answer(rank, me->rank, t) : 0;
		for (int h = 0; h < H; h++) {
			uint16_t narrow = to_bf16(sum);
			CHECK(memcmp(out + (size_t)(t * H + h) * width, fp32 ? (void *)&sum : (void *)&narrow, width) == 0);
		}
		for (int k = 0; k < K; k++) {
			int64_t e = me->in.topk_idx[t * K + k];
			CHECK(home[t * K + k] == (e < 0 ? 0 : (float)(1 + e / L)));
		}
	}
	free(x);
	free(out);
	free(bias);
	free(weights);
	free(home);
}

/* What is refused changes nothing, and is named. */
static void check_refusals(struct routed *r)
{
	mw_buffer_t buffer = r->me->buffer;
	mw_op_t op = {UNTOUCHED};
	mw_routing_t none = {UNTOUCHED};
	mw_routing_args_t m = {.size = sizeof m, .num_topk = K, .num_experts = num_experts, .timeout_us = -1, .slice_us = -1};
	static _Thread_local unsigned char room[1 << 14];
	mw_scatter_args_t s = {.size = sizeof s, .routing = r->routing, .x = ADDRESS(room), .row_bytes = 16, .out = ADDRESS(room), .timeout_us = -1, .slice_us = -1};
	mw_gather_args_t g = {.size = sizeof g, .routing = r->routing, .x = ADDRESS(room), .hidden = 8, .out = ADDRESS(room), .timeout_us = -1, .slice_us = -1};
	uint64_t len = UNTOUCHED;
	int64_t rows = 77;
#define WRONG(change, call, words) \
	do { \
		change; \
		REFUSED(MW_ERR_INVALID_ARGUMENT, call); \
		if (strstr(mw_last_error(), words) == NULL) \
			FAIL("no word of %s", words); \
	} while (0)
	WRONG(m.num_topk = MW_MAX_TOPK + 1, mw_routing_create(buffer, &m, &none, &op), "num_topk is 65");
	m.num_topk = K;
	WRONG(m.num_tokens = -1, mw_routing_create(buffer, &m, &none, &op), "num_tokens is -1");
	WRONG(m.num_tokens = 1, mw_routing_create(buffer, &m, &none, &op), "topk_idx is NULL");
	m.num_tokens = 0;
	WRONG(m.reserved = 1, mw_routing_create(buffer, &m, &none, &op), "args->reserved is 1");
	WRONG(, mw_routing_create(buffer, &m, NULL, &op), "routing is NULL");
	WRONG(s.flags = 1u << 31, mw_buffer_scatter(buffer, &s, &op), "args->flags is 0x80000000, allowed bits 0x7");
	WRONG(s.flags = MW_SCATTER_ZERO_GAPS, mw_buffer_scatter(buffer, &s, &op), "no gaps");
	s.flags = 0;
	WRONG(s.expert_alignment = 1, mw_buffer_scatter(buffer, &s, &op), "expert_alignment is 1");
	WRONG(s.flags = MW_SCATTER_EXPANDED; s.expert_alignment = 1ll << 62, mw_buffer_scatter(buffer, &s, &op), "expert_alignment is");
	s.flags = 0, s.expert_alignment = 0;
	WRONG(s.row_bytes = 8, mw_buffer_scatter(buffer, &s, &op), "8");
	WRONG(s.row_bytes = INT64_MAX, mw_buffer_scatter(buffer, &s, &op), "row_bytes is");
	WRONG(g.hidden = 4, mw_buffer_gather(buffer, &g, &op), "hidden is 4");
	g.hidden = 8;
	WRONG(g.flags = MW_GATHER_FP32_OUT, mw_buffer_gather(buffer, &g, &op), "");
	WRONG(g.flags = 32, mw_buffer_gather(buffer, &g, &op), "args->flags is 0x20, allowed bits 0x1f");
	WRONG(, mw_routing_read(r->routing, 7, 0, NULL, 0, &len), "what is 7, allowed 1 to 6");
	WRONG(, mw_routing_read(r->routing, MW_ROUTING_COUNTS, 1, NULL, 0, &len), "expert_alignment is 1, allowed 0");
	WRONG(, mw_routing_num_rows(r->routing, 65537, &rows), "expert_alignment is 65537, allowed 1 to 65536");
	s = (mw_scatter_args_t){.size = sizeof s, .routing = {r->routing.id + 1000}, .row_bytes = 16};
	REFUSED(MW_ERR_HANDLE, mw_buffer_scatter(buffer, &s, &op));
	mw_buffer_t lone = lone_buffer();
	s.routing = r->routing;
	WRONG(, mw_buffer_scatter(lone, &s, &op), "belongs to buffer");
	STATUS(MW_OK, mw_buffer_close(lone));
	CHECK(op.id == UNTOUCHED && none.id == UNTOUCHED && len == UNTOUCHED && rows == 77);
}

/* A scatter that is given up ends on the other ranks, too. */
static void check_cancel(struct routed *r)
{
	mw_scatter_args_t a = {
		.size = sizeof a, .routing = r->routing, .x = ADDRESS(r->me->in.x), .row_bytes = 2 * H,
		.out = ADDRESS(exact((size_t)r->info.num_rows * 2 * H)), .timeout_us = 20000000, .slice_us = 0};
	mw_op_t op = {0};
	if (r->me->rank == 0) {
		STATUS(MW_IN_PROGRESS, mw_buffer_scatter(r->me->buffer, &a, &op));
		STATUS(MW_OK, mw_op_cancel(op));
		REFUSED(MW_ERR_CANCELLED, mw_op_wait(op, 0, -1));
		STATUS(MW_OK, mw_op_close(op));
	}
	pthread_barrier_wait(&barrier);
	a.slice_us = -1;
	REFUSED(MW_ERR_PEER_LOST, mw_buffer_scatter(r->me->buffer, &a, &op));
	free((void *)(uintptr_t)a.out);
}

static void *run_rank(void *arg)
{
	struct rank *me = arg;
	struct routed last;
	start(me);
	for (int round = 0; round < ROUNDS; round++) {
		struct routed r;
		make(&r, me, round);
		scatter(&r, round, 0);
		gather(&r, 0, round % 2);
		scatter(&r, round, 1);
		gather(&r, 1, 0);
		check_refusals(&r);
		drop(&r);
	}
	make(&last, me, 0);
	if (num_ranks > 1)
		check_cancel(&last);
	pthread_barrier_wait(&barrier);
	STATUS(MW_OK, mw_buffer_close(me->buffer));
	STATUS(MW_OK, mw_routing_info(last.routing, &last.info)); /* it outlives its buffer */
	drop(&last);
	return NULL;
}

int main(void)
{
	for (num_ranks = 1; num_ranks <= 3; num_ranks++) {
		static struct rank ranks[MAX_R];
		pthread_t threads[MAX_R];
		num_experts = num_ranks * L;
		seed = 70 + (uint64_t)num_ranks;
		memset(ranks, 0, sizeof ranks);
		CHECK(pthread_barrier_init(&barrier, NULL, (unsigned)num_ranks) == 0);
		for (int r = 0; r < num_ranks; r++) {
			ranks[r].rank = r;
			CHECK(pthread_create(&threads[r], NULL, run_rank, &ranks[r]) == 0);
		}
		for (int r = 0; r < num_ranks; r++)
			CHECK(pthread_join(threads[r], NULL) == 0);
		CHECK(pthread_barrier_destroy(&barrier) == 0);
	}
	printf("routing: ok\n");
	return 0;
}
