/*
 * Ranks as threads of one process: dispatch and combine in bf16 and fp8,
 * blocking and not, compared with the model; arguments that must be refused;
 * cancelling, deadlines, closing.
 *
 *     ranks NUM_RANKS SEED
 */
#include "refusals.h"
#include "results.h"

enum { ROUNDS = 60 };

static void dispatch(struct rank *me, int round, uint32_t flags)
{
	mw_dispatch_args_t args = dispatch_args(me, flags);
	mw_op_t op = {UNTOUCHED};
	if (round % 2) {
		args.phase = MW_PHASE_SENT;
		args.slice_us = round % 3 ? 0 : 300;
	}
	mw_status_t status = mw_buffer_dispatch(me->buffer, &args, &op);
	if (status != MW_OK && status != MW_IN_PROGRESS)
		FAIL("rank %d round %d: dispatch gave %d", me->rank, round, status);
	CHECK(op.id != UNTOUCHED && (status == MW_OK || op.id != 0));
	finish(op, round % 3);
}

static void combine(struct rank *me, int round, uint64_t x, uint16_t *out)
{
	mw_combine_args_t args = combine_args(me, x, out);
	mw_op_t op = {UNTOUCHED};
	if (round % 3 == 1)
		args.slice_us = 0;
	mw_status_t status = mw_buffer_combine(me->buffer, &args, &op);
	if (status != MW_OK && status != MW_IN_PROGRESS)
		FAIL("rank %d round %d: combine gave %d", me->rank, round, status);
	finish(op, round % 3);
}

/* --------------------------------------------------------------- rounds -- */

static void one_round(struct rank *me, int round)
{
	size_t rows = (size_t)L * (size_t)num_ranks * M;
	int fp8 = round % 6 == 5;
	/* The arrays are exactly as large as needed: the sanitizer sees one byte too many. */
	uint16_t *out = malloc((size_t)M * H * sizeof *out);
	uint16_t *elsewhere = malloc(rows * H * sizeof *elsewhere);
	make_batch(&me->in, seed, round, me->rank, num_experts);
	if (round % 4 == 0)
		check_bad_arguments(me);
	dispatch(me, round, fp8 ? MW_DISPATCH_FP8 : 0);
	check_received(me, round, fp8);
	if (fp8) {
		STATUS(MW_OK, mw_handle_release(me->result.handle));
		REFUSED(MW_ERR_STALE_HANDLE, mw_handle_release(me->result.handle));
	} else {
		compute_experts(me, elsewhere);
		check_bad_combines(me, ADDRESS(elsewhere), out);
		memset(out, 0xff, (size_t)M * H * sizeof *out);
		combine(me, round, ADDRESS(elsewhere), out);
		check_combined(me, out);
	}
	if (round % 3 == 0 && !fp8) { /* the same handle again, in place */
		uint64_t y = 0;
		STATUS(MW_OK, mw_buffer_combine_buffer(me->buffer, me->result.handle, 20000000, &y));
		CHECK(y == me->result.combine_x);
		compute_experts(me, (uint16_t *)(uintptr_t)y);
		memset(out, 0xff, (size_t)M * H * sizeof *out);
		combine(me, round + 1, y, out);
		check_combined(me, out);
	}
	free(elsewhere);
	free(out);
}

/* Rank 0 cancels. The others receive, learn of it at the combine, and all go on. */
static void check_cancel(struct rank *me, int round)
{
	uint16_t *out = malloc((size_t)M * H * sizeof *out);
	uint16_t *y = calloc((size_t)L * (size_t)num_ranks * M * H, sizeof *y);
	make_batch(&me->in, seed, round, me->rank, num_experts);
	mw_dispatch_args_t args = dispatch_args(me, 0);
	mw_op_t op = {0};
	if (me->rank == 0) {
		args.phase = MW_PHASE_SENT;
		STATUS(MW_OK, mw_buffer_dispatch(me->buffer, &args, &op));
		CHECK(op.id != 0 || num_ranks == 1);
		if (op.id != 0) {
			STATUS(MW_OK, mw_op_cancel(op)); /* no other rank has sent: the operation has not ended */
			pthread_barrier_wait(&barrier);
			REFUSED(MW_ERR_CANCELLED, mw_op_wait(op, 0, -1));
			REFUSED(MW_ERR_CANCELLED, mw_op_test(op));
			STATUS(MW_OK, mw_op_cancel(op));
			STATUS(MW_OK, mw_op_close(op));
		}
	} else {
		pthread_barrier_wait(&barrier);
		STATUS(MW_OK, mw_buffer_dispatch(me->buffer, &args, &op));
		finish(op, 0);
		check_received(me, round, 0);
		mw_combine_args_t back = combine_args(me, ADDRESS(y), out);
		mw_status_t status = mw_buffer_combine(me->buffer, &back, &op);
		CHECK(status == MW_OK || status == MW_ERR_NOT_COMBINED);
		if (status == MW_OK)
			finish(op, 0);
	}
	free(y);
	free(out);
}

/* Begins the next epoch with all ranks: the same buffers, new metadata. */
static void update(struct rank *me)
{
	STATUS(MW_OK, mw_buffer_update(me->buffer));
	meet(me);
	STATUS(MW_OK, mw_buffer_install(me->buffer));
}

