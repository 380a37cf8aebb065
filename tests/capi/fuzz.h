/*
 * The parts of fuzz.c's arguments: numbers, structs of an exact length, ids that are
 * valid, were valid or were never valid, and readable memory.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static uint64_t seed_state;

static inline uint64_t any64(void)
{
	return next_random(&seed_state);
}

static inline uint64_t below(uint64_t n)
{
	return (any64() >> 8) % n;
}

/* One time in n. */
static inline int rarely(uint64_t n)
{
	return below(n) == 0;
}

static inline uint64_t strange64(void)
{
	static const int64_t values[] = {
		0, 1, 2, 3, 7, 8, 63, 64, 65, 128, 4096, 8192, 8193, -1, -2, -5, INT32_MAX, 1ll << 31,
		UINT32_MAX, 1ll << 32, 1ll << 44, 1ll << 62, INT64_MAX, INT64_MAX - 7, INT64_MIN,
	};
	return rarely(4) ? any64() >> below(64) : (uint64_t)values[below(COUNT(values))];
}

/* Replaces some words of a struct by strange values, and now and then its size. */
static inline void mutate(void *at, size_t bytes)
{
	unsigned char *p = at;
	if (rarely(32)) {
		uint32_t size = (uint32_t)(rarely(2) ? below(2 * bytes) : strange64());
		memcpy(p, &size, 4);
	}
	for (uint64_t n = rarely(2) ? 0 : 1 + below(2); n > 0; n--) {
		uint64_t value = strange64();
		size_t offset = 4 * (1 + below(bytes / 4 - 1));
		memcpy(p + offset, &value, offset % 8 == 0 && offset + 8 <= bytes && !rarely(4) ? 8 : 4);
	}
}

/*
 * A copy with exactly as many bytes as its size says (what lies beyond `bytes` is zero or
 * not), so that the sanitizer sees one byte too many read or written.
 */
static inline void *exactly(const void *from, size_t bytes)
{
	uint32_t size;
	memcpy(&size, from, 4);
	size_t length = size < 4 || size > 4096 ? 4 : size;
	unsigned char *copy = calloc(1, length);
	CHECK(copy != NULL);
	memcpy(copy, from, length < bytes ? length : bytes);
	if (length > bytes && rarely(2))
		copy[bytes + below(length - bytes)] = 1;
	return copy;
}

/* A struct as the library reads it: fields that `size` does not cover are zero. */
static inline void as_read(void *fields, size_t bytes)
{
	uint32_t size;
	memcpy(&size, fields, 4);
	if (size >= 4 && size < bytes)
		memset((char *)fields + size, 0, bytes - size);
}

/* --------------------------------------------------------------- memory -- */

/* Never freed: operations in flight may borrow any of it. Most is never touched. */
#define AREA_BYTES ((uint64_t)1 << 36)
enum { AREAS = 9 };
static uint64_t areas[AREAS];

static inline void make_areas(void)
{
	for (int i = 0; i < AREAS; i++) {
		void *p = mmap(NULL, AREA_BYTES + 64, PROT_READ | PROT_WRITE,
		               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		CHECK(p != MAP_FAILED);
		areas[i] = ADDRESS(p);
	}
}

/* bytes = a * b * c; -1 if that is not a valid size. */
static inline int64_t product(int64_t a, int64_t b, int64_t c)
{
	int64_t ab, abc;
	if (a < 0 || b < 0 || c < 0 || __builtin_mul_overflow(a, b, &ab) || __builtin_mul_overflow(ab, c, &abc))
		return -1;
	return abc;
}

/*
 * Memory for so many bytes, at times misaligned; NULL if the caller has none
 * (at most `limit`), and at times for no reason.
 */
static inline uint64_t memory(int area, int64_t bytes, int64_t limit)
{
	if (bytes < 0 || bytes > limit || rarely(128))
		return 0;
	return areas[area] + (rarely(64) ? 1 + below(7) : 0);
}

/* ------------------------------------------------------------------ ids -- */

/* The latest ids of one kind. */
struct ids {
	uint64_t last[16];
	unsigned count;
};

static inline void remember(struct ids *ids, uint64_t id)
{
	ids->last[ids->count++ % COUNT(ids->last)] = id;
}

static inline uint64_t some_id(const struct ids *ids)
{
	uint64_t id = ids->last[(rarely(2) ? ids->count - 1 : (unsigned)any64()) % COUNT(ids->last)];
	if (!rarely(8))
		return id;
	return rarely(2) ? strange64() : id ^ (uint64_t)1 << below(64);
}

#endif
