// Moewire as a C program uses it: the caller gives its functions by address, and fills its structs.

#define _GNU_SOURCE

#include "clock.h"

typedef struct {
	uint64_t id;
} id_type;

// Of mw_buffer_dispatch and mw_buffer_combine.
typedef int32_t (*start_function)(id_type buffer, const void *args, id_type *op);
typedef int32_t (*release_function)(id_type handle);

struct calls {
	start_function dispatch;
	start_function combine;
	release_function release;
	id_type buffer;
	const void *dispatch_args;
	const void *combine_args;
	// What a dispatch answers, and where a combine in place takes it.
	const uint64_t *handle;
	const uint64_t *outputs;
	uint64_t *combine_handle;
	uint64_t *combine_x;
};

// Everything is complete when a call returns: anything else is an error here.
static int32_t start(start_function function, id_type buffer, const void *args)
{
	id_type op = {0};

	return function(buffer, args, &op);
}

static int32_t dispatch(void *self)
{
	struct calls *c = self;

	return start(c->dispatch, c->buffer, c->dispatch_args);
}

static int32_t combine(void *self)
{
	struct calls *c = self;

	*c->combine_handle = *c->handle;
	*c->combine_x = *c->outputs;
	return start(c->combine, c->buffer, c->combine_args);
}

// A dispatch releases what was combined before it, as callers have it.
int32_t calls_dispatch(struct calls *c, const struct when *w)
{
	return run_at(dispatch, c, w);
}

int32_t calls_combine(struct calls *c, const struct when *w)
{
	return run_at(combine, c, w);
}

int32_t calls_pairs(struct calls *c, const struct when *w, int64_t lead, int64_t pairs)
{
	return run_pairs(dispatch, combine, c, w, lead, pairs);
}

// Nanoseconds per dispatch and release, without combine; -1 on error.
double calls_empty(struct calls *c, int64_t count)
{
	int64_t begin = now_ns();

	for (int64_t i = 0; i < count; i++)
		if (dispatch(c) != 0 || c->release((id_type){*c->handle}) != 0)
			return -1;
	return (double)(now_ns() - begin) / (double)count;
}
