/*
 * The calls that fuzz.c makes. Their arguments are mostly right, and wrong in a word or
 * two.
 */
#ifndef FUZZ_CALLS_H
#define FUZZ_CALLS_H

#include "fuzz_buffers.h"

/* ------------------------------------------------------------- dispatch -- */

/* The data that a combine of a handle reads. It depends on the handle's dispatch. */
static struct known {
	uint64_t id, combine_x;
	int64_t hidden, x_bytes, num_tokens;
	mw_buffer_t buffer;
} known[64];
static unsigned num_known;

static const struct known *shape_of(uint64_t handle)
{
	for (size_t i = 0; i < COUNT(known); i++)
		if (known[i].id == handle)
			return &known[i];
	return NULL;
}

/* Every retain has its release before the id is forgotten: none stays mapped. */
static void let_go(uint64_t memory)
{
	while (mw_memory_release((mw_memory_t){memory}) == MW_OK)
		;
}

static void learn(mw_buffer_t buffer, const mw_dispatch_args_t *a, const mw_dispatch_result_t *r)
{
	known[num_known++ % COUNT(known)] = (struct known){
		r->handle.id, r->combine_x, a->hidden,
		product(a->num_experts * 2, a->num_max_tokens_per_rank, a->hidden), a->num_tokens, buffer};
	remember(&handles, r->handle.id);
	let_go(memories.last[memories.count % COUNT(memories.last)]);
	remember(&memories, r->memory.id);
}

static void close_ops(void)
{
	for (size_t i = 0; i < COUNT(ops.last); i++)
		(void)mw_op_close((mw_op_t){ops.last[i]});
}

/* Results are borrowed by operations: they are freed when none is in flight. */
static void *borrowed(void *result)
{
	static void *kept[64];
	static unsigned count;
	if (count == COUNT(kept)) {
		close_ops();
		while (count > 0)
			free(kept[--count]);
	}
	return kept[count++] = result;
}

/* The extra data of flat rows. Without the flag it may be given as well, and is refused. */
static void point_columns(mw_dispatch_args_t *a)
{
	if (a->flags & MW_DISPATCH_PRE_REDUCE)
		a->topk_weights = memory(6, product(a->num_tokens, a->num_topk, 4), 1 << 24);
	if (!(a->flags & MW_DISPATCH_FLAT))
		return;
	if (!(a->flags & MW_DISPATCH_NO_ROUTING) || rarely(32))
		a->topk_weights = memory(6, product(a->num_tokens, a->num_topk, 4), 1 << 24);
	for (int i = 0; i < MW_MAX_EXTRAS; i++)
		a->extra[i] = memory(8, product(a->num_tokens, a->extra_row_bytes[i], 1), 1 << 24);
}

static void point_dispatch(mw_dispatch_args_t *a)
{
	int64_t tokens = a->num_tokens;
	/* Rows of every expert become resident once there are tokens. */
	int64_t present = product(a->num_experts, a->hidden, 4);
	int fits = tokens == 0 || (present >= 0 && present <= 1 << 24);
	a->x = fits ? memory(0, product(tokens, a->hidden, 2), 1 << 24) : 0;
	a->topk_idx = memory(1, product(tokens, a->num_topk, 8), 1 << 24);
	a->active_ranks = rarely(2) ? 0 : memory(2, 0, 0);
	a->recv_count = memory(3, product(a->num_experts, 4, 1), INT64_MAX);
	a->layout_range = memory(4, product(a->num_experts, 8, 2), INT64_MAX);
	point_columns(a);
	int64_t *idx = (int64_t *)(uintptr_t)areas[1];
	for (int i = 0; i < 256; i++)
		idx[i] = rarely(64) ? (int64_t)strange64() : (int64_t)below(E + 1) - 1;
	int32_t *mask = (int32_t *)(uintptr_t)areas[2];
	for (int i = 0; i < 48; i++)
		mask[i] = rarely(16) ? (int32_t)strange64() : 1;
}

