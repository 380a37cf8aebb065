// In place of libibverbs on a machine without it, for a program that is linked
// to it and is to use sockets: there are no devices, and nothing else is called.

#include <stddef.h>
#include <stdlib.h>

void **ibv_get_device_list(int *count)
{
	static void *none[1];

	if (count)
		*count = 0;
	return none;
}

void ibv_free_device_list(void **list)
{
	(void)list;
}

int ibv_fork_init(void)
{
	return 0;
}

#define NEVER(name)   \
	void name(void) \
	{             \
		abort(); \
	}

NEVER(_ibv_query_gid_ex)
NEVER(ibv_ack_async_event)
NEVER(ibv_ack_cq_events)
NEVER(ibv_alloc_pd)
NEVER(ibv_close_device)
NEVER(ibv_create_comp_channel)
NEVER(ibv_create_cq)
NEVER(ibv_create_qp)
NEVER(ibv_dealloc_pd)
NEVER(ibv_dereg_mr)
NEVER(ibv_destroy_comp_channel)
NEVER(ibv_destroy_cq)
NEVER(ibv_destroy_qp)
NEVER(ibv_event_type_str)
NEVER(ibv_get_async_event)
NEVER(ibv_get_cq_event)
NEVER(ibv_get_device_name)
NEVER(ibv_modify_qp)
NEVER(ibv_open_device)
NEVER(ibv_query_device)
NEVER(ibv_query_gid)
NEVER(ibv_query_port)
NEVER(ibv_query_qp)
NEVER(ibv_reg_mr)
NEVER(ibv_reg_mr_iova2)
NEVER(ibv_wc_status_str)
