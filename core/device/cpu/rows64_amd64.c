// Row kernels 64 bytes wide, for CPUs with AVX-512 F, BW, DQ and VL.

#include "kernels.h"

#include <immintrin.h>
#include <string.h>

// clang ignores the GCC pragma without a word, so each gets its own. clang 18
// to 21 have 512-bit vectors as a feature of its own, which zig switches off.
#if defined(__clang__) && __clang_major__ >= 18 && __clang_major__ <= 21
#pragma clang attribute push( \
	__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,evex512"))), \
	apply_to = function)
#elif defined(__clang__)
#pragma clang attribute push( \
	__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), \
	apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif

#define VB 64
#define ROWS_NAME "cpu/avx512"
#define ROWS_TABLE mwcpu_kernels64
#define max16(a, b) \
	((vu32)_mm512_max_epi16((__m512i)(a), (__m512i)(b)))
#define stream(p, v) _mm512_stream_si512((__m512i *)(p), (__m512i)(v))

#include "rows.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
