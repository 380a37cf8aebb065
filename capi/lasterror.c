/*
 * The last error of each thread. It lives in C because a Go export and its
 * caller share the thread but not the goroutine.
 */
#include <string.h>

#include "internal.h"

static _Thread_local char last_error[2048];

void mwi_set_error(const char *text, size_t len)
{
	if (len >= sizeof last_error)
		len = sizeof last_error - 1;
	memcpy(last_error, text, len);
	last_error[len] = 0;
}

const char *mw_last_error(void)
{
	return last_error;
}
