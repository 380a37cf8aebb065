/*
 * MW_DISPATCH_KEEP_HELD: a dispatch that would overwrite the rows of a handle
 * that is neither combined nor released is refused, and nothing has happened.
 */
#include "check.h"

enum { H = 8, M = 2, E = 2 };

struct call {
	mw_dispatch_args_t args;
	mw_dispatch_result_t result;
	uint16_t x[H];
	int64_t layout[E], ids[1];
	int32_t count[E];
};

static void prepare(struct call *c, uint16_t value, uint32_t flags)
{
	memset(c, 0, sizeof *c);
	for (int h = 0; h < H; h++)
		c->x[h] = value;
	c->result.size = sizeof c->result;
	c->args = (mw_dispatch_args_t){
		.size = sizeof c->args, .flags = flags, .x = ADDRESS(c->x), .topk_idx = ADDRESS(c->ids),
		.num_tokens = 1, .hidden = H, .num_topk = 1, .num_max_tokens_per_rank = M,
		.num_experts = E, .timeout_us = -1, .slice_us = -1, .recv_count = ADDRESS(c->count),
		.layout_range = ADDRESS(c->layout), .result = &c->result};
}

static uint16_t first_of(const struct call *c)
{
	return *(const uint16_t *)(uintptr_t)c->result.recv_x;
}

int main(void)
{
	mw_buffer_t buffer = lone_buffer();
	mw_op_t op = {UNTOUCHED};
	struct call c[4];
	for (int i = 0; i < 4; i++)
		prepare(&c[i], (uint16_t)(0x3f80 + i), MW_DISPATCH_KEEP_HELD);
	STATUS(MW_OK, mw_buffer_dispatch(buffer, &c[0].args, &op));
	STATUS(MW_OK, mw_buffer_dispatch(buffer, &c[1].args, &op));
	op.id = UNTOUCHED;
	for (int i = 0; i < 2; i++) {
		REFUSED(MW_ERR_BUSY, mw_buffer_dispatch(buffer, &c[2].args, &op));
		CHECK(strstr(mw_last_error(), "2 operations are in flight and held, num_slots=2"));
		CHECK(op.id == UNTOUCHED && c[2].result.handle.id == 0);
	}
	CHECK(first_of(&c[0]) == 0x3f80 && first_of(&c[1]) == 0x3f81);
	STATUS(MW_OK, mw_handle_release(c[0].result.handle));
	STATUS(MW_OK, mw_buffer_dispatch(buffer, &c[2].args, &op));
	CHECK(first_of(&c[2]) == 0x3f82 && first_of(&c[1]) == 0x3f81);
	REFUSED(MW_ERR_BUSY, mw_buffer_dispatch(buffer, &c[3].args, &op));
	c[3].args.flags = 0; /* a caller that knows of the conflict may overwrite */
	STATUS(MW_OK, mw_buffer_dispatch(buffer, &c[3].args, &op));
	CHECK(first_of(&c[1]) == 0x3f83);
	REFUSED(MW_ERR_STALE_HANDLE, mw_handle_release(c[1].result.handle));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_handle_release_on(c[3].result.handle, MW_STREAM_NONE));
	STATUS(MW_OK, mw_buffer_close(buffer));
	puts("held: ok");
	return 0;
}