static mw_status_t call_dispatch(void)
{
	static const uint32_t flags[] = {0, 1, 2, 3, 5, 13, 4, 8, 32, 33, 48, 96, 36, 64, 128, 129, 144, 160};
	mw_buffer_t buffer = some_buffer();
	mw_dispatch_result_t result = {.size = sizeof result};
	mutate(&result, rarely(8) ? sizeof result : 8);
	mw_dispatch_args_t a = {
		.size = sizeof a, .flags = flags[below(COUNT(flags))], .num_tokens = (int64_t)below(M + 1),
		.hidden = rarely(4) ? 4 * H : H, .num_topk = K, .num_max_tokens_per_rank = M, .num_experts = E,
		.num_active_ranks = 2, .phase = (int32_t)below(3),
		.slice_us = (int64_t)below(100), .timeout_us = rarely(2) ? -1 : some_time()};
	if (a.flags & MW_DISPATCH_FLAT)
		a.extra_row_bytes[below(MW_MAX_EXTRAS)] = (uint32_t)below(20);
	mutate(&a, sizeof a);
	as_read(&a, sizeof a);
	may_wait(buffer, &a.slice_us);
	point_dispatch(&a);
	a.result = rarely(32) ? NULL : borrowed(exactly(&result, sizeof result));
	void *args = exactly(&a, sizeof a);
	mw_op_t op = {UNTOUCHED};
	mw_status_t status = mw_buffer_dispatch(buffer, args, rarely(64) ? NULL : &op);
	CHECK(status >= 0 || op.id == UNTOUCHED);
	if (status >= 0 && op.id != 0)
		remember(&ops, op.id);
	if (status >= 0 && a.result->size >= sizeof result && a.result->handle.id != 0)
		learn(buffer, &a, a.result);
	free(args);
	return status;
}

static mw_status_t call_combine(void)
{
	uint64_t handle = some_handle();
	const struct known *k = shape_of(handle);
	mw_buffer_t buffer = k && !rarely(8) ? k->buffer : some_buffer();
	mw_combine_args_t a = {
		.size = sizeof a, .flags = (uint32_t)below(2), .handle = {handle},
		.num_tokens = k && !rarely(8) ? k->num_tokens : (int64_t)below(M + 1), .num_topk = K, .num_active_ranks = 2,
		.slice_us = (int64_t)below(100), .timeout_us = rarely(2) ? -1 : some_time(),
		.phase = (int32_t)below(3)};
	mutate(&a, sizeof a);
	as_read(&a, sizeof a);
	may_wait(buffer, &a.slice_us);
	k = shape_of(a.handle.id);
	a.x = memory(5, k ? k->x_bytes : 0, (int64_t)AREA_BYTES);
	if (k && !rarely(4))
		a.x = k->combine_x;
	a.topk_idx = memory(1, product(a.num_tokens, a.num_topk, 8), 1 << 24);
	a.topk_weights = memory(6, product(a.num_tokens, a.num_topk, 4), 1 << 24);
	if (rarely(3)) { /* a flat one has no selections */
		a.flags |= MW_COMBINE_FLAT;
		a.topk_idx = a.topk_weights = 0;
		a.num_topk = rarely(32);
	}
	a.out = memory(7, product(a.num_tokens, k ? k->hidden : 1, 2), (int64_t)AREA_BYTES);
	a.active_ranks = rarely(2) ? 0 : memory(2, 0, 0);
	void *args = exactly(&a, sizeof a);
	mw_op_t op = {UNTOUCHED};
	mw_status_t status = mw_buffer_combine(buffer, args, rarely(64) ? NULL : &op);
	CHECK(status >= 0 || op.id == UNTOUCHED);
	if (status >= 0 && op.id != 0)
		remember(&ops, op.id);
	free(args);
	return status;
}

static mw_status_t call_combine_buffer(void)
{
	uint64_t address = UNTOUCHED;
	mw_buffer_t buffer = some_buffer();
	mw_handle_t handle = {some_handle()};
	uint64_t *to = rarely(16) ? NULL : &address;
	mw_status_t status = rarely(4) ? mw_buffer_combine_buffer_on(buffer, handle, strange64(), to)
	                               : mw_buffer_combine_buffer(buffer, handle, some_time(), to);
	CHECK(status == MW_OK || address == UNTOUCHED);
	return status;
}

