// The copy-only floor: the rows of a dispatch and of a combine, moved between
// the same processes to the same places, and nothing else. No protocol.

#define _GNU_SOURCE

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "rows.h"

// One expert's rows from this rank: they lie next to one another.
struct block {
	const int64_t *tokens;
	int64_t count;
	uint8_t *rows;
	float *scales; // column-major: [H/128, stride]; 0 for bf16
};

// Every row is stored once, straight where its expert reads it.
void floor_dispatch(const struct block *blocks, int64_t num_blocks, const uint8_t *x,
		    int64_t row_bytes)
{
	for (const struct block *b = blocks; b < blocks + num_blocks; b++)
		for (int64_t i = 0; i < b->count; i++)
			memcpy(b->rows + i * row_bytes, x + b->tokens[i] * row_bytes,
			       (size_t)row_bytes);
}

static void place_scales(const struct block *b, const float *scales, int64_t groups,
			 int64_t stride)
{
	for (int64_t g = 0; g < groups; g++)
		for (int64_t i = 0; i < b->count; i++)
			b->scales[g * stride + i] = scales[b->tokens[i] * groups + g];
}

// Casts each token once, then stores every row and its scales.
void floor_dispatch_fp8(const struct block *blocks, int64_t num_blocks, const uint16_t *x,
			uint8_t *q, float *scales, int64_t num_tokens, int64_t hidden,
			int64_t stride)
{
	int64_t groups = hidden / BLOCK;

	for (int64_t t = 0; t < num_tokens; t++)
		quantise_row(q + t * hidden, scales + t * groups, x + t * hidden, hidden);
	floor_dispatch(blocks, num_blocks, q, hidden);
	for (const struct block *b = blocks; b < blocks + num_blocks; b++)
		place_scales(b, scales, groups, stride);
}

// Loads T * K rows from where the experts left them, and stores T.
void floor_combine(uint16_t *out, const uint16_t *const *rows, const float *weights,
		   int64_t num_tokens, int64_t num_topk, int64_t hidden)
{
	for (int64_t t = 0; t < num_tokens; t++)
		reduce_row(out + t * hidden, rows + t * num_topk, weights + t * num_topk,
			   num_topk, hidden);
}

void floor_memcpy(uint8_t *to, const uint8_t *from, int64_t num_bytes)
{
	memcpy(to, from, (size_t)num_bytes);
}

// ---- time ----

#define LINE 64
#define SPIN_NS 2000

int64_t floor_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#endif
}

// Returns at begin_ns. It sleeps until spin_ns before, so that the wake-up
// of a sleeping core is not part of what is measured.
void floor_wait_until(int64_t begin_ns, int64_t spin_ns)
{
	int64_t until = begin_ns - spin_ns;
	struct timespec wake = {until / 1000000000, until % 1000000000};

	if (until > floor_now_ns())
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL);
	while (floor_now_ns() < begin_ns)
		pause_cpu();
}

// ---- barrier ----

static _Atomic uint64_t *word(uint8_t *memory, int64_t of, int64_t from, int64_t num_ranks)
{
	return (_Atomic uint64_t *)(memory + (of * num_ranks + from) * LINE);
}

static int arrived(_Atomic uint64_t *mine, uint64_t round, int64_t limit_ns)
{
	int64_t begin = floor_now_ns();

	while (atomic_load_explicit(mine, memory_order_acquire) < round) {
		int64_t waited = floor_now_ns() - begin;

		if (waited > limit_ns)
			return 0;
		if (waited < SPIN_NS)
			pause_cpu();
		else
			sched_yield();
	}
	return 1;
}

// One word from every rank to every rank: what any exchange must at least say.
static int barrier(uint8_t *memory, int64_t rank, int64_t num_ranks, uint64_t round,
		   int64_t limit_ns)
{
	for (int64_t other = 0; other < num_ranks; other++)
		atomic_store_explicit(word(memory, other, rank, num_ranks), round,
				      memory_order_release);
	for (int64_t other = 0; other < num_ranks; other++)
		if (!arrived(word(memory, rank, other, num_ranks), round, limit_ns))
			return 0;
	return 1;
}

// Nanoseconds per barrier over `rounds` in a row, or -1 when a rank did not
// come in time. `first` must grow by rounds + 1 from call to call.
double floor_barriers(uint8_t *memory, int64_t rank, int64_t num_ranks, uint64_t first,
		      int64_t rounds, int64_t limit_ns)
{
	int64_t begin;

	if (!barrier(memory, rank, num_ranks, first, limit_ns))
		return -1;
	begin = floor_now_ns();
	for (int64_t i = 1; i <= rounds; i++)
		if (!barrier(memory, rank, num_ranks, first + (uint64_t)i, limit_ns))
			return -1;
	return (double)(floor_now_ns() - begin) / (double)rounds;
}

// ---- the cost of a call through the C ABI ----

typedef struct {
	uint64_t id;
} id_t_;

typedef int32_t (*dispatch_fn)(id_t_ buffer, const void *args, id_t_ *op);
typedef int32_t (*release_fn)(id_t_ handle);

// Nanoseconds per dispatch and release as a C program pays them; -1 on error.
double floor_time_calls(void *dispatch, void *release, uint64_t buffer, const void *args,
			const uint64_t *handle, int64_t calls)
{
	dispatch_fn call = (dispatch_fn)(uintptr_t)dispatch;
	release_fn end = (release_fn)(uintptr_t)release;
	int64_t begin = floor_now_ns();
	id_t_ id = {buffer}, op = {0};

	for (int64_t i = 0; i < calls; i++) {
		if (call(id, args, &op) != 0)
			return -1;
		if (end((id_t_){*handle}) != 0)
			return -1;
	}
	return (double)(floor_now_ns() - begin) / (double)calls;
}
