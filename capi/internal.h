/* What the C and the Go half of this package share. Not installed. */
#ifndef MWI_INTERNAL_H
#define MWI_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "moewire_fabric.h"

/* Sets this thread's mw_last_error. Truncates to what fits. */
void mwi_set_error(const char *text, size_t len);

/* What mw_event_count points to; raised atomically. */
extern uint64_t mwi_event_count;

/* Which descriptors a forked child closes; core/internal/sys.ForkTable. */
#define MWI_FORK_WORDS (1 << 14)
struct mwi_fork_table {
	uint32_t making, forking; /* threads that make a socket or close one, and that fork */
	uint64_t held[MWI_FORK_WORDS]; /* by number, a bit each */
};
extern struct mwi_fork_table mwi_fork_table;

/* Writes as much of a result as the caller's struct has room for. */
void mwi_write_result(mw_dispatch_result_t *to, const mw_dispatch_result_t *from);

#endif
