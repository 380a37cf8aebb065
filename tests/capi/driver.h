/* Direct calls of a caller to the CUDA driver: streams, and their order. */
#ifndef DRIVER_H
#define DRIVER_H

#include <dlfcn.h>

#include "check.h"

static void *driver;

/* Calls a function of the driver with three words or fewer. */
typedef int (*driver_call)(uint64_t, uint64_t, uint64_t);

static inline void driver_does(const char *name, uint64_t a, uint64_t b, uint64_t c)
{
	driver_call call;
	void *found = dlsym(driver, name);
	CHECK(found != NULL);
	memcpy(&call, &found, sizeof call);
	CHECK(call(a, b, c) == 0);
}

static inline void synchronize(void) { driver_does("cuCtxSynchronize", 0, 0, 0); }

static inline uint64_t stream(void)
{
	uint64_t made = 0;
	driver_does("cuStreamCreateWithPriority", ADDRESS(&made), 1 /* not behind the legacy one */, 0);
	return made;
}

/* Puts a stream behind the present work of another stream. The event is not destroyed:
   the emulated driver would forget the streams that wait for it. */
static inline void follow(uint64_t behind, uint64_t other)
{
	uint64_t event = 0;
	driver_does("cuEventCreate", ADDRESS(&event), 2 /* no times */, 0);
	driver_does("cuEventRecord", event, other, 0);
	driver_does("cuStreamWaitEvent", behind, event, 0);
}

#endif
