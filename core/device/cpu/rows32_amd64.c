// Row kernels 32 bytes wide, for CPUs with AVX2. FMA stays off on purpose.

#include "kernels.h"

#include <immintrin.h>
#include <string.h>

// clang ignores the GCC pragma without a word, so each gets its own.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), \
			     apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define VB 32
#define ROWS_NAME "cpu/avx2"
#define ROWS_TABLE mwcpu_kernels32
#define max16(a, b) \
	((vu32)_mm256_max_epi16((__m256i)(a), (__m256i)(b)))
#define stream(p, v) _mm256_stream_si256((__m256i *)(p), (__m256i)(v))

#include "rows.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
