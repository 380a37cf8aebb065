/*
 * fuzz SEED SECONDS: calls every function with mutated structs, sizes, flags,
 * ids, NULLs and misaligned addresses, on a buffer that is its own group, on one
 * that mostly lacks its peer, and on two that wait for one another's calls.
 * Memory that the contract lets the library read is always there. Nothing may
 * crash or hang, a failure says why and writes nothing, and the first buffer
 * computes right throughout.
 */
#include "fuzz_calls.h"
#include "fuzz_fabric.h"
#include "fuzz_routing.h"
#include "fuzz_store.h"

/* Instead of hanging, prints where it was and how to get there again. */
static void stuck(int signal)
{
	(void)signal;
	char text[160];
	int n = snprintf(text, sizeof text, "fuzz: stuck in %s, call %llu, seed %llu\n", name,
	                 (unsigned long long)calls, (unsigned long long)seed);
	_exit(write(2, text, (size_t)n) > 0 ? 3 : 4);
}

static const struct {
	const char *name;
	mw_status_t (*call)(void);
} functions[] = {
	{"dispatch", call_dispatch}, {"dispatch", call_dispatch}, {"dispatch", call_dispatch},
	{"combine", call_combine}, {"combine", call_combine}, {"combine", call_combine},
	{"combine_buffer", call_combine_buffer}, {"release", call_release}, {"op", call_op},
	{"op", call_op}, {"memory", call_memory}, {"text", call_text}, {"sized", call_sized},
	{"trace", call_trace}, {"links", call_links}, {"size_hint", call_size_hint}, {"create", call_create},
	{"connect", call_connect}, {"epoch", call_epoch}, {"constant", call_constant},
	{"fabric", call_fabric}, {"region", call_region}, {"post", call_post}, {"post", call_post},
	{"transfer", call_transfer}, {"fabric_create", call_fabric_create},
	{"store", call_store}, {"store", call_store}, {"routing", call_routing}, {"routing", call_routing},
	{"routing", call_routing},
};

/* A failing call has left its own text, not this one, which an earlier call left. */
static void one_call(void)
{
	size_t i = below(COUNT(functions));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_create(NULL, NULL));
	static char before[128];
	snprintf(before, sizeof before, "%s", mw_last_error());
	name = functions[i].name;
	calls++;
	mw_status_t status = functions[i].call();
	if (status > MW_IN_PROGRESS || status < MW_ERR_DEVICE || status == MW_ERR_PANIC)
		FAIL("%s gave %d in call %" PRIu64, name, status, calls);
	int may_say_it = functions[i].call == call_create || functions[i].call == call_fabric_create ||
	                 functions[i].call == call_store;
	if (status < 0 && !may_say_it && strcmp(before, mw_last_error()) == 0)
		FAIL("%s gave %d and said nothing in call %" PRIu64, name, status, calls);
}

static mw_status_t plain_dispatch(mw_dispatch_result_t *result, const uint16_t *x, const int64_t *topk)
{
	static int32_t count[E];
	static int64_t layout[E];
	mw_dispatch_args_t a = {
		.size = sizeof a, .x = ADDRESS(x), .topk_idx = ADDRESS(topk), .num_tokens = T, .hidden = H,
		.num_topk = K, .num_max_tokens_per_rank = M, .num_experts = E, .timeout_us = 5000000,
		.slice_us = -1, .recv_count = ADDRESS(count), .layout_range = ADDRESS(layout), .result = result};
	mw_op_t op = {0};
	for (int i = 0; i < 3; i++) { /* again after the end of an earlier combine */
		mw_status_t status = mw_buffer_dispatch(lone, &a, &op);
		if (status != MW_IN_PROGRESS)
			return status;
	}
	return MW_IN_PROGRESS;
}

/* The buffer that is its own group computes right, once an update has ended. */
static void check_lone(void)
{
	uint16_t x[T * H], out[T * H];
	int64_t topk[T * K];
	float weights[T * K];
	for (int i = 0; i < T * H; i++)
		x[i] = (uint16_t)(0x3f80 + i % 64);
	for (int i = 0; i < T * K; i++) {
		topk[i] = i % E;
		weights[i] = 0.5f;
	}
	mw_dispatch_result_t r = {.size = sizeof r};
	mw_status_t status = plain_dispatch(&r, x, topk);
	/* PEER_LOST, BUSY: a call of a routing was given up, or found a slot held between its rounds. */
	if (status == MW_ERR_UPDATING || status == MW_ERR_CLOSED || status == MW_ERR_INVALID_ARGUMENT ||
	    status == MW_ERR_PEER_LOST || status == MW_ERR_BUSY) {
		unsigned char bytes[1024];
		STATUS(MW_OK, mw_buffer_update(lone));
		mw_bytes_t all = {ADDRESS(bytes), metadata_of(lone, bytes)};
		STATUS(MW_OK, mw_buffer_connect(lone, &all, 1, 5000000));
		STATUS(MW_OK, mw_buffer_install(lone));
		status = plain_dispatch(&r, x, topk);
	}
	if (status != MW_OK)
		FAIL("a good dispatch gave %d after call %" PRIu64, status, calls);
	/* Experts pass rows on; weights of a half twice give the row back. */
	memcpy((void *)(uintptr_t)r.combine_x, (const void *)(uintptr_t)r.recv_x, (size_t)E * M * H * 2);
	mw_combine_args_t c = {
		.size = sizeof c, .flags = MW_COMBINE_ZERO_COPY, .handle = r.handle, .x = r.combine_x,
		.topk_idx = ADDRESS(topk), .topk_weights = ADDRESS(weights), .out = ADDRESS(out),
		.num_tokens = T, .num_topk = K, .timeout_us = 5000000, .slice_us = -1};
	mw_op_t op = {0};
	STATUS(MW_OK, mw_buffer_combine(lone, &c, &op));
	CHECK(memcmp(out, x, sizeof x) == 0);
	STATUS(MW_OK, mw_handle_release(r.handle));
}

/* Makes fresh buffers now and then, because huge shapes have taken address space. */
static void renew(void)
{
	close_ops();
	remember(&buffers, lone.id);
	STATUS(MW_OK, mw_buffer_close(lone));
	lone = lone_buffer();
	for (int r = 0; r < 2; r++) {
		remember(&buffers, pair[r].id);
		STATUS(MW_OK, mw_buffer_close(pair[r]));
	}
	make_pair();
}

enum { MAX_MAPS = 64 };

/* Mappings of closed buffers are gone; retained memory is gone once it is released. */
static void check_maps(void)
{
	renew();
	for (size_t i = 0; i < COUNT(memories.last); i++)
		let_go(memories.last[i]);
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps != NULL);
	char line[512];
	int count = 0;
	while (fgets(line, sizeof line, maps))
		count += strstr(line, "moewire-rank") != NULL;
	fclose(maps);
	if (count > MAX_MAPS)
		FAIL("%d mappings are left of buffers that were closed", count);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	seed = strtoull(argv[1], NULL, 10);
	seed_state = (seed + 1) * 0x9E3779B97F4A7C15ull;
	time_t end = time(NULL) + atoi(argv[2]);
	signal(SIGALRM, stuck);
	make_areas();
	make_fabrics();
	make_store();
	lone = lone_buffer();
	half = make_half();
	make_pair();
	while (time(NULL) < end) {
		alarm(30);
		for (int i = 0; i < 64; i++)
			one_call();
		check_lone();
		if (rarely(8))
			renew();
	}
	check_maps();
	close_fabrics();
	close_store();
	printf("fuzz: ok, %" PRIu64 " calls, seed %" PRIu64 "\n", calls, seed);
	return 0;
}
