/*
 * Calls that come late: after an operation has ended, after its buffer was
 * closed, and closing while another thread connects.
 */
#include <pthread.h>
#include <stddef.h>
#include <time.h>

#include "check.h"

enum { H = 16, E = 2 };

/* One dispatch of one token, left at `phase`. */
struct one {
	uint16_t x[H];
	int64_t topk[1];
	int32_t count[E];
	int64_t layout[E];
	mw_dispatch_result_t result;
};

static mw_status_t dispatch(mw_buffer_t buffer, struct one *o, mw_op_t *op)
{
	o->result = (mw_dispatch_result_t){.size = sizeof o->result};
	mw_dispatch_args_t args = {
		.size = sizeof args, .x = ADDRESS(o->x), .topk_idx = ADDRESS(o->topk), .num_tokens = 1,
		.hidden = H, .num_topk = 1, .num_max_tokens_per_rank = 4, .num_experts = E, .timeout_us = -1,
		.slice_us = -1, .phase = MW_PHASE_SENT, .recv_count = ADDRESS(o->count),
		.layout_range = ADDRESS(o->layout), .result = &o->result};
	return mw_buffer_dispatch(buffer, &args, op);
}

/* The result is written for the last time by the call that finds it done. */
static void test_result_once(void)
{
	mw_buffer_t buffer = lone_buffer();
	struct one o = {.topk = {1}};
	mw_op_t op = {0};
	STATUS(MW_OK, dispatch(buffer, &o, &op));
	if (op.id == 0) { /* one rank: all data may be there at once */
		STATUS(MW_OK, mw_buffer_close(buffer));
		return;
	}
	STATUS(MW_OK, mw_op_wait(op, 0, -1));
	CHECK(o.result.handle.id != 0);
	o.result.handle.id = UNTOUCHED;
	STATUS(MW_OK, mw_op_wait(op, 0, -1));
	CHECK(o.result.handle.id == UNTOUCHED);
	STATUS(MW_OK, mw_op_close(op));
	REFUSED(MW_ERR_HANDLE, mw_op_wait(op, 0, -1));
	STATUS(MW_OK, mw_buffer_close(buffer));
}

/* A mapping can be retained while its buffer is open, or retained already. */
static void test_memory_after_close(void)
{
	mw_buffer_t buffer = lone_buffer();
	struct one o = {.topk = {0}, .x = {0x3f80}};
	mw_op_t op = {0};
	STATUS(MW_OK, dispatch(buffer, &o, &op));
	mw_memory_t memory = o.result.memory;
	STATUS(MW_OK, mw_memory_retain(memory));
	REFUSED(MW_ERR_HANDLE, mw_memory_release((mw_memory_t){memory.id + 1000}));
	STATUS(MW_OK, mw_buffer_close(buffer));
	volatile const uint16_t *row = (const uint16_t *)(uintptr_t)o.result.recv_x;
	CHECK(row[0] == 0x3f80); /* still mapped */
	STATUS(MW_OK, mw_memory_release(memory));
	REFUSED(MW_ERR_HANDLE, mw_memory_retain(memory));
	REFUSED(MW_ERR_HANDLE, mw_memory_retain(memory));
	REFUSED(MW_ERR_HANDLE, mw_memory_release(memory));
	if (op.id != 0)
		STATUS(MW_OK, mw_op_close(op));
}

static unsigned char own[1024];
static uint64_t own_len;

static mw_buffer_t half_of_two(void)
{
	mw_config_t config = config_of(0, 2);
	mw_buffer_t buffer = {0};
	STATUS(MW_OK, mw_buffer_create(&config, &buffer));
	STATUS(MW_OK, mw_buffer_metadata(buffer, own, sizeof own, &own_len));
	return buffer;
}

static void test_connect_counts(void)
{
	mw_buffer_t buffer = half_of_two();
	mw_bytes_t all[2] = {{ADDRESS(own), own_len}, {0, 0}};
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_connect(buffer, all, UINT32_MAX, 1000));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_connect(buffer, all, 0, 1000));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_connect(buffer, all, 2, 0));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_connect(buffer, all, 2, -2));
	all[1] = (mw_bytes_t){UINT64_MAX - 3, 64};
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_connect(buffer, all, 2, 1000));
	STATUS(MW_OK, mw_buffer_close(buffer));
}

static void *connect_alone(void *arg)
{
	mw_buffer_t buffer = *(mw_buffer_t *)arg;
	mw_config_t config = config_of(1, 2);
	mw_buffer_t absent = {0};
	unsigned char other[1024];
	uint64_t len = 0;
	STATUS(MW_OK, mw_buffer_create(&config, &absent));
	STATUS(MW_OK, mw_buffer_metadata(absent, other, sizeof other, &len));
	mw_bytes_t all[2] = {{ADDRESS(own), own_len}, {ADDRESS(other), len}};
	REFUSED(MW_ERR_CLOSED, mw_buffer_connect(buffer, all, 2, 60000000));
	STATUS(MW_OK, mw_buffer_close(absent));
	return NULL;
}

static void test_close_ends_connect(void)
{
	mw_buffer_t buffer = half_of_two();
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, connect_alone, &buffer) == 0);
	nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
	STATUS(MW_OK, mw_buffer_close(buffer));
	CHECK(pthread_join(thread, NULL) == 0);
}

int main(void)
{
	test_result_once();
	test_memory_after_close();
	test_connect_counts();
	test_close_ends_connect();
	puts("late: ok");
	return 0;
}
