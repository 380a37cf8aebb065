/*
 * The last error of each thread. It lives in C because a Go export and its caller share
 * the thread but not the goroutine. The text is on the heap and only a pointer is
 * thread-local: a Go library uses initial-exec TLS, of which only about a kilobyte is
 * left when a program loads the library late.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define CAPACITY 2048

static _Thread_local char *last_error;
static pthread_key_t at_thread_exit;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Another destructor of the same thread may still make a failing call, which then makes a
   new text. */
static void drop(void *text)
{
	free(text);
	last_error = NULL;
}

static void make_key(void)
{
	pthread_key_create(&at_thread_exit, drop);
}

void mwi_set_error(const char *text, size_t len)
{
	if (last_error == NULL) {
		pthread_once(&once, make_key);
		last_error = malloc(CAPACITY);
		if (last_error == NULL)
			return; /* the status still says what kind of error it was */
		pthread_setspecific(at_thread_exit, last_error);
	}
	if (len >= CAPACITY)
		len = CAPACITY - 1;
	memcpy(last_error, text, len);
	last_error[len] = 0;
}

const char *mw_last_error(void)
{
	return last_error != NULL ? last_error : "";
}
