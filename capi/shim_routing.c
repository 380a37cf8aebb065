/* The exported functions of moewire_routing.h: see shim.c. */
#include "shim.h"

mw_status_t mw_routing_create(mw_buffer_t buffer, const mw_routing_args_t *args, mw_routing_t *routing,
                              mw_op_t *op)
{
	mw_routing_args_t a;
	NOT_FORKED();
	READ_SIZED(a, args);
	NOT_NULL(routing);
	NOT_NULL(op);
	return mwiRoutingCreate(buffer.id, &a, &routing->id, &op->id);
}

mw_status_t mw_routing_close(mw_routing_t routing)
{
	NOT_FORKED();
	return mwiRoutingClose(routing.id);
}

mw_status_t mw_routing_info(mw_routing_t routing, mw_routing_info_t *info)
{
	mw_routing_info_t i;
	mw_status_t status;
	NOT_FORKED();
	CHECK_OUT(info);
	memset(&i, 0, sizeof i);
	status = mwiRoutingInfo(routing.id, &i);
	if (status == MW_OK)
		write_sized(info, &i, sizeof i);
	return status;
}

mw_status_t mw_routing_read(mw_routing_t routing, uint32_t what, int64_t expert_alignment, void *buf,
                            uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(len);
	return mwiRoutingRead(routing.id, what, expert_alignment, buf, cap, len);
}

mw_status_t mw_routing_num_rows(mw_routing_t routing, int64_t expert_alignment, int64_t *num_rows)
{
	NOT_FORKED();
	NOT_NULL(num_rows);
	return mwiRoutingNumRows(routing.id, expert_alignment, num_rows);
}

mw_status_t mw_buffer_scatter(mw_buffer_t buffer, const mw_scatter_args_t *args, mw_op_t *op)
{
	mw_scatter_args_t a;
	NOT_FORKED();
	READ_SIZED(a, args);
	NOT_NULL(op);
	return mwiBufferScatter(buffer.id, &a, &op->id);
}

mw_status_t mw_buffer_gather(mw_buffer_t buffer, const mw_gather_args_t *args, mw_op_t *op)
{
	mw_gather_args_t a;
	NOT_FORKED();
	READ_SIZED(a, args);
	NOT_NULL(op);
	return mwiBufferGather(buffer.id, &a, &op->id);
}
