// The C side of package cpu: row kernels at one vector width each, and batch
// loops that Go enters once per batch.
//
// Addresses that sit in arrays are integers (uintptr_t): the arrays are Go
// memory, and integers keep cgo from looking for Go pointers in them. The Go
// side pins what they refer to for the length of the call (see native.go).

#ifndef MWCPU_KERNELS_H
#define MWCPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the kernels take bf16 pairs apart as little-endian words"
#endif

// Values that share one fp8 scale.
#define MWCPU_BLOCK 128

// The scales of protocol.FP8, FP8Pow2 and FP8UE8M0.
enum mwcpu_scales { MWCPU_FLOAT32, MWCPU_POW2, MWCPU_UE8M0 };

// How a batch is moved, which changes no result.
struct mwcpu_how {
	int32_t streaming; // rows are stored past the caches; needs stream_row
	int32_t prefetch;  // rows, or tokens, to ask for ahead of use; 0: none
};

struct mwcpu_target {
	uintptr_t rows;
	uintptr_t scales;
	uintptr_t src_info;
	int64_t rows_per_expert;
};

// The layout of device.PlaceJob.
struct mwcpu_place_job {
	int32_t token;
	int32_t target;
	int32_t expert;
	int32_t pos;
};

// The layout of device.ReduceJob.
struct mwcpu_reduce_job {
	int32_t source;
	int32_t unused;
	int64_t row;
};

// One summand of a reduction.
struct mwcpu_term {
	uintptr_t row;
	float weight;
	int32_t begins; // a run: its source is not that of the term before
};

struct mwcpu_copy_job {
	uintptr_t dst;
	uintptr_t src;
	uint64_t len;
};

// The layout of RowRange in dequant.go.
struct mwcpu_row_range {
	int32_t expert;
	int32_t pos;
	int64_t count;
	int64_t dst_row;
};

// One width's row kernels. All of them take unaligned memory.
struct mwcpu_kernels {
	const char *name;
	// out[i] = sum of weight * row[i] over the terms, in order.
	void (*reduce_row)(uint8_t *out, const struct mwcpu_term *terms,
			   int64_t num_terms, int64_t hidden);
	// The same of float32 rows; out is bf16 here too.
	void (*reduce_row_fp32)(uint8_t *out, const struct mwcpu_term *terms,
				int64_t num_terms, int64_t hidden);
	// Sums of runs, rounded to the rows' type and then added; out is bf16.
	void (*reduce_runs)(uint8_t *out, const struct mwcpu_term *terms,
			    int64_t num_terms, int64_t hidden);
	void (*reduce_runs_fp32)(uint8_t *out, const struct mwcpu_term *terms,
				 int64_t num_terms, int64_t hidden);
	// reduce_row_fp32 without its rounding: out is float32.
	void (*sum_row_fp32)(uint8_t *out, const struct mwcpu_term *terms,
			     int64_t num_terms, int64_t hidden);
	// Casts hidden bf16 values to e4m3 and writes hidden/128 scales.
	void (*quantise_row)(uint8_t *q, float *scales, const uint8_t *x,
			     int64_t hidden);
	// The same with scales rounded up to powers of two.
	void (*quantise_row_pow2)(uint8_t *q, float *scales, const uint8_t *x,
				  int64_t hidden);
	// The inverse; the scale of block g is scales[g * stride].
	void (*dequantise_row)(uint8_t *out, const uint8_t *q,
			       const uint8_t *scales, int64_t stride,
			       int64_t hidden);
	// Copies a row with stores that bypass the caches; a fence must follow
	// before any rank is told of it. NULL where there are no such stores.
	void (*stream_row)(uint8_t *to, const uint8_t *from, int64_t bytes);
};

extern const struct mwcpu_kernels mwcpu_kernels16;
#if defined(__x86_64__)
extern const struct mwcpu_kernels mwcpu_kernels32;
extern const struct mwcpu_kernels mwcpu_kernels64;
#endif

// The kernels of that many bytes, or NULL when this CPU cannot run them.
const struct mwcpu_kernels *mwcpu_select(int width);

// Writes the names of the CPU features that matter here, space separated and
// terminated; cut off at cap bytes.
void mwcpu_features(char *buf, size_t cap);

// num_cast is 0, or the number of rows of x if they are to be cast to fp8:
// then scratch is aligned to 4 and holds hidden/128 floats, hidden bytes and
// one byte for each of them. Rows are cast when they are first needed, or have
// been by mwcpu_cast (already).
void mwcpu_place(const struct mwcpu_kernels *k, struct mwcpu_how how,
		 const void *x, int64_t hidden, int64_t num_cast, int already,
		 enum mwcpu_scales format, const struct mwcpu_target *targets,
		 const struct mwcpu_place_job *jobs, int64_t num_jobs,
		 void *scratch);

// Casts the rows from first to last into the scratch of a batch that several
// threads share the jobs of.
void mwcpu_cast(const struct mwcpu_kernels *k, const void *x, int64_t hidden,
		int64_t num_cast, enum mwcpu_scales format, int64_t first,
		int64_t last, void *scratch);

// What a reduction reads, does and writes; fp32_out needs fp32, and no runs.
struct mwcpu_form {
	int32_t fp32;     // rows are float32, else bf16
	int32_t runs;     // each source's sum is rounded by itself
	int32_t fp32_out; // out is float32, else bf16
};

// terms is scratch for top_k entries.
void mwcpu_reduce(const struct mwcpu_kernels *k, struct mwcpu_how how,
		  struct mwcpu_form form, void *out, int64_t hidden, int64_t num_tokens,
		  int64_t top_k, const uintptr_t *sources,
		  const struct mwcpu_reduce_job *jobs, const float *weights,
		  struct mwcpu_term *terms);

void mwcpu_dequantise(const struct mwcpu_kernels *k, void *dst,
		      const void *rows, const void *scales, int64_t hidden,
		      int64_t rows_per_expert,
		      const struct mwcpu_row_range *ranges, int64_t num_ranges);

void mwcpu_copy(const struct mwcpu_copy_job *jobs, int64_t num_jobs);

#endif
