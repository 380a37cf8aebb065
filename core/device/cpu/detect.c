// What this CPU can run.
//
// __builtin_cpu_supports would do, but it needs a symbol of libgcc that zig's
// runtime does not have.

#include "kernels.h"

#include <string.h>

static void append(char *buf, size_t cap, const char *name)
{
	size_t used = strlen(buf), len = strlen(name);

	if (used + len + 2 > cap)
		return;
	if (used > 0)
		buf[used++] = ' ';
	memcpy(buf + used, name, len + 1);
}

#if defined(__x86_64__)

#include <cpuid.h>

enum reg { EBX, ECX, EDX };

// Register sets that the operating system saves, as bits of XCR0.
enum saved { SAVES_XMM = 0, SAVES_YMM = 0x06, SAVES_ZMM = 0xe6 };

static const struct feature {
	const char *name;
	int width; // the kernels of that many bytes need it; 0: none do
	uint32_t leaf;
	enum reg reg;
	int bit;
	enum saved saved;
} features[] = {
	{"sse2", 16, 1, EDX, 26, SAVES_XMM},
	{"sse4.2", 0, 1, ECX, 20, SAVES_XMM},
	{"avx", 32, 1, ECX, 28, SAVES_YMM},
	{"fma", 0, 1, ECX, 12, SAVES_YMM},
	{"avx2", 32, 7, EBX, 5, SAVES_YMM},
	{"avx512f", 64, 7, EBX, 16, SAVES_ZMM},
	{"avx512dq", 64, 7, EBX, 17, SAVES_ZMM},
	{"avx512bw", 64, 7, EBX, 30, SAVES_ZMM},
	{"avx512vl", 64, 7, EBX, 31, SAVES_ZMM},
	{"avx512vbmi", 0, 7, ECX, 1, SAVES_ZMM},
};

#define NUM_FEATURES (sizeof(features) / sizeof(features[0]))

static uint32_t xcr0(void)
{
	uint32_t a, b, c, d, low, high;

	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
		return 0;
	__asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	(void)high;
	return low;
}

static int has(const struct feature *f)
{
	uint32_t r[3], a;

	if (!__get_cpuid_count(f->leaf, 0, &a, &r[EBX], &r[ECX], &r[EDX]))
		return 0;
	return (r[f->reg] >> f->bit & 1) &&
	       (xcr0() & (uint32_t)f->saved) == (uint32_t)f->saved;
}

static int has_all(int width)
{
	for (size_t i = 0; i < NUM_FEATURES; i++)
		if (features[i].width == width && !has(features + i))
			return 0;
	return 1;
}

const struct mwcpu_kernels *mwcpu_select(int width)
{
	if (width == 64 && has_all(64))
		return &mwcpu_kernels64;
	if (width == 32 && has_all(32))
		return &mwcpu_kernels32;
	return width == 16 ? &mwcpu_kernels16 : NULL;
}

static void append_all(char *buf, size_t cap)
{
	for (size_t i = 0; i < NUM_FEATURES; i++)
		if (has(features + i))
			append(buf, cap, features[i].name);
}

#else

const struct mwcpu_kernels *mwcpu_select(int width)
{
	return width == 16 ? &mwcpu_kernels16 : NULL;
}

static void append_all(char *buf, size_t cap)
{
#if defined(__aarch64__)
	append(buf, cap, "neon");
#else
	append(buf, cap, "none known");
#endif
}

#endif

void mwcpu_features(char *buf, size_t cap)
{
	if (cap == 0)
		return;
	buf[0] = 0;
	append_all(buf, cap);
}
