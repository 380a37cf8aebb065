/*
 * The exported functions. Each checks in C what must not be left to Go: that
 * this is not a forked child (entering Go there can hang), that pointers are
 * there, and that sized structs have a size that makes sense.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "_cgo_export.h"
#include "internal.h"

/*
 * Larger sizes are taken for garbage, not for a newer caller; so are sizes that
 * no struct with 64-bit fields has, which could end inside a pointer.
 */
#define MAX_STRUCT_BYTES 4096u
#define SIZE_STEP 8u

static volatile int forked;

uint64_t mwi_event_count;

static void note_fork(void)
{
	forked = 1;
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, note_fork);
}

static mw_status_t fail(mw_status_t status, const char *text)
{
	mwi_set_error(text, strlen(text));
	return status;
}

static mw_status_t fail_fork(void)
{
	return fail(MW_ERR_FORKED, "moewire: the library was loaded before fork(); "
	                           "start processes with spawn or forkserver, or load it after the fork");
}

static mw_status_t fail_null(const char *name)
{
	char text[128];
	snprintf(text, sizeof text, "invalid argument: %s is NULL", name);
	return fail(MW_ERR_INVALID_ARGUMENT, text);
}

static int bad_size(uint32_t size)
{
	return size < SIZE_STEP || size > MAX_STRUCT_BYTES || size % SIZE_STEP != 0;
}

static mw_status_t fail_size(const char *name, uint32_t given, size_t known)
{
	char text[192];
	snprintf(text, sizeof text,
	         "invalid argument: %s->size is %u, allowed 8 to %u in steps of 8 (this library knows %zu, and further bytes must be 0)",
	         name, given, MAX_STRUCT_BYTES, known);
	return fail(MW_ERR_INVALID_ARGUMENT, text);
}

/* Copies a sized struct: what the caller does not cover reads as zero. */
static mw_status_t read_sized(void *to, size_t known, const void *from, const char *name)
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

static mw_status_t check_out(const void *out, size_t known, const char *name)
{
	uint32_t size;
	if (out == NULL)
		return fail_null(name);
	memcpy(&size, out, sizeof size);
	return bad_size(size) ? fail_size(name, size, known) : MW_OK;
}

/* Writes a sized struct as far as the caller covers it; its size stays. */
static void write_sized(void *to, const void *from, size_t known)
{
	uint32_t size;
	memcpy(&size, to, sizeof size);
	memcpy((char *)to + sizeof size, (const char *)from + sizeof size,
	       (size < known ? size : known) - sizeof size);
}

void mwi_write_result(mw_dispatch_result_t *to, const mw_dispatch_result_t *from)
{
	write_sized(to, from, sizeof *from);
}

