// Time, and operations that begin at a time: what the floor and the calls
// through the C ABI share.

#ifndef BENCH_CLOCK_H
#define BENCH_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#endif
}

// When to begin, for how long before that to be awake, and where to write times.
struct when {
	int64_t begin;
	int64_t spin;
	int64_t *times;
};

// Returns at `begin`. It sleeps until `spin` before, so that the wake-up of a
// sleeping core is not part of what is measured.
static inline void wait_until(const struct when *w)
{
	int64_t until = w->begin - w->spin;
	struct timespec wake = {until / 1000000000, until % 1000000000};

	if (until > now_ns())
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL);
	while (now_ns() < w->begin)
		pause_cpu();
}

// An operation; 0 or an error.
typedef int32_t (*operation)(void *self);

// times: when it began, and when it ended.
static inline int32_t run_at(operation run, void *self, const struct when *w)
{
	int32_t status;

	wait_until(w);
	w->times[0] = now_ns();
	status = run(self);
	w->times[1] = now_ns();
	return status;
}

// `lead` pairs that are not measured, then `pairs`, without rest. times: when
// the measured ones began, then when each operation ended.
static inline int32_t run_pairs(operation first, operation second, void *self,
				const struct when *w, int64_t lead, int64_t pairs)
{
	int64_t *next = w->times;

	wait_until(w);
	for (int64_t i = -lead; i < pairs; i++) {
		int32_t status;

		if (i == 0)
			*next++ = now_ns();
		status = first(self);
		if (i >= 0)
			*next++ = now_ns();
		if (status == 0)
			status = second(self);
		if (status != 0)
			return status;
		if (i >= 0)
			*next++ = now_ns();
	}
	return 0;
}

#endif
