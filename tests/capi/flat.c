/*
 * Flat operations of ranks that are threads of one process, compared with the
 * model: rows, columns and sums, blocking and not; arguments that must be refused.
 */
#include <stddef.h>

#include "rank.h"

enum { ROUNDS = 60, EXTRA = 2, EXTRA_BYTES = 5 };

/* The extra data of a token, byte by byte. */
static uint8_t extra_of(int round, int rank, int token, int byte)
{
	return (uint8_t)(round * 31 + rank * 17 + token * 7 + byte);
}

static mw_dispatch_args_t flat_args(struct rank *me, int round, uint8_t *extra, uint32_t flags)
{
	mw_dispatch_args_t args = dispatch_args(me, MW_DISPATCH_FLAT | flags);
	for (int t = 0; t < me->in.num_tokens; t++)
		for (int i = 0; i < EXTRA_BYTES; i++)
			extra[t * EXTRA_BYTES + i] = extra_of(round, me->rank, t, i);
	args.topk_weights = flags & MW_DISPATCH_NO_ROUTING ? 0 : ADDRESS(me->in.weights);
	args.extra[EXTRA] = ADDRESS(extra);
	args.extra_row_bytes[EXTRA] = EXTRA_BYTES;
	return args;
}

static int here(int64_t expert, int rank)
{
	return expert >= 0 && expert / L == rank;
}

static int goes_to(const struct batch *b, int token, int rank)
{
	for (int k = 0; k < K; k++)
		if (here(b->topk_idx[token * K + k], rank))
			return 1;
	return 0;
}

/* A rank's output for one value: the outputs of its experts, weighted and added in order of k. */
static uint16_t rank_output(const struct batch *b, int token, int h, int rank)
{
	float sum = 0;
	for (int k = 0; k < K; k++) {
		int64_t expert = b->topk_idx[token * K + k];
		if (!here(expert, rank))
			continue;
		volatile float product = b->weights[token * K + k] * from_bf16(expert_output(b->x[token * H + h], (int)expert));
		sum = sum + product;
	}
	return to_bf16(sum);
}

static void check_columns(const struct rank *me, const struct batch *from, int64_t row, int token)
{
	const int64_t *ids = (const int64_t *)(uintptr_t)me->result.recv_topk_idx;
	const float *weights = (const float *)(uintptr_t)me->result.recv_topk_weights;
	for (int k = 0; k < K; k++) {
		int64_t expert = from->topk_idx[token * K + k];
		int own = here(expert, me->rank);
		CHECK(ids[row * K + k] == (own ? expert % L : -1));
		CHECK(weights[row * K + k] == (own ? from->weights[token * K + k] : 0));
	}
}

/* Checks every row that must be there, in order of rank and token, and its output. */
static void check_and_compute(const struct rank *me, int round, int no_routing, uint16_t *y)
{
	static _Thread_local struct batch from;
	const uint16_t *x = (const uint16_t *)(uintptr_t)me->result.recv_x;
	const int32_t *src_info = (const int32_t *)(uintptr_t)me->result.src_info;
	const uint8_t *extra = (const uint8_t *)(uintptr_t)me->result.recv_extra[EXTRA];
	int64_t row = 0;
	CHECK((me->result.recv_topk_idx == 0) == no_routing && (me->result.recv_topk_weights == 0) == no_routing);
	CHECK(me->result.recv_extra[0] == 0 && extra != NULL);
	for (int source = 0; source < num_ranks; source++) {
		int64_t begin = row;
		make_batch(&from, seed, round, source, num_experts);
		for (int t = 0; t < from.num_tokens; t++) {
			if (!goes_to(&from, t, me->rank))
				continue;
			CHECK(src_info[row] == t && memcmp(x + row * H, from.x + t * H, H * sizeof *x) == 0);
			for (int i = 0; i < EXTRA_BYTES; i++)
				CHECK(extra[row * EXTRA_BYTES + i] == extra_of(round, source, t, i));
			if (!no_routing)
				check_columns(me, &from, row, t);
			for (int h = 0; h < H; h++)
				y[row * H + h] = rank_output(&from, t, h, me->rank);
			row++;
		}
		CHECK((me->layout_range[source] & 0xffffffff) == row - begin);
		CHECK(row == begin || me->layout_range[source] >> 32 == begin);
	}
	CHECK(me->recv_count[0] == row);
}

static void check_sums(const struct rank *me, const uint16_t *out)
{
	for (int t = 0; t < me->in.num_tokens; t++)
		for (int h = 0; h < H; h++) {
			float sum = 0;
			for (int r = 0; r < num_ranks; r++)
				if (goes_to(&me->in, t, r))
					sum = sum + from_bf16(rank_output(&me->in, t, h, r));
			CHECK(out[t * H + h] == to_bf16(sum));
		}
}

/* The call is refused. It consumes nothing, and other ranks do not notice. */
static void check_bad_dispatches(struct rank *me, uint8_t *extra)
{
	mw_op_t op = {UNTOUCHED};
#define BAD(change) \
	do { \
		mw_dispatch_args_t args = flat_args(me, 0, extra, 0); \
		args.num_tokens = 1; \
		change; \
		REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_dispatch(me->buffer, &args, &op)); \
		CHECK(op.id == UNTOUCHED); \
	} while (0)
	BAD(args.topk_weights = 0);
	BAD(args.topk_weights += 1); /* misaligned */
	BAD(args.extra[EXTRA] = 0);
	BAD(args.extra_row_bytes[0] = MW_MAX_EXTRA_BYTES + 1);
	BAD(args.flags |= MW_DISPATCH_NO_ROUTING); /* but with weights */
	BAD(args.flags = MW_DISPATCH_NO_ROUTING);
	BAD(args.flags = 0);
	BAD((args.flags = 0, args.topk_weights = 0));
	BAD((args.flags = 0, args.topk_weights = 0, args.extra[EXTRA] = 0));
	BAD(args.num_topk = MW_MAX_TOPK + 1);
	BAD(args.recv_count = 0);
