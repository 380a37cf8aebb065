// Batch loops: what Go enters, once per batch.

#include "kernels.h"

#include <string.h>

// The caller's thread may flush subnormals (torch.set_flush_denormal does
// that), which would change results: every batch that computes runs in the
// default floating-point environment and restores the caller's.
#if defined(__x86_64__)

static uint64_t fp_enter(void)
{
	uint32_t old, usual = 0x1f80;

	__asm__ volatile("stmxcsr %0" : "=m"(old));
	__asm__ volatile("ldmxcsr %0" : : "m"(usual) : "memory");
	return old;
}

static void fp_leave(uint64_t saved)
{
	uint32_t old = (uint32_t)saved;

	__asm__ volatile("ldmxcsr %0" : : "m"(old) : "memory");
}

#elif defined(__aarch64__)

static uint64_t fp_enter(void)
{
	uint64_t old, usual = 0;

	__asm__ volatile("mrs %0, fpcr" : "=r"(old));
	__asm__ volatile("msr fpcr, %0" : : "r"(usual) : "memory");
	return old;
}

static void fp_leave(uint64_t saved)
{
	__asm__ volatile("msr fpcr, %0" : : "r"(saved) : "memory");
}

#else

static uint64_t fp_enter(void)
{
	return 0;
}

static void fp_leave(uint64_t saved)
{
	(void)saved;
}

#endif

// ---- how ----

#define LINE 64

static void fetch_to_read(const uint8_t *row, int64_t bytes)
{
	for (int64_t at = 0; at < bytes; at += LINE)
		__builtin_prefetch(row + at, 0, 2);
}

static void fetch_to_write(const uint8_t *row, int64_t bytes)
{
	for (int64_t at = 0; at < bytes; at += LINE)
		__builtin_prefetch(row + at, 1, 2);
}

// Stores past the caches are ordered by nothing but this: what the thread
// stores next, or another one that it tells, must not be seen before them.
static void end_streaming(struct mwcpu_how how)
{
#if defined(__x86_64__)
	if (how.streaming)
		__asm__ volatile("sfence" : : : "memory");
#else
	(void)how;
#endif
}

// ---- place ----

static uint8_t *place_of(const struct mwcpu_target *t,
			 const struct mwcpu_place_job *j, int64_t row_bytes)
{
	int64_t at = j->expert * t->rows_per_expert + j->pos;

	return (uint8_t *)t->rows + at * row_bytes;
}

// The job may have others after it, up to end: they are asked for ahead.
static void store_row(const struct mwcpu_kernels *k, struct mwcpu_how how,
		      const struct mwcpu_target *targets,
		      const struct mwcpu_place_job *j,
		      const struct mwcpu_place_job *end, const void *row,
		      int64_t row_bytes)
{
	const struct mwcpu_target *t = targets + j->target;
	int64_t at = j->expert * t->rows_per_expert + j->pos;

	if (how.prefetch > 0 && !how.streaming && how.prefetch < end - j) {
		const struct mwcpu_place_job *next = j + how.prefetch;

		fetch_to_write(place_of(targets + next->target, next,
					row_bytes), row_bytes);
	}
	if (how.streaming)
		k->stream_row(place_of(t, j, row_bytes), row, row_bytes);
	else
		memcpy(place_of(t, j, row_bytes), row, (size_t)row_bytes);
	memcpy((uint8_t *)t->src_info + 4 * at, &j->token, 4);
}

// A run is jobs with rows that follow one another in one expert's block.
static int64_t run_length(const struct mwcpu_place_job *jobs, int64_t num_jobs)
{
	int64_t n = 1;

	while (n < num_jobs && jobs[n].target == jobs->target &&
	       jobs[n].expert == jobs->expert && jobs[n].pos == jobs->pos + n)
		n++;
	return n;
}

// Scales are column-major: a run writes each column in one go, where writing
// a row's scales one by one would touch hidden/128 cache lines per row.
static void store_scales(const struct mwcpu_target *t,
			 const struct mwcpu_place_job *jobs, int64_t num_jobs,
			 const float *scales, int64_t num_blocks,
			 int64_t num_words)
{
	int64_t at = jobs->expert * num_words * t->rows_per_expert + jobs->pos;
	uint8_t *column = (uint8_t *)t->scales + 4 * at;

	for (int64_t g = 0; g < num_words; g++) {
		for (int64_t i = 0; i < num_jobs; i++)
			memcpy(column + 4 * i,
			       scales + jobs[i].token * num_blocks + g, 4);
		column += 4 * t->rows_per_expert;
	}
}

