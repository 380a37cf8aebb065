// Weighted sums of rows: the part of rows.h that reduces.

// ---- weighted reduction ----

#define TILE 4 // vectors of pairs per pass: 8 accumulators, no spills

INLINE void reduce_tile(uint8_t *out, const struct mwcpu_term *terms,
			int64_t num_terms, int64_t at)
{
	vf32 e[TILE] = {{0}}, o[TILE] = {{0}};

	for (int64_t k = 0; k < num_terms; k++) {
		const uint8_t *row = (const uint8_t *)terms[k].row + at;
		float w = terms[k].weight;

#pragma GCC unroll 4
		for (int i = 0; i < TILE; i++) {
			vu32 pair = load(row + i * VB);

			e[i] += w * even(pair);
			o[i] += w * odd(pair);
		}
	}
#pragma GCC unroll 4
	for (int i = 0; i < TILE; i++)
		store(out + at + i * VB, pack_bf16(e[i], o[i]));
}

// What is left of a row: one vector, of which only len bytes exist.
INLINE void reduce_part(uint8_t *out, const struct mwcpu_term *terms,
			int64_t num_terms, int64_t at, size_t len)
{
	vf32 e = {0}, o = {0};
	vu32 r;

	for (int64_t k = 0; k < num_terms; k++) {
		vu32 pair = {0};

		memcpy(&pair, (const uint8_t *)terms[k].row + at, len);
		e += terms[k].weight * even(pair);
		o += terms[k].weight * odd(pair);
	}
	r = pack_bf16(e, o);
	memcpy(out + at, &r, len);
}

static void reduce_row(uint8_t *out, const struct mwcpu_term *terms,
		       int64_t num_terms, int64_t hidden)
{
	int64_t bytes = 2 * hidden, at = 0;

	for (; at + TILE * VB <= bytes; at += TILE * VB)
		reduce_tile(out, terms, num_terms, at);
	for (; at + VB <= bytes; at += VB)
		reduce_part(out, terms, num_terms, at, VB);
	if (at < bytes)
		reduce_part(out, terms, num_terms, at, (size_t)(bytes - at));
}

// ---- weighted reduction of float32 rows ----

// The high half of each lane after rounding, LANES bf16 in order.
INLINE vu16half narrow(vf32 f)
{
	return __builtin_convertvector(round_bf16(f) >> 16, vu16half);
}

// The same without rounding; a NaN is the one that we write.
INLINE vu32 canonical(vf32 f)
{
	vu32 nan = (vu32)(f != f);

	return ((vu32)f & ~nan) | (nan & 0x7fc00000u);
}

// Writes n sums as values from number at on.
INLINE void put_fp32(uint8_t *out, int64_t at, vf32 sum, size_t n, int fp32_out)
{
	if (fp32_out) {
		vu32 r = canonical(sum);

		memcpy(out + 4 * at, &r, 4 * n);
	} else {
		vu16half r = narrow(sum);

		memcpy(out + 2 * at, &r, 2 * n);
	}
}

INLINE void reduce_fp32_tile(uint8_t *out, const struct mwcpu_term *terms,
			     int64_t num_terms, int64_t at, int fp32_out)
{
	vf32 sum[TILE] = {{0}};

	for (int64_t k = 0; k < num_terms; k++) {
		const uint8_t *row = (const uint8_t *)terms[k].row + 4 * at;
		float w = terms[k].weight;

#pragma GCC unroll 4
		for (int i = 0; i < TILE; i++)
			sum[i] += w * (vf32)load(row + i * VB);
	}
#pragma GCC unroll 4
	for (int i = 0; i < TILE; i++)
		put_fp32(out, at + i * LANES, sum[i], LANES, fp32_out);
}

// What is left of a row: one vector, of which only n values exist.
INLINE void reduce_fp32_part(uint8_t *out, const struct mwcpu_term *terms,
			     int64_t num_terms, int64_t at, size_t n,
			     int fp32_out)
{
	vf32 sum = {0};

	for (int64_t k = 0; k < num_terms; k++) {
		vf32 v = {0};

		memcpy(&v, (const uint8_t *)terms[k].row + 4 * at, 4 * n);
		sum += terms[k].weight * v;
	}
	put_fp32(out, at, sum, n, fp32_out);
}

