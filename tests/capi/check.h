/* Helpers of the C tests: a check that says what failed, and small functions. */
#ifndef CHECK_H
#define CHECK_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moewire.h"

#define ADDRESS(p) ((uint64_t)(uintptr_t)(p))

/* The value of output parameters before a call that must not write them. */
#define UNTOUCHED 0x7777777700000077ull

/* Ends the program with the place and the library's own words. */
#define FAIL(...) \
	do { \
		fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
		fprintf(stderr, __VA_ARGS__); \
		fprintf(stderr, "\nlast error of this thread: %s\n", mw_last_error()); \
		exit(1); \
	} while (0)

#define CHECK(condition) \
	do { \
		if (!(condition)) \
			FAIL("not true: %s", #condition); \
	} while (0)

#define STATUS(want, call) \
	do { \
		mw_status_t got_ = (call); \
		if (got_ != (want)) \
			FAIL("%s gave %d, want %d", #call, got_, (want)); \
	} while (0)

/* A call that must fail, and say why. */
#define REFUSED(want, call) \
	do { \
		STATUS(want, call); \
		CHECK(mw_last_error()[0] != 0); \
	} while (0)

/* xorshift64*: numbers that are the same everywhere. */
static inline uint64_t next_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545F4914F6CDD1Dull;
}

static inline mw_config_t config_of(uint32_t rank, uint32_t num_ranks)
{
	mw_config_t c = {.size = sizeof c, .rank = rank, .num_ranks = num_ranks};
	return c;
}

/* Connects buffers that all live in this thread's process; only for R = 1. */
static inline mw_buffer_t lone_buffer(void)
{
	mw_config_t config = config_of(0, 1);
	mw_buffer_t buffer = {0};
	STATUS(MW_OK, mw_buffer_create(&config, &buffer));
	unsigned char bytes[1024];
	uint64_t len = 0;
	STATUS(MW_OK, mw_buffer_metadata(buffer, bytes, sizeof bytes, &len));
	mw_bytes_t all = {ADDRESS(bytes), len};
	STATUS(MW_OK, mw_buffer_connect(buffer, &all, 1, 5000000));
	return buffer;
}

#endif
