/* The buffers that fuzz.c uses, its records of them, and bounds of its waits. */
#ifndef FUZZ_BUFFERS_H
#define FUZZ_BUFFERS_H

#include "fuzz.h"

enum { T = 3, K = 2, H = 128, M = 4, E = 4 };

static struct ids buffers, handles, ops, memories;
static mw_buffer_t lone, half, pair[2];
static volatile uint64_t calls;
static const char *volatile name = "nothing";
static uint64_t seed;

static mw_buffer_t make_half(void)
{
	mw_config_t config = config_of(0, 2);
	mw_buffer_t buffer = {0};
	STATUS(MW_OK, mw_buffer_create(&config, &buffer));
	return buffer;
}

/* Most calls are for a live buffer. */
static mw_buffer_t some_buffer(void)
{
	if (rarely(8))
		return (mw_buffer_t){some_id(&buffers)};
	uint64_t n = below(8);
	return n < 3 ? lone : n < 4 ? half : pair[n % 2];
}

/* Calls for this buffer end at once, because its group has no other rank. */
static int never_waits(mw_buffer_t buffer)
{
	return buffer.id == lone.id;
}

static void *connect_pair(void *arg)
{
	mw_bytes_t *all = arg;
	STATUS(MW_OK, mw_buffer_connect(pair[1], all, 2, 5000000));
	return NULL;
}

static void make_pair(void)
{
	static unsigned char bytes[2][1024];
	mw_bytes_t all[2];
	for (uint32_t r = 0; r < 2; r++) {
		mw_config_t config = config_of(r, 2);
		STATUS(MW_OK, mw_buffer_create(&config, &pair[r]));
		all[r].address = ADDRESS(bytes[r]);
		STATUS(MW_OK, mw_buffer_metadata(pair[r], bytes[r], 1024, &all[r].num_bytes));
	}
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, connect_pair, all) == 0);
	STATUS(MW_OK, mw_buffer_connect(pair[0], all, 2, 5000000));
	CHECK(pthread_join(thread, NULL) == 0);
}

static uint64_t some_handle(void)
{
	return some_id(&handles);
}

/* A short timeout, or none where no other rank can be missing. */
static int64_t some_time(void)
{
	static const int64_t values[] = {0, 1, 50, 1000, 2000, -2, INT64_MIN};
	return values[below(COUNT(values))];
}

/* Blocks without a bound only where no other rank can be missing. */
static void may_wait(mw_buffer_t buffer, int64_t *slice_us)
{
	if (never_waits(buffer))
		*slice_us = rarely(2) ? -1 : *slice_us;
	else if (*slice_us < 0 || *slice_us > 1000)
		*slice_us = rarely(2) ? -2 : (int64_t)below(1000);
}

#endif