INLINE void reduce_fp32(uint8_t *out, const struct mwcpu_term *terms,
			int64_t num_terms, int64_t hidden, int fp32_out)
{
	int64_t at = 0;

	for (; at + TILE * LANES <= hidden; at += TILE * LANES)
		reduce_fp32_tile(out, terms, num_terms, at, fp32_out);
	for (; at + LANES <= hidden; at += LANES)
		reduce_fp32_part(out, terms, num_terms, at, LANES, fp32_out);
	if (at < hidden)
		reduce_fp32_part(out, terms, num_terms, at,
				 (size_t)(hidden - at), fp32_out);
}

static void reduce_row_fp32(uint8_t *out, const struct mwcpu_term *terms,
			    int64_t num_terms, int64_t hidden)
{
	reduce_fp32(out, terms, num_terms, hidden, 0);
}

static void sum_row_fp32(uint8_t *out, const struct mwcpu_term *terms,
			 int64_t num_terms, int64_t hidden)
{
	reduce_fp32(out, terms, num_terms, hidden, 1);
}

// ---- sums of runs, each rounded by itself and then added ----

// What the sum of a run is after its rounding to bf16.
INLINE vf32 through_bf16(vf32 f)
{
	return (vf32)(round_bf16(f) & 0xffff0000u);
}

// Vectors of a row that one pass takes: each has the sums of the run and of
// all, of pairs twice.
#define RUN_TILE 4

// The pairs of n vectors, of the last of which only len bytes exist. A run ends
// where the next one begins, and at the end.
INLINE void runs_part(uint8_t *out, const struct mwcpu_term *terms,
		      int64_t num_terms, int64_t at, int n, size_t len)
{
	vf32 e[RUN_TILE] = {{0}}, o[RUN_TILE] = {{0}};
	vf32 all_e[RUN_TILE] = {{0}}, all_o[RUN_TILE] = {{0}};

	for (int64_t k = 0; k < num_terms; k++) {
		const uint8_t *row = (const uint8_t *)terms[k].row + at;
		float w = terms[k].weight;

		if (terms[k].begins) {
#pragma GCC unroll 4
			for (int i = 0; i < n; i++) {
				all_e[i] += through_bf16(e[i]);
				all_o[i] += through_bf16(o[i]);
				e[i] = o[i] = (vf32){0};
			}
		}
#pragma GCC unroll 4
		for (int i = 0; i < n; i++) {
			vu32 pair = {0};

			memcpy(&pair, row + i * VB, len);
			e[i] += w * even(pair);
			o[i] += w * odd(pair);
		}
	}
#pragma GCC unroll 4
	for (int i = 0; i < n; i++) {
		vu32 r = pack_bf16(all_e[i] + through_bf16(e[i]),
				   all_o[i] + through_bf16(o[i]));

		memcpy(out + at + i * VB, &r, len);
	}
}

static void reduce_runs(uint8_t *out, const struct mwcpu_term *terms,
			int64_t num_terms, int64_t hidden)
{
	int64_t bytes = 2 * hidden, at = 0;

	for (; at + RUN_TILE * VB <= bytes; at += RUN_TILE * VB)
		runs_part(out, terms, num_terms, at, RUN_TILE, VB);
	for (; at + VB <= bytes; at += VB)
		runs_part(out, terms, num_terms, at, 1, VB);
	if (at < bytes)
		runs_part(out, terms, num_terms, at, 1, (size_t)(bytes - at));
}

// float32 rows: n values of one vector exist.
INLINE void runs_fp32_part(uint8_t *out, const struct mwcpu_term *terms,
			   int64_t num_terms, int64_t at, size_t n)
{
	vf32 sum = {0}, all = {0};

	for (int64_t k = 0; k < num_terms; k++) {
		vf32 v = {0};

		if (terms[k].begins) {
			all += sum;
			sum = (vf32){0};
		}
		memcpy(&v, (const uint8_t *)terms[k].row + 4 * at, 4 * n);
		sum += terms[k].weight * v;
	}
	put_fp32(out, at, all + sum, n, 0);
}

static void reduce_runs_fp32(uint8_t *out, const struct mwcpu_term *terms,
			     int64_t num_terms, int64_t hidden)
{
	int64_t at = 0;

	for (; at + LANES <= hidden; at += LANES)
		runs_fp32_part(out, terms, num_terms, at, LANES);
	if (at < hidden)
		runs_fp32_part(out, terms, num_terms, at,
			       (size_t)(hidden - at));
}