// What is left of a cast for later jobs of the same batch.
struct cast {
	enum mwcpu_scales format;
	float *scales; // [tokens, hidden/128]; ue8m0: a quarter of a row is used
	uint8_t *rows; // [tokens, hidden]
	uint8_t *done; // [tokens]
};

static struct cast cast_begin(void *scratch, int64_t hidden, int64_t num_tokens,
			      enum mwcpu_scales format)
{
	struct cast c;

	c.format = format;
	c.scales = scratch;
	c.rows = (uint8_t *)(c.scales + num_tokens * (hidden / MWCPU_BLOCK));
	c.done = c.rows + num_tokens * hidden;
	return c;
}

// Replaces a row's scales by their exponent bytes, in place: a word is written
// after the four floats that it is made of were read.
static void pack_exponents(float *scales, int64_t num_blocks)
{
	for (int64_t w = 0; w < num_blocks / 4; w++) {
		uint32_t bits[4], word = 0;

		memcpy(bits, scales + 4 * w, sizeof bits);
		for (int i = 0; i < 4; i++)
			word |= (bits[i] >> 23) << (8 * i);
		memcpy(scales + w, &word, sizeof word);
	}
}

static const uint8_t *cast_row(struct cast *c, const struct mwcpu_kernels *k,
			       const uint8_t *x, int64_t hidden, int64_t token)
{
	int64_t num_blocks = hidden / MWCPU_BLOCK;
	uint8_t *row = c->rows + token * hidden;
	float *scales = c->scales + token * num_blocks;

	if (c->done[token])
		return row;
	c->done[token] = 1;
	if (c->format == MWCPU_FLOAT32)
		k->quantise_row(row, scales, x + 2 * hidden * token, hidden);
	else
		k->quantise_row_pow2(row, scales, x + 2 * hidden * token,
				     hidden);
	if (c->format == MWCPU_UE8M0)
		pack_exponents(scales, num_blocks);
	return row;
}

static void place_cast(const struct mwcpu_kernels *k, struct mwcpu_how how,
		       struct cast *c, const uint8_t *x, int64_t hidden,
		       const struct mwcpu_target *targets,
		       const struct mwcpu_place_job *jobs, int64_t num_jobs)
{
	int64_t num_blocks = hidden / MWCPU_BLOCK;
	int64_t num_words =
		c->format == MWCPU_UE8M0 ? num_blocks / 4 : num_blocks;

	for (int64_t i = 0, n; i < num_jobs; i += n) {
		n = run_length(jobs + i, num_jobs - i);
		for (int64_t j = i; j < i + n; j++)
			store_row(k, how, targets, jobs + j, jobs + num_jobs,
				  cast_row(c, k, x, hidden, jobs[j].token),
				  hidden);
		store_scales(targets + jobs[i].target, jobs + i, n, c->scales,
			     num_blocks, num_words);
	}
}

static void place_plain(const struct mwcpu_kernels *k, struct mwcpu_how how,
			const uint8_t *x, int64_t row_bytes,
			const struct mwcpu_target *targets,
			const struct mwcpu_place_job *jobs, int64_t num_jobs)
{
	for (int64_t i = 0; i < num_jobs; i++) {
		if (how.prefetch > 0 && how.prefetch < num_jobs - i)
			fetch_to_read(x + row_bytes * jobs[i + how.prefetch].token,
				      row_bytes);
		store_row(k, how, targets, jobs + i, jobs + num_jobs,
			  x + row_bytes * jobs[i].token, row_bytes);
	}
}

void mwcpu_place(const struct mwcpu_kernels *k, struct mwcpu_how how,
		 const void *x, int64_t hidden, int64_t num_cast, int already,
		 enum mwcpu_scales format, const struct mwcpu_target *targets,
		 const struct mwcpu_place_job *jobs, int64_t num_jobs,
		 void *scratch)
{
	if (num_cast > 0) {
		struct cast c = cast_begin(scratch, hidden, num_cast, format);
		uint64_t saved = fp_enter();

		if (!already)
			memset(c.done, 0, (size_t)num_cast);
		place_cast(k, how, &c, x, hidden, targets, jobs, num_jobs);
		fp_leave(saved);
	} else {
		place_plain(k, how, x, 2 * hidden, targets, jobs, num_jobs);
	}
	end_streaming(how);
}