/* Only rank 0 dispatches. The others are late, and learn that they are out; all rejoin. */
static void check_deadline(struct rank *me)
{
	int32_t active[MW_MAX_RANKS];
	mw_op_t op = {UNTOUCHED};
	mw_members_t now = {.size = sizeof now};
	if (num_ranks == 1)
		return;
	make_batch(&me->in, seed, 1, 0, num_experts);
	mw_dispatch_args_t args = dispatch_args(me, 0);
	if (me->rank == 0) {
		for (int r = 0; r < num_ranks; r++)
			active[r] = 1;
		args.timeout_us = 50000;
		args.active_ranks = ADDRESS(active);
		args.num_active_ranks = num_ranks;
		STATUS(MW_OK, mw_buffer_dispatch(me->buffer, &args, &op));
		for (int r = 0; r < num_ranks; r++)
			CHECK(active[r] == (r == 0));
	}
	pthread_barrier_wait(&barrier);
	if (me->rank != 0) {
		REFUSED(MW_ERR_FENCED, mw_buffer_dispatch(me->buffer, &args, &op));
		CHECK(op.id == UNTOUCHED);
	}
	STATUS(MW_OK, mw_buffer_members(me->buffer, &now));
	CHECK(now.ranks == 1 && now.epoch == 1 && now.num_lost == (uint64_t)(me->rank == 0 ? num_ranks - 1 : 0));
	pthread_barrier_wait(&barrier);
	update(me);
	STATUS(MW_OK, mw_buffer_members(me->buffer, &now));
	CHECK(now.ranks == (1ull << num_ranks) - 1 && now.epoch == 2);
	for (int round = ROUNDS + 8; round < ROUNDS + 12; round++)
		one_round(me, round);
}

static void check_counters(const struct rank *me)
{
	mw_counters_t c = {.size = sizeof c};
	STATUS(MW_OK, mw_buffer_counters(me->buffer, &c));
	uint64_t sent = 0;
	for (int r = 0; r < num_ranks; r++)
		sent += c.num_rows_sent_to[r];
	CHECK(c.num_ranks == (uint32_t)num_ranks && c.num_dispatches >= ROUNDS);
	CHECK(sent == c.num_rows_sent && c.num_rows_received > 0 && c.num_bytes_placed > 0);
}

static void *run_rank(void *arg)
{
	struct rank *me = arg;
	start(me);
	for (int round = 0; round < ROUNDS; round++)
		one_round(me, round);
	check_cancel(me, ROUNDS + 1);
	for (int round = ROUNDS + 2; round < ROUNDS + 8; round++)
		one_round(me, round);
	check_counters(me);
	mw_memory_t memory = me->result.memory;
	const volatile uint16_t *x = (const volatile uint16_t *)(uintptr_t)me->result.recv_x;
	STATUS(MW_OK, mw_memory_retain(memory));
	pthread_barrier_wait(&barrier);
	check_deadline(me);
	pthread_barrier_wait(&barrier);
	mw_handle_t handle = me->result.handle;
	STATUS(MW_OK, mw_buffer_close(me->buffer));
	REFUSED(MW_ERR_HANDLE, mw_buffer_close(me->buffer));
	CHECK(mw_handle_release(handle) < 0);
	(void)x[0]; /* retained memory: stale, but mapped */
	STATUS(MW_OK, mw_memory_release(memory));
	REFUSED(MW_ERR_HANDLE, mw_memory_release(memory));
	return NULL;
}

static _Atomic int is_waiting;

static void *wait_for_nobody(void *arg)
{
	struct rank *me = arg;
	mw_dispatch_args_t args = dispatch_args(me, 0);
	mw_op_t op = {UNTOUCHED};
	args.timeout_us = -1;
	is_waiting = 1;
	mw_status_t status = mw_buffer_dispatch(me->buffer, &args, &op);
	/* On a busy machine the close can come before the call: then the id is gone. */
	CHECK(status == MW_ERR_CLOSED || status == MW_ERR_HANDLE);
	CHECK(op.id == UNTOUCHED);
	return NULL;
}

/* A close in one thread ends the wait of another. */
static void *close_while_waiting(void *arg)
{
	struct rank *me = arg;
	start(me);
	if (me->rank == 0 && num_ranks > 1) {
		pthread_t waiter;
		make_batch(&me->in, seed, 1, 0, num_experts);
		CHECK(pthread_create(&waiter, NULL, wait_for_nobody, me) == 0);
		struct timespec pause = {.tv_nsec = 20000000};
		while (!is_waiting)
			sched_yield();
		nanosleep(&pause, NULL);
		STATUS(MW_OK, mw_buffer_close(me->buffer));
		CHECK(pthread_join(waiter, NULL) == 0);
	}
	pthread_barrier_wait(&barrier);
	if (me->rank != 0 || num_ranks == 1)
		STATUS(MW_OK, mw_buffer_close(me->buffer));
	return NULL;
}

static void run_all(void *(*body)(void *))
{
	static struct rank ranks[MAX_R];
	pthread_t threads[MAX_R];
	memset(ranks, 0, sizeof ranks);
	for (int r = 0; r < num_ranks; r++) {
		ranks[r].rank = r;
		CHECK(pthread_create(&threads[r], NULL, body, &ranks[r]) == 0);
	}
	for (int r = 0; r < num_ranks; r++)
		CHECK(pthread_join(threads[r], NULL) == 0);
}

int main(int argc, char **argv)
{
	num_ranks = argc > 1 ? atoi(argv[1]) : 2;
	seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	CHECK(num_ranks >= 1 && num_ranks <= MAX_R);
	num_experts = num_ranks * L;
	printf("ranks: %d, seed %" PRIu64 "\n", num_ranks, seed);
	fflush(stdout);
	pthread_barrier_init(&barrier, NULL, (unsigned)num_ranks);
	run_all(run_rank);
	run_all(close_while_waiting);
	puts("ranks: ok");
	return 0;
}