#define NOT_FORKED()                  \
	do {                          \
		if (forked)           \
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

uint32_t mw_abi_version(void)
{
	return MW_ABI_VERSION;
}

const char *mw_version(void)
{
	return forked ? "" : mwiVersion();
}

mw_status_t mw_system_report(char *buf, uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(len);
	return mwiSystemReport(buf, cap, len);
}

mw_status_t mw_buffer_size_hint(const mw_shape_t *shape, uint64_t *num_bytes)
{
	mw_shape_t s;
	NOT_FORKED();
	READ_SIZED(s, shape);
	NOT_NULL(num_bytes);
	return mwiSizeHint(&s, num_bytes);
}

mw_status_t mw_buffer_create(const mw_config_t *config, mw_buffer_t *buffer)
{
	mw_config_t c;
	NOT_FORKED();
	READ_SIZED(c, config);
	NOT_NULL(buffer);
	return mwiBufferCreate(&c, &buffer->id);
}

mw_status_t mw_buffer_metadata(mw_buffer_t buffer, void *buf, uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(len);
	return mwiBufferMetadata(buffer.id, buf, cap, len);
}

mw_status_t mw_buffer_connect(mw_buffer_t buffer, const mw_bytes_t *all, uint32_t num_ranks,
                              int64_t timeout_us)
{
	NOT_FORKED();
	NOT_NULL(all);
	return mwiBufferConnect(buffer.id, (mw_bytes_t *)all, num_ranks, timeout_us);
}

mw_status_t mw_buffer_update(mw_buffer_t buffer)
{
	NOT_FORKED();
	return mwiBufferUpdate(buffer.id);
}

mw_status_t mw_buffer_install(mw_buffer_t buffer)
{
	NOT_FORKED();
	return mwiBufferInstall(buffer.id);
}

mw_status_t mw_buffer_members(mw_buffer_t buffer, mw_members_t *members)
{
	mw_members_t m;
	mw_status_t status;
	NOT_FORKED();
	CHECK_OUT(members);
	memset(&m, 0, sizeof m);
	status = mwiBufferMembers(buffer.id, &m);
	if (status == MW_OK)
		write_sized(members, &m, sizeof m);
	return status;
}

mw_status_t mw_buffer_close(mw_buffer_t buffer)
{
	NOT_FORKED();
	return mwiBufferClose(buffer.id);
}

mw_status_t mw_buffer_counters(mw_buffer_t buffer, mw_counters_t *counters)
{
	mw_counters_t c;
	mw_status_t status;
	NOT_FORKED();
	CHECK_OUT(counters);
	memset(&c, 0, sizeof c);
	status = mwiBufferCounters(buffer.id, &c);
	if (status == MW_OK)
		write_sized(counters, &c, sizeof c);
	return status;
}

mw_status_t mw_buffer_stats(mw_buffer_t buffer, char *buf, uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(len);
	return mwiBufferStats(buffer.id, buf, cap, len);
}

mw_status_t mw_buffer_paths(mw_buffer_t buffer, char *buf, uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(len);
	return mwiBufferPaths(buffer.id, buf, cap, len);
}

mw_status_t mw_buffer_trace(mw_buffer_t buffer, uint32_t rank, mw_record_t *records,
                            uint32_t capacity, uint32_t *count)
{
	NOT_FORKED();
	CHECK_OUT(records);
	NOT_NULL(count);
	return mwiBufferTrace(buffer.id, rank, records, capacity, count);
}

mw_status_t mw_buffer_events(mw_buffer_t buffer, uint64_t since, char *buf, uint64_t cap,
                             uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(len);
	return mwiBufferEvents(buffer.id, since, buf, cap, len);
}

const uint64_t *mw_event_count(void)
{
	return &mwi_event_count;
}

mw_status_t mw_buffer_dispatch(mw_buffer_t buffer, const mw_dispatch_args_t *args, mw_op_t *op)
{
	mw_dispatch_args_t a;
	mw_status_t status;
	NOT_FORKED();
	READ_SIZED(a, args);
	NOT_NULL(op);
	status = check_out(a.result, sizeof *a.result, "args->result");
	if (status != MW_OK)
		return status;
	return mwiBufferDispatch(buffer.id, &a, &op->id);
}

mw_status_t mw_buffer_combine(mw_buffer_t buffer, const mw_combine_args_t *args, mw_op_t *op)
{
	mw_combine_args_t a;
	NOT_FORKED();
	READ_SIZED(a, args);
	NOT_NULL(op);
	return mwiBufferCombine(buffer.id, &a, &op->id);
}

mw_status_t mw_buffer_combine_buffer(mw_buffer_t buffer, mw_handle_t handle, int64_t timeout_us,
                                     uint64_t *address)
{
	NOT_FORKED();
	NOT_NULL(address);
	return mwiCombineBuffer(buffer.id, handle.id, timeout_us, address);
}

mw_status_t mw_handle_release(mw_handle_t handle)
{
	NOT_FORKED();
	return mwiHandleRelease(handle.id);
}

mw_status_t mw_op_wait(mw_op_t op, int32_t phase, int64_t timeout_us)
{
	NOT_FORKED();
	return mwiOpWait(op.id, phase, timeout_us);
}

mw_status_t mw_op_test(mw_op_t op)
{
	NOT_FORKED();
	return mwiOpWait(op.id, MW_PHASE_DONE, 0);
}

mw_status_t mw_op_cancel(mw_op_t op)
{
	NOT_FORKED();
	return mwiOpCancel(op.id);
}

mw_status_t mw_op_close(mw_op_t op)
{
	NOT_FORKED();
	return mwiOpClose(op.id);
}

mw_status_t mw_memory_retain(mw_memory_t memory)
{
	NOT_FORKED();
	return mwiMemoryRetain(memory.id);
}

mw_status_t mw_memory_release(mw_memory_t memory)
{
	NOT_FORKED();
	return mwiMemoryRelease(memory.id);
}