void mwcpu_cast(const struct mwcpu_kernels *k, const void *x, int64_t hidden,
		int64_t num_cast, enum mwcpu_scales format, int64_t first,
		int64_t last, void *scratch)
{
	struct cast c = cast_begin(scratch, hidden, num_cast, format);
	uint64_t saved = fp_enter();

	memset(c.done + first, 0, (size_t)(last - first));
	for (int64_t t = first; t < last; t++)
		cast_row(&c, k, x, hidden, t);
	fp_leave(saved);
}

// ---- reduce ----

// Collects one token's summands in order of k; returns how many there are.
static int64_t gather(struct mwcpu_term *terms, int64_t top_k,
		      int64_t row_bytes, const uintptr_t *sources,
		      const struct mwcpu_reduce_job *jobs, const float *weights)
{
	int64_t n = 0;
	int32_t last = -1;

	for (int64_t k = 0; k < top_k; k++) {
		if (jobs[k].source < 0)
			continue;
		terms[n].row = sources[jobs[k].source] +
			       (uintptr_t)(row_bytes * jobs[k].row);
		terms[n].weight = weights[k];
		terms[n].begins = jobs[k].source != last;
		last = jobs[k].source;
		n++;
	}
	return n;
}

static void fetch_token(int64_t top_k, int64_t row_bytes,
			const uintptr_t *sources,
			const struct mwcpu_reduce_job *jobs)
{
	for (int64_t k = 0; k < top_k; k++)
		if (jobs[k].source >= 0)
			fetch_to_read((const uint8_t *)sources[jobs[k].source] +
				      row_bytes * jobs[k].row, row_bytes);
}

typedef void (*reducer)(uint8_t *out, const struct mwcpu_term *terms,
			int64_t num_terms, int64_t hidden);

static reducer reducer_of(const struct mwcpu_kernels *k, struct mwcpu_form form)
{
	if (form.fp32_out)
		return k->sum_row_fp32;
	if (form.runs)
		return form.fp32 ? k->reduce_runs_fp32 : k->reduce_runs;
	return form.fp32 ? k->reduce_row_fp32 : k->reduce_row;
}

void mwcpu_reduce(const struct mwcpu_kernels *k, struct mwcpu_how how,
		  struct mwcpu_form form, void *out, int64_t hidden,
		  int64_t num_tokens, int64_t top_k, const uintptr_t *sources,
		  const struct mwcpu_reduce_job *jobs, const float *weights,
		  struct mwcpu_term *terms)
{
	uint64_t saved = fp_enter();
	int64_t row_bytes = (form.fp32 ? 4 : 2) * hidden;
	int64_t out_bytes = (form.fp32_out ? 4 : 2) * hidden;
	reducer reduce = reducer_of(k, form);

	for (int64_t t = 0; t < num_tokens; t++) {
		int64_t n = gather(terms, top_k, row_bytes, sources,
				   jobs + t * top_k, weights + t * top_k);

		if (how.prefetch > 0 && how.prefetch < num_tokens - t)
			fetch_token(top_k, row_bytes, sources,
				    jobs + (t + how.prefetch) * top_k);
		reduce((uint8_t *)out + out_bytes * t, terms, n, hidden);
	}
	fp_leave(saved);
}

// ---- dequantise, copy ----

static void dequantise_range(const struct mwcpu_kernels *k, uint8_t *dst,
			     const uint8_t *rows, const uint8_t *scales,
			     int64_t hidden, int64_t rows_per_expert,
			     const struct mwcpu_row_range *r)
{
	const uint8_t *q =
		rows + hidden * (r->expert * rows_per_expert + r->pos);
	const uint8_t *s =
		scales + 4 * (r->expert * (hidden / MWCPU_BLOCK) *
				      rows_per_expert + r->pos);

	for (int64_t i = 0; i < r->count; i++)
		k->dequantise_row(dst + 2 * hidden * (r->dst_row + i),
				  q + hidden * i, s + 4 * i, rows_per_expert,
				  hidden);
}

void mwcpu_dequantise(const struct mwcpu_kernels *k, void *dst,
		      const void *rows, const void *scales, int64_t hidden,
		      int64_t rows_per_expert,
		      const struct mwcpu_row_range *ranges, int64_t num_ranges)
{
	uint64_t saved = fp_enter();

	for (int64_t i = 0; i < num_ranges; i++)
		dequantise_range(k, dst, rows, scales, hidden, rows_per_expert,
				 ranges + i);
	fp_leave(saved);
}

void mwcpu_copy(const struct mwcpu_copy_job *jobs, int64_t num_jobs)
{
	for (int64_t i = 0; i < num_jobs; i++)
		memmove((void *)jobs[i].dst, (const void *)jobs[i].src,
			jobs[i].len);
}
