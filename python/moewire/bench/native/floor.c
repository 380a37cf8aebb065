// The copy-only floor: the rows of a dispatch and of a combine, moved between
// the same processes to the same places, and nothing else. No protocol.

#define _GNU_SOURCE

#include <sched.h>
#include <stdatomic.h>

#include "clock.h"
#include "rows.h"

// One expert's rows from this rank: they lie next to one another.
struct block {
	const int64_t *tokens;
	int64_t count;
	uint8_t *rows;
	float *scales; // column-major: [H/128, stride]; 0 for bf16
};

// One rank's share. Slabs take turns, as Moewire's slots do.
struct floor {
	int64_t num_tokens, hidden, num_topk;
	int64_t stride; // rows of one expert
	int64_t fp8, num_blocks, num_slabs, turn;
	const uint8_t *x;
	const float *weights;
	uint8_t *q;    // fp8: [T, H]
	float *scales; // fp8: [T, H/128]
	uint16_t *out;
	const struct block *const *blocks;      // per slab
	const uint16_t *const *const *outputs; // per slab: [T * K]
};

// Every row is stored once, straight where its expert reads it.
static void place_rows(const struct floor *f, const struct block *blocks, const uint8_t *x,
		       int64_t row_bytes)
{
	for (const struct block *b = blocks; b < blocks + f->num_blocks; b++)
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
static void place_fp8(const struct floor *f, const struct block *blocks)
{
	int64_t groups = f->hidden / BLOCK;
	const uint16_t *x = (const uint16_t *)f->x;

	for (int64_t t = 0; t < f->num_tokens; t++)
		quantise_row(f->q + t * f->hidden, f->scales + t * groups, x + t * f->hidden,
			     f->hidden);
	place_rows(f, blocks, f->q, f->hidden);
	for (const struct block *b = blocks; b < blocks + f->num_blocks; b++)
		place_scales(b, f->scales, groups, f->stride);
}

static int32_t dispatch(void *self)
{
	struct floor *f = self;

	f->turn = (f->turn + 1) % f->num_slabs;
	if (f->fp8)
		place_fp8(f, f->blocks[f->turn]);
	else
		place_rows(f, f->blocks[f->turn], f->x, 2 * f->hidden);
	return 0;
}

// Loads T * K rows from where the experts left them, and stores T.
static int32_t combine(void *self)
{
	const struct floor *f = self;
	const uint16_t *const *rows = f->outputs[f->turn];

	for (int64_t t = 0; t < f->num_tokens; t++)
		reduce_row(f->out + t * f->hidden, rows + t * f->num_topk,
			   f->weights + t * f->num_topk, f->num_topk, f->hidden);
	return 0;
}

int32_t floor_dispatch(struct floor *f, const struct when *w)
{
	return run_at(dispatch, f, w);
}

int32_t floor_combine(struct floor *f, const struct when *w)
{
	return run_at(combine, f, w);
}

int32_t floor_pairs(struct floor *f, const struct when *w, int64_t lead, int64_t pairs)
{
	return run_pairs(dispatch, combine, f, w, lead, pairs);
}

void floor_memcpy(uint8_t *to, const uint8_t *from, int64_t num_bytes)
{
	memcpy(to, from, (size_t)num_bytes);
}

// Returns at begin_ns, awake for spin_ns before.
void floor_wait_until(int64_t begin_ns, int64_t spin_ns)
{
	wait_until(&(struct when){begin_ns, spin_ns, NULL});
}

// ---- barrier ----

#define LINE 64
#define SPIN_NS 2000

static _Atomic uint64_t *word(uint8_t *memory, int64_t of, int64_t from, int64_t num_ranks)
{
	return (_Atomic uint64_t *)(memory + (of * num_ranks + from) * LINE);
}

static int arrived(_Atomic uint64_t *mine, uint64_t round, int64_t limit_ns)
{
	int64_t begin = now_ns();

	while (atomic_load_explicit(mine, memory_order_acquire) < round) {
		int64_t waited = now_ns() - begin;

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
	begin = now_ns();
	for (int64_t i = 1; i <= rounds; i++)
		if (!barrier(memory, rank, num_ranks, first + (uint64_t)i, limit_ns))
			return -1;
	return (double)(now_ns() - begin) / (double)rounds;
}
