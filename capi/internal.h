/* Declarations that the C and the Go half of this package share. This header is not installed. */
#ifndef MWI_INTERNAL_H
#define MWI_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "moewire_routing.h"
#include "moewire_store.h"

/* Sets this thread's mw_last_error. Truncates the text to the room that there is. */
void mwi_set_error(const char *text, size_t len);

/* The word that mw_event_count points to; raised atomically. */
extern uint64_t mwi_event_count;

/* The descriptors that a forked child closes; core/internal/sys.ForkTable. */
#define MWI_FORK_WORDS (1 << 14)
struct mwi_fork_table {
	uint32_t making, forking; /* threads that make or close a socket, and threads that fork */
	uint32_t forks, unused;   /* forks that have begun, ever */
	uint64_t held[MWI_FORK_WORDS]; /* one bit per descriptor number */
};
extern struct mwi_fork_table mwi_fork_table;

/* Writes the part of a result for which the caller's struct has room. */
void mwi_write_result(mw_dispatch_result_t *to, const mw_dispatch_result_t *from);

#endif