#undef BAD
}

static void check_bad_combines(struct rank *me, const mw_combine_args_t *right)
{
	mw_op_t op = {UNTOUCHED};
#define BAD(change) \
	do { \
		mw_combine_args_t args = *right; \
		change; \
		REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_combine(me->buffer, &args, &op)); \
		CHECK(op.id == UNTOUCHED); \
	} while (0)
	BAD(args.flags = 0);
	BAD((args.flags = 0, args.topk_idx = ADDRESS(me->in.topk_idx), args.topk_weights = ADDRESS(me->in.weights), args.num_topk = K));
	BAD(args.num_topk = K);
	BAD(args.topk_weights = ADDRESS(me->in.weights));
	BAD(args.num_tokens += 1);
	if (me->recv_count[0] > 0)
		BAD(args.x = 0);
#undef BAD
}

/* Callers that were built before flat rows existed: their structs are shorter. */
static void check_old_caller(struct rank *me)
{
	mw_op_t op = {UNTOUCHED};
	mw_dispatch_args_t args = dispatch_args(me, 0);
	args.size = offsetof(mw_dispatch_args_t, topk_weights);
	args.topk_weights = 1;
	me->result.size = offsetof(mw_dispatch_result_t, recv_topk_idx);
	me->result.recv_topk_idx = UNTOUCHED;
	STATUS(MW_OK, mw_buffer_dispatch(me->buffer, &args, &op));
	CHECK(op.id == 0 && me->result.recv_x != 0 && me->result.recv_topk_idx == UNTOUCHED);
	STATUS(MW_OK, mw_handle_release(me->result.handle));
}

static void one_round(struct rank *me, int round)
{
	make_batch(&me->in, seed, round, me->rank, num_experts);
	int no_routing = round % 4 == 3;
	uint8_t *extra = malloc(M * EXTRA_BYTES);
	uint16_t *out = malloc((size_t)M * H * sizeof *out), *all_rows = malloc((size_t)num_ranks * M * H * sizeof *all_rows);
	mw_op_t op = {UNTOUCHED};
	if (round % 5 == 0)
		check_bad_dispatches(me, extra);
	mw_dispatch_args_t args = flat_args(me, round, extra, no_routing ? MW_DISPATCH_NO_ROUTING : 0);
	if (round % 2)
		args.phase = MW_PHASE_SENT;
	mw_status_t status = mw_buffer_dispatch(me->buffer, &args, &op);
	CHECK(status == MW_OK && op.id != UNTOUCHED);
	finish(op, round % 3);
	check_and_compute(me, round, no_routing, all_rows);
	/* The memory is exactly as large as needed: the sanitizer sees one byte too many. */
	size_t bytes = (size_t)me->recv_count[0] * H * sizeof *out;
	uint16_t *y = bytes ? malloc(bytes) : NULL;
	if (bytes)
		memcpy(y, all_rows, bytes);
	if (round % 3 == 0 && bytes)
		memcpy((void *)(uintptr_t)me->result.combine_x, y, bytes);
	mw_combine_args_t back = combine_args(me, round % 3 == 0 ? me->result.combine_x : ADDRESS(y), out);
	back.flags |= MW_COMBINE_FLAT;
	back.topk_idx = back.topk_weights = 0;
	back.num_topk = 0;
	check_bad_combines(me, &back);
	op.id = UNTOUCHED;
	STATUS(MW_OK, mw_buffer_combine(me->buffer, &back, &op));
	finish(op, round % 3);
	check_sums(me, out);
	free(y);
	free(all_rows);
	free(out);
	free(extra);
}

/* The sizes of the hint are those of the dispatch. */
static void check_hint(void)
{
	mw_shape_t shape = {
		.size = sizeof shape, .num_slots = 1, .num_max_tokens_per_rank = 1 << 16, .hidden = 8,
		.num_ranks = 1, .num_experts = 8, .flags = MW_SHAPE_FLAT, .num_topk = 8, .extra_row_bytes = {0, 1000}};
	uint64_t with = 0, without = 0, packed = 0;
	STATUS(MW_OK, mw_buffer_size_hint(&shape, &with));
	shape.extra_row_bytes[1] = 0;
	STATUS(MW_OK, mw_buffer_size_hint(&shape, &without));
	CHECK(with - without > 60000000 && with - without < 70000000);
	shape.flags = 0;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_size_hint(&shape, &packed));
	shape.num_topk = 0;
	STATUS(MW_OK, mw_buffer_size_hint(&shape, &packed));
	CHECK(packed > without);
	shape.flags = MW_SHAPE_FLAT;
	shape.num_topk = MW_MAX_TOPK + 1;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_size_hint(&shape, &packed));
}

static void *run_rank(void *arg)
{
	struct rank *me = arg;
	start(me);
	for (int round = 0; round < ROUNDS; round++)
		one_round(me, round);
	check_old_caller(me);
	pthread_barrier_wait(&barrier);
	STATUS(MW_OK, mw_buffer_close(me->buffer));
	return NULL;
}

int main(void)
{
	check_hint();
	for (num_ranks = 1; num_ranks <= 3; num_ranks++) {
		static struct rank ranks[MAX_R];
		pthread_t threads[MAX_R];
		num_experts = num_ranks * L;
		seed = 40 + (uint64_t)num_ranks;
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
	printf("flat: ok\n");
	return 0;
}