/* ----------------------------------------------- handles, ops, mappings -- */

static mw_status_t call_release(void)
{
	if (rarely(2))
		return mw_handle_release_on((mw_handle_t){some_handle()}, strange64());
	return mw_handle_release((mw_handle_t){some_handle()});
}

static mw_status_t call_op(void)
{
	mw_op_t op = {some_id(&ops)};
	switch (below(4)) {
	case 0: return mw_op_wait(op, rarely(4) ? (int32_t)strange64() : (int32_t)below(3), some_time());
	case 1: return mw_op_test(op);
	case 2: return mw_op_cancel(op);
	default: return mw_op_close(op);
	}
}

static mw_status_t call_memory(void)
{
	mw_memory_t memory = {some_id(&memories)};
	return rarely(2) ? mw_memory_retain(memory) : mw_memory_release(memory);
}

/* ------------------------------------------------------- small questions -- */

static mw_status_t call_text(void)
{
	uint64_t len = UNTOUCHED, cap = rarely(2) ? below(4096) : strange64();
	char *text = rarely(4) ? NULL : malloc(cap < 65536 ? cap : 65536);
	if (cap > 65536)
		cap = 65536;
	uint64_t *out = rarely(32) ? NULL : &len;
	mw_status_t status;
	switch (below(6)) {
	case 0: status = mw_system_report(text, cap, out); break;
	case 4: status = mw_cuda_report(NULL, NULL, text, cap, out); break;
	case 3: status = mw_buffer_paths(some_buffer(), text, cap, out); break;
	case 1: status = mw_buffer_stats(some_buffer(), text, cap, out); break;
	case 2: status = mw_buffer_events(some_buffer(), strange64(), text, cap, out); break;
	default: status = mw_buffer_metadata(some_buffer(), text, cap, out); break;
	}
	free(text);
	return status;
}

static mw_status_t call_sized(void)
{
	mw_counters_t counters = {.size = sizeof counters};
	mw_members_t members = {.size = sizeof members};
	int which = rarely(2);
	void *any = which ? (void *)&members : (void *)&counters;
	size_t bytes = which ? sizeof members : sizeof counters;
	mutate(any, 8);
	void *out = rarely(32) ? NULL : exactly(any, bytes);
	mw_status_t status = which ? mw_buffer_members(some_buffer(), out)
	                           : mw_buffer_counters(some_buffer(), out);
	free(out);
	return status;
}

static mw_status_t call_trace(void)
{
	static unsigned char records[MW_MAX_RECORDS * 4096];
	mw_record_t first = {.size = sizeof first};
	mutate(&first, 8);
	memcpy(records, &first, sizeof first);
	uint32_t count = 77, capacity = (uint32_t)strange64();
	mw_status_t status = mw_buffer_trace(some_buffer(), rarely(2) ? 0 : (uint32_t)strange64(),
	                                     rarely(32) ? NULL : (mw_record_t *)(void *)records,
	                                     capacity, rarely(32) ? NULL : &count);
	CHECK(status == MW_OK || count == 77);
	CHECK(count == 77 || count <= MW_MAX_RECORDS);
	return status;
}

static mw_status_t call_links(void)
{
	static unsigned char links[MW_MAX_RANKS * 4096];
	mw_link_t first = {.size = sizeof first};
	mutate(&first, 8);
	memcpy(links, &first, sizeof first);
	uint32_t count = 77;
	mw_status_t status = mw_buffer_links(some_buffer(), rarely(32) ? NULL : (mw_link_t *)(void *)links,
	                                     (uint32_t)strange64(), rarely(32) ? NULL : &count);
	CHECK(status == MW_OK || count == 77);
	CHECK(count == 77 || count <= MW_MAX_RANKS);
	return status;
}

