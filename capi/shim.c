/*
 * The exported functions. Each makes in C the checks that must not be left to Go: that
 * this is not a forked child (entering Go there can hang), that pointers are not NULL,
 * and that sized structs have a valid size.
 */
#include "shim.h"

uint64_t mwi_event_count;

void mwi_write_result(mw_dispatch_result_t *to, const mw_dispatch_result_t *from)
{
	write_sized(to, from, sizeof *from);
}

uint32_t mw_abi_version(void)
{
	return MW_ABI_VERSION;
}

const char *mw_version(void)
{
	return mwi_forked ? "" : mwiVersion();
}

mw_status_t mw_system_report(char *buf, uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(len);
	return mwiSystemReport(buf, cap, len);
}

mw_status_t mw_cuda_report(const mw_bytes_t *driver, const mw_bytes_t *nvrtc, char *buf, uint64_t cap, uint64_t *len)
{
	mw_bytes_t none = {0, 0};
	NOT_FORKED();
	NOT_NULL(len);
	return mwiCUDAReport(driver ? (mw_bytes_t *)driver : &none, nvrtc ? (mw_bytes_t *)nvrtc : &none, buf, cap, len);
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

mw_status_t mw_buffer_links(mw_buffer_t buffer, mw_link_t *links, uint32_t capacity,
                            uint32_t *count)
{
	NOT_FORKED();
	CHECK_OUT(links);
	NOT_NULL(count);
	return mwiBufferLinks(buffer.id, links, capacity, count);
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

mw_status_t mw_buffer_combine_buffer_on(mw_buffer_t buffer, mw_handle_t handle, uint64_t stream,
                                        uint64_t *address)
{
	NOT_FORKED();
	NOT_NULL(address);
	return mwiCombineBufferOn(buffer.id, handle.id, stream, address);
}

mw_status_t mw_handle_release(mw_handle_t handle)
{
	NOT_FORKED();
	return mwiHandleRelease(handle.id);
}

mw_status_t mw_handle_release_on(mw_handle_t handle, uint64_t stream)
{
	NOT_FORKED();
	return mwiHandleReleaseOn(handle.id, stream);
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
