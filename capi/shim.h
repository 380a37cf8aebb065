/*
 * Functions that the files with exported functions share: the checks that must not be
 * left to Go, and the reading and writing of sized structs.
 */
#ifndef MWI_SHIM_H
#define MWI_SHIM_H

#include <stdio.h>
#include <string.h>

#include "_cgo_export.h"
#include "internal.h"

/*
 * A larger size counts as garbage, not as a newer caller. So does a size that no struct
 * with 64-bit fields has, which could end inside a pointer.
 */
#define MAX_STRUCT_BYTES 4096u
#define SIZE_STEP 8u

/* Whether this is a forked child. */
extern volatile int mwi_forked;

static inline mw_status_t fail(mw_status_t status, const char *text)
{
	mwi_set_error(text, strlen(text));
	return status;
}

static inline mw_status_t fail_fork(void)
{
	return fail(MW_ERR_FORKED, "moewire: the library was loaded before fork(); "
	                           "start processes with spawn or forkserver, or load it after the fork");
}

static inline mw_status_t fail_null(const char *name)
{
	char text[128];
	snprintf(text, sizeof text, "invalid argument: %s is NULL", name);
	return fail(MW_ERR_INVALID_ARGUMENT, text);
}

static inline int bad_size(uint32_t size)
{
	return size < SIZE_STEP || size > MAX_STRUCT_BYTES || size % SIZE_STEP != 0;
}

static inline mw_status_t fail_size(const char *name, uint32_t given, size_t known)
{
	char text[192];
	snprintf(text, sizeof text,
	         "invalid argument: %s->size is %u, allowed 8 to %u in steps of 8 (this library knows %zu, and further bytes must be 0)",
	         name, given, MAX_STRUCT_BYTES, known);
	return fail(MW_ERR_INVALID_ARGUMENT, text);
}

/* Copies a sized struct. Fields that the caller's size does not cover read as zero. */
static inline mw_status_t read_sized(void *to, size_t known, const void *from, const char *name)
{
	uint32_t size;
	memset(to, 0, known);
	if (from == NULL)
		return fail_null(name);
	memcpy(&size, from, sizeof size);
	if (bad_size(size))
		return fail_size(name, size, known);
	for (size_t i = known; i < size; i++)
		if (((const unsigned char *)from)[i] != 0)
			return fail_size(name, size, known);
	memcpy(to, from, size < known ? size : known);
	return MW_OK;
}

static inline mw_status_t check_out(const void *out, size_t known, const char *name)
{
	uint32_t size;
	if (out == NULL)
		return fail_null(name);
	memcpy(&size, out, sizeof size);
	return bad_size(size) ? fail_size(name, size, known) : MW_OK;
}

/* Writes a sized struct as far as the caller's size covers it. The size field stays. */
static inline void write_sized(void *to, const void *from, size_t known)
{
	uint32_t size;
	memcpy(&size, to, sizeof size);
	memcpy((char *)to + sizeof size, (const char *)from + sizeof size,
	       (size < known ? size : known) - sizeof size);
}

#define NOT_FORKED()                  \
	do {                          \
		if (mwi_forked)           \
			return fail_fork(); \
	} while (0)

#define NOT_NULL(p)                           \
	do {                                  \
		if ((p) == NULL)              \
			return fail_null(#p); \
	} while (0)

#define READ_SIZED(copy, from)                                                       \
	do {                                                                         \
		mw_status_t read_ = read_sized(&(copy), sizeof(copy), (from), #from); \
		if (read_ != MW_OK)                                                  \
			return read_;                                                \
	} while (0)

#define CHECK_OUT(out)                                                     \
	do {                                                               \
		mw_status_t out_ = check_out((out), sizeof(*(out)), #out); \
		if (out_ != MW_OK)                                         \
			return out_;                                       \
	} while (0)

#endif