static mw_status_t call_size_hint(void)
{
	mw_shape_t shape = {sizeof shape, 2, M, H, 1, E, 0, 0, 0, {0}};
	if (rarely(2)) {
		shape.flags = MW_SHAPE_FLAT;
		shape.num_topk = K;
		shape.extra_row_bytes[below(MW_MAX_EXTRAS)] = (uint32_t)below(20);
	}
	mutate(&shape, sizeof shape);
	uint64_t n = UNTOUCHED;
	void *given = rarely(32) ? NULL : exactly(&shape, sizeof shape);
	mw_status_t status = mw_buffer_size_hint(given, rarely(32) ? NULL : &n);
	CHECK(status == MW_OK || n == UNTOUCHED);
	free(given);
	return status;
}

/* -------------------------------------------------------------- rendezvous -- */

static mw_status_t call_create(void)
{
	mw_config_t config = config_of(0, 1 + (uint32_t)below(3));
	mutate(&config, sizeof config);
	/* Memory that the arguments name exists, whatever its bytes are. */
	mw_bytes_t *texts[] = {
		&config.listen, &config.keys, &config.host, &config.key_file, &config.rdma_devices, &config.rdma_gid,
		&config.rdma_near, &config.cuda_driver, &config.cuda_code, &config.cuda_nvrtc,
	};
	for (size_t i = 0; i < COUNT(texts); i++) {
		texts[i]->num_bytes = rarely(8) ? strange64() : rarely(4) ? below(100) : 0;
		texts[i]->address = memory((int)below(AREAS), rarely(8) ? -1 : 1 << 17, 1 << 20);
	}
	void *given = rarely(32) ? NULL : exactly(&config, sizeof config);
	mw_buffer_t buffer = {UNTOUCHED};
	mw_status_t status = mw_buffer_create(given, rarely(32) ? NULL : &buffer);
	CHECK(status == MW_OK || buffer.id == UNTOUCHED);
	free(given);
	if (status == MW_OK) { /* its id stays among the ids that were valid */
		remember(&buffers, buffer.id);
		STATUS(MW_OK, mw_buffer_close(buffer));
	}
	return status;
}

static uint64_t metadata_of(mw_buffer_t buffer, unsigned char *bytes)
{
	uint64_t len = 0;
	return mw_buffer_metadata(buffer, bytes, 1024, &len) == MW_OK ? len : 0;
}

static mw_status_t call_connect(void)
{
	mw_buffer_t buffer = rarely(8) ? some_buffer() : half;
	unsigned char bytes[2][1024];
	mw_bytes_t all[64] = {{ADDRESS(bytes[0]), metadata_of(buffer, bytes[0])}};
	all[1] = (mw_bytes_t){ADDRESS(bytes[1]), metadata_of(rarely(2) ? lone : buffer, bytes[1])};
	for (int i = 0; i < 2 && !rarely(3); i++)
		bytes[rarely(4) ? 0 : 1][below(96)] ^= (unsigned char)any64();
	if (rarely(3))
		all[1].num_bytes = rarely(2) ? 0 : below(1024);
	if (rarely(8))
		all[1].address = 0;
	uint32_t ranks = rarely(8) ? (uint32_t)strange64() : buffer.id == lone.id ? 1 : 2;
	return mw_buffer_connect(buffer, rarely(32) ? NULL : all, ranks, some_time());
}

static mw_status_t call_epoch(void)
{
	mw_buffer_t buffer = some_buffer();
	if (rarely(64) && buffer.id == half.id) {
		STATUS(MW_OK, mw_buffer_close(half));
		remember(&buffers, half.id);
		half = make_half();
		return MW_OK;
	}
	if (!rarely(4))
		buffer = half;
	return rarely(2) ? mw_buffer_update(buffer) : mw_buffer_install(buffer);
}

static int is_alive(uint64_t id)
{
	return id == lone.id || id == half.id || id == pair[0].id || id == pair[1].id;
}

static mw_status_t call_constant(void)
{
	CHECK(mw_abi_version() == MW_ABI_VERSION && mw_version()[0] != 0 && mw_event_count() != NULL);
	/* An id that was never given, or a buffer that was closed. */
	uint64_t id = buffers.last[below(COUNT(buffers.last))];
	return mw_buffer_close((mw_buffer_t){is_alive(id) ? 0 : id});
}

#endif
