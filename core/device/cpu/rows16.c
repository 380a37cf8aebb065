// Row kernels 16 bytes wide, for what every CPU of the architecture has.

#include "kernels.h"

#define VB 16
#define ROWS_TABLE mwcpu_kernels16

typedef int16_t vi16 __attribute__((vector_size(VB)));

#if defined(__x86_64__)
#include <emmintrin.h>
#define ROWS_NAME "cpu/sse2"
#define max16(a, b) \
	((vu32)_mm_max_epi16((__m128i)(a), (__m128i)(b)))
#define stream(p, v) _mm_stream_si128((__m128i *)(p), (__m128i)(v))
#else
#if defined(__aarch64__)
#define ROWS_NAME "cpu/neon"
#else
#define ROWS_NAME "cpu/generic"
#endif
#define max16(a, b) ((vu32)max16_generic((vi16)(a), (vi16)(b)))

static inline vi16 max16_generic(vi16 a, vi16 b)
{
	vi16 m = a > b;

	return (a & m) | (b & ~m);
}
#endif

#include "rows.h"
