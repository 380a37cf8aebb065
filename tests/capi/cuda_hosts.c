/*
 * One of two ranks on CUDA that treat each other as ranks of other hosts. Each is a
 * process: cuda_hosts RANK FOLDER DRIVER. The ranks exchange metadata by files in FOLDER.
 * The device is the emulated one, which uses the process's own memory.
 */
#include "driver.h"

#include <time.h>

enum { R = 2, H = 128, M = 4, T = 3, K = 2, E = 4, L = E / R };

static int rank;
static const char *folder;

/* ---------------------------------------------------------------- rendezvous -- */

static void path_of(char *path, size_t size, const char *what, int of)
{
	CHECK((size_t)snprintf(path, size, "%s/%s-%d", folder, what, of) < size);
}

static void put(const char *what, const void *bytes, uint64_t len)
{
	char path[512], whole[512];
	path_of(path, sizeof path, "part", rank);
	path_of(whole, sizeof whole, what, rank);
	FILE *file = fopen(path, "wb");
	CHECK(file != NULL);
	CHECK(fwrite(bytes, 1, len, file) == len && fclose(file) == 0);
	CHECK(rename(path, whole) == 0);
}

/* Waits for a file of the other rank, at most two minutes. */
static uint64_t get(const char *what, void *bytes, size_t size)
{
	char path[512];
	path_of(path, sizeof path, what, 1 - rank);
	for (int i = 0; i < 120000; i++) {
		FILE *file = fopen(path, "rb");
		if (file != NULL) {
			uint64_t len = fread(bytes, 1, size, file);
			fclose(file);
			return len;
		}
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	FAIL("rank %d has not put %s", 1 - rank, what);
}

static void meet(const char *what)
{
	char none;
	put(what, &none, 0);
	get(what, &none, 1);
}

static mw_bytes_t text(const char *s) { return (mw_bytes_t){ADDRESS(s), strlen(s)}; }

static mw_config_t config(void)
{
	static const char key[] = "1 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
	mw_shape_t shape = {.size = sizeof shape, .num_max_tokens_per_rank = M, .hidden = H, .num_ranks = R,
	                    .num_experts = E};
	mw_config_t c = config_of((uint32_t)rank, R);
	STATUS(MW_OK, mw_buffer_size_hint(&shape, &c.num_bytes));
	c.device = MW_DEVICE_CUDA;
	c.cuda_code = (mw_bytes_t){ADDRESS("kernels"), sizeof "kernels"};
	c.host = text(rank ? "b" : "a");
	c.keys = text(key);
	c.listen = text("127.0.0.1");
	c.transport = MW_TRANSPORT_TCP;
	c.unresponsive_after_us = 600000000;
	return c;
}

static mw_buffer_t connected(const char *name, const char *driver_path)
{
	unsigned char own[1024], other[1024];
	mw_bytes_t all[R];
	mw_buffer_t buffer = {0};
	mw_config_t c = config();
	c.cuda_driver = text(driver_path);
	STATUS(MW_OK, mw_buffer_create(&c, &buffer));
	STATUS(MW_OK, mw_buffer_metadata(buffer, own, sizeof own, &all[rank].num_bytes));
	put(name, own, all[rank].num_bytes);
	all[1 - rank].num_bytes = get(name, other, sizeof other);
	all[rank].address = ADDRESS(own);
	all[1 - rank].address = ADDRESS(other);
	STATUS(MW_OK, mw_buffer_connect(buffer, all, R, 120000000));
	return buffer;
}

/* --------------------------------------------------------------- exchange -- */

struct call {
	uint16_t x[T * H], y[L * R * M * H], out[T * H];
	int64_t topk[T * K];
	float weights[T * K];
	int32_t active[R], count[L];
	int64_t layout[L * R];
	mw_dispatch_result_t result;
};

/* The expert that a token of a rank selects: one of each rank. */
static int64_t route(int source, int token, int k) { return (token + source + k * L) % E; }

static float weight(int k) { return k ? 0.5f : 1.0f; }

/* Bits of a bf16 of three digits. No two tokens have the same bits; sums of two, which
   experts have multiplied by powers of two, are exact. */
static uint16_t value(int source, int token, int h)
{
	return (uint16_t)(0x3f80 + 0x80 * (T * source + token) + 0x20 * (h % 4));
}

static float to_float(uint16_t bits)
{
	uint32_t bits32 = (uint32_t)bits << 16;
	float f;
	memcpy(&f, &bits32, sizeof f);
	return f;
}

static uint16_t to_bf16(float f)
{
	uint32_t bits32;
	memcpy(&bits32, &f, sizeof bits32);
	CHECK((bits32 & 0xffff) == 0);
	return (uint16_t)(bits32 >> 16);
}

/* The factor by which an expert multiplies its rows. */
static float factor(int64_t expert) { return (float)(1 << expert); }

static void fill(struct call *c)
{
	memset(c, 0, sizeof *c);
	for (int t = 0; t < T; t++) {
		for (int h = 0; h < H; h++)
			c->x[t * H + h] = value(rank, t, h);
		for (int k = 0; k < K; k++)
			c->topk[t * K + k] = route(rank, t, k), c->weights[t * K + k] = weight(k);
	}
	for (int r = 0; r < R; r++)
		c->active[r] = 1;
	c->result.size = sizeof c->result;
}

static mw_dispatch_args_t dispatch_args(struct call *c, uint64_t on)
{
	return (mw_dispatch_args_t){
		.size = sizeof(mw_dispatch_args_t), .x = ADDRESS(c->x), .topk_idx = ADDRESS(c->topk),
		.active_ranks = ADDRESS(c->active), .num_active_ranks = R, .num_tokens = T, .hidden = H,
		.num_topk = K, .num_max_tokens_per_rank = M, .num_experts = E, .timeout_us = -1, .slice_us = -1,
		.recv_count = ADDRESS(c->count), .layout_range = ADDRESS(c->layout), .result = &c->result, .stream = on};
}

static mw_combine_args_t combine_args(struct call *c, uint64_t x, uint64_t on)
{
	return (mw_combine_args_t){
		.size = sizeof(mw_combine_args_t), .handle = c->result.handle, .x = x, .topk_idx = ADDRESS(c->topk),
		.topk_weights = ADDRESS(c->weights), .active_ranks = ADDRESS(c->active), .num_active_ranks = R,
		.out = ADDRESS(c->out), .num_tokens = T, .num_topk = K, .timeout_us = -1, .slice_us = -1, .stream = on};
}

/* One bit per token of a rank that selects an expert. */
static unsigned tokens_of(int source, int64_t expert)
{
	unsigned all = 0;
	for (int t = 0; t < T; t++)
		for (int k = 0; k < K; k++)
			if (route(source, t, k) == expert)
				all |= 1u << t;
	return all;
}

static void check_row(const struct call *c, size_t row, int source, int token)
{
	const uint16_t *rows = (const uint16_t *)(uintptr_t)c->result.recv_x;
	for (int h = 0; h < H; h++)
		CHECK(rows[row * H + (size_t)h] == value(source, token, h));
}

/* The rows of one source for one expert: each of its tokens, once. */
static int check_source(const struct call *c, int local, int source)
{
	const int32_t *tokens = (const int32_t *)(uintptr_t)c->result.src_info;
	int64_t range = c->layout[local * R + source];
	unsigned want = tokens_of(source, rank * L + local);
	int begin = (int)(range >> 32), n = (int)(range & 0xffffffff);
	for (int i = begin; i < begin + n; i++) {
		size_t row = (size_t)local * R * M + (size_t)i;
		CHECK(tokens[row] >= 0 && tokens[row] < T && want >> tokens[row] & 1);
		want &= ~(1u << tokens[row]);
		check_row(c, row, source, tokens[row]);
	}
	CHECK(want == 0);
	return n;
}

static void check_rows(const struct call *c)
{
	for (int e = 0; e < L; e++) {
		int covered = 0;
		for (int source = 0; source < R; source++)
			covered += check_source(c, e, source);
		CHECK(covered == c->count[e]);
	}
}

/* Multiplies each row by its expert's factor. */
static uint64_t outputs(struct call *c)
{
	const uint16_t *rows = (const uint16_t *)(uintptr_t)c->result.recv_x;
	for (int e = 0; e < L; e++)
		for (int i = 0; i < c->count[e] * H; i++) {
			size_t at = (size_t)e * R * M * H + (size_t)i;
			c->y[at] = to_bf16(factor(rank * L + e) * to_float(rows[at]));
		}
	return ADDRESS(c->y);
}

/* `experts`: the experts multiplied the rows; otherwise the rows were sent back unchanged. */
static void check_sums(const struct call *c, int experts)
{
	for (int t = 0; t < T; t++)
		for (int h = 0; h < H; h++) {
			float sum = 0;
			for (int k = 0; k < K; k++)
				sum += weight(k) * (experts ? factor(route(rank, t, k)) : 1) * to_float(value(rank, t, h));
			CHECK(c->out[t * H + h] == to_bf16(sum));
		}
	CHECK(c->active[0] == 1 && c->active[1] == 1);
}

/* Launches the second phase, and closes the operation. */
static void finish(mw_op_t op)
{
	CHECK(op.id != 0);
	STATUS(MW_OK, mw_op_wait(op, MW_PHASE_DONE, 0));
	STATUS(MW_OK, mw_op_close(op));
}

static void exchange(mw_buffer_t buffer)
{
	struct call c;
	mw_op_t op = {0};
	fill(&c);
	mw_dispatch_args_t args = dispatch_args(&c, 0);
	STATUS(MW_OK, mw_buffer_dispatch(buffer, &args, &op));
	CHECK(op.id == 0);
	synchronize();
	check_rows(&c);
	mw_combine_args_t back = combine_args(&c, outputs(&c), 0);
	STATUS(MW_OK, mw_buffer_combine(buffer, &back, &op));
	CHECK(op.id == 0);
	synchronize();
	check_sums(&c, 1);
}

/* Each phase by itself. */
static void in_phases(mw_buffer_t buffer, uint64_t on)
{
	struct call c;
	mw_op_t op = {0};
	fill(&c);
	mw_dispatch_args_t args = dispatch_args(&c, on);
	args.phase = MW_PHASE_SENT;
	STATUS(MW_OK, mw_buffer_dispatch(buffer, &args, &op));
	finish(op);
	synchronize();
	check_rows(&c);
	mw_combine_args_t back = combine_args(&c, outputs(&c), on);
	back.phase = MW_PHASE_SENT;
	STATUS(MW_OK, mw_buffer_combine(buffer, &back, &op));
	finish(op);
	synchronize();
	check_sums(&c, 1);
}

/* A combine on a second stream launches the second phase of the dispatch there. */
static void on_two_streams(mw_buffer_t buffer, uint64_t first, uint64_t second)
{
	struct call c;
	mw_op_t left = {0}, op = {0};
	fill(&c);
	mw_dispatch_args_t args = dispatch_args(&c, first);
	args.phase = MW_PHASE_SENT;
	STATUS(MW_OK, mw_buffer_dispatch(buffer, &args, &left));
	follow(second, first);
	mw_combine_args_t back = combine_args(&c, c.result.recv_x, second);
	STATUS(MW_OK, mw_buffer_combine(buffer, &back, &op));
	CHECK(op.id == 0);
	driver_does("cuStreamSynchronize", second, 0, 0);
	check_rows(&c);
	check_sums(&c, 0);
	finish(left);
	follow(first, second);
}

/* An operation that is not combined, but released on another stream. */
static void release_uncombined(mw_buffer_t buffer, uint64_t first, uint64_t second)
{
	struct call c;
	mw_op_t op = {0};
	fill(&c);
	mw_dispatch_args_t args = dispatch_args(&c, first);
	STATUS(MW_OK, mw_buffer_dispatch(buffer, &args, &op));
	follow(second, first);
	driver_does("cuStreamSynchronize", second, 0, 0);
	check_rows(&c);
	STATUS(MW_OK, mw_handle_release_on(c.result.handle, second));
	REFUSED(MW_ERR_STALE_HANDLE, mw_handle_release_on(c.result.handle, second));
	REFUSED(MW_ERR_STALE_HANDLE, mw_handle_release(c.result.handle));
	follow(first, second);
}

/* Rows that are read after the buffer is closed. */
static void close_and_look(mw_buffer_t buffer)
{
	struct call c;
	mw_op_t op = {0};
	fill(&c);
	mw_dispatch_args_t args = dispatch_args(&c, 0);
	STATUS(MW_OK, mw_buffer_dispatch(buffer, &args, &op));
	synchronize();
	STATUS(MW_OK, mw_memory_retain(c.result.memory));
	meet("exchanged");
	STATUS(MW_OK, mw_buffer_close(buffer));
	check_rows(&c);
	STATUS(MW_OK, mw_memory_release(c.result.memory));
	REFUSED(MW_ERR_HANDLE, mw_memory_release(c.result.memory));
}

static void check_paths(mw_buffer_t buffer)
{
	char paths[4096] = "";
	uint64_t len = 0;
	STATUS(MW_OK, mw_buffer_paths(buffer, paths, sizeof paths, &len));
	CHECK(strstr(paths, "\"carrier\":\"tcp\"") != NULL);
	CHECK(strstr(paths, "messages in pinned host memory: tcp registers no device memory") != NULL);
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	rank = atoi(argv[1]), folder = argv[2];
	driver = dlopen(argv[3], RTLD_NOW | RTLD_GLOBAL);
	CHECK(driver != NULL);
	mw_buffer_t buffer = connected("first", argv[3]);
	uint64_t context = 0;
	driver_does("cuInit", 0, 0, 0);
	driver_does("cuDevicePrimaryCtxRetain", ADDRESS(&context), 0, 0);
	driver_does("cuCtxPushCurrent_v2", context, 0, 0);
	uint64_t first = stream(), second = stream();
	for (int i = 0; i < 2; i++) {
		exchange(buffer);
		in_phases(buffer, first);
		on_two_streams(buffer, first, second);
		release_uncombined(buffer, first, second);
		synchronize();
	}
	check_paths(buffer);
	close_and_look(buffer);
	driver_does("cuStreamDestroy_v2", first, 0, 0);
	driver_does("cuStreamDestroy_v2", second, 0, 0);
	puts("cuda_hosts: ok");
	return 0;
}
