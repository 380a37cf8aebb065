/*
 * One of two ranks on CUDA that take one another for ranks of other hosts. Each
 * is a process: cuda_hosts RANK FOLDER DRIVER. Metadata goes by files of FOLDER.
 * The device is the emulated one, whose memory is the process's own.
 */
#include "check.h"

#include <dlfcn.h>
#include <time.h>

enum { R = 2, H = 128, M = 4, T = 3, K = 2, E = 4, L = E / R };

static int rank;
static const char *folder;
static void *driver;

/* A function of the driver's, without arguments or with one word. */
typedef int (*driver_call)(uint64_t);

static void driver_does(const char *name, uint64_t word)
{
	driver_call call;
	void *found = dlsym(driver, name);
	CHECK(found != NULL);
	memcpy(&call, &found, sizeof call);
	CHECK(call(word) == 0);
}

static void synchronize(void) { driver_does("cuCtxSynchronize", 0); }

/* ---------------------------------------------------------------- meeting -- */

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

/* Waits for what the other rank puts, for two minutes. */
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
	c.silent_after_us = 600000000;
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
	uint16_t x[T * H], out[T * H];
	int64_t topk[T * K];
	float weights[T * K];
	int32_t active[R], count[L];
	int64_t layout[L * R];
	mw_dispatch_result_t result;
};

/* A power of two, so that sums of a few of them are exact in bf16. */
static uint16_t value(int source, int token) { return (uint16_t)(0x3f80 + (0x80 * (2 * source + token % 2))); }

static void fill(struct call *c)
{
	memset(c, 0, sizeof *c);
	for (int t = 0; t < T; t++) {
		for (int h = 0; h < H; h++)
			c->x[t * H + h] = value(rank, t);
		c->topk[t * K] = (t + rank) % E; /* one expert of each rank */
		c->topk[t * K + 1] = (t + rank + L) % E;
		c->weights[t * K] = 1, c->weights[t * K + 1] = 0.5f;
	}
	for (int r = 0; r < R; r++)
		c->active[r] = 1;
	c->result.size = sizeof c->result;
}

static mw_dispatch_args_t dispatch_args(struct call *c)
{
	return (mw_dispatch_args_t){
		.size = sizeof(mw_dispatch_args_t), .x = ADDRESS(c->x), .topk_idx = ADDRESS(c->topk),
		.active_ranks = ADDRESS(c->active), .num_active_ranks = R, .num_tokens = T, .hidden = H,
		.num_topk = K, .num_max_tokens_per_rank = M, .num_experts = E, .timeout_us = -1, .slice_us = -1,
		.recv_count = ADDRESS(c->count), .layout_range = ADDRESS(c->layout), .result = &c->result};
}

/* Every row that came is a source's, and as the source has it. */
static void check_rows(struct call *c)
{
	const uint16_t *rows = (const uint16_t *)(uintptr_t)c->result.recv_x;
	const int32_t *tokens = (const int32_t *)(uintptr_t)c->result.src_info;
	for (int e = 0; e < L; e++) {
		int covered = 0;
		for (int source = 0; source < R; source++) {
			int begin = (int)(c->layout[e * R + source] >> 32), n = (int)(c->layout[e * R + source] & 0xffffffff);
			covered += n;
			for (int row = begin; row < begin + n; row++)
				for (int h = 0; h < H; h++) {
					size_t at = (size_t)e * R * M + (size_t)row;
					CHECK(rows[at * H + (size_t)h] == value(source, tokens[at]));
				}
		}
		CHECK(covered == c->count[e]);
	}
}

/* The experts send back what they got: 1.5 times each token. */
static void exchange(mw_buffer_t buffer)
{
	struct call c;
	mw_op_t op = {0};
	fill(&c);
	mw_dispatch_args_t args = dispatch_args(&c);
	STATUS(MW_OK, mw_buffer_dispatch(buffer, &args, &op));
	CHECK(op.id == 0);
	synchronize();
	check_rows(&c);
	mw_combine_args_t back = {
		.size = sizeof back, .handle = c.result.handle, .x = c.result.recv_x, .topk_idx = ADDRESS(c.topk),
		.topk_weights = ADDRESS(c.weights), .active_ranks = ADDRESS(c.active), .num_active_ranks = R,
		.out = ADDRESS(c.out), .num_tokens = T, .num_topk = K, .timeout_us = -1, .slice_us = -1};
	STATUS(MW_OK, mw_buffer_combine(buffer, &back, &op));
	CHECK(op.id == 0);
	synchronize();
	for (int t = 0; t < T; t++)
		for (int h = 0; h < H; h++)
			CHECK(c.out[t * H + h] == value(rank, t) + 0x40); /* half as much again */
	CHECK(c.active[0] == 1 && c.active[1] == 1);
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
	driver_does("cuInit", 0);
	int (*retain)(void *, int);
	void *found = dlsym(driver, "cuDevicePrimaryCtxRetain");
	memcpy(&retain, &found, sizeof retain);
	CHECK(retain(&context, 0) == 0);
	driver_does("cuCtxPushCurrent_v2", context);
	for (int i = 0; i < 3; i++)
		exchange(buffer);
	check_paths(buffer);
	meet("exchanged");
	STATUS(MW_OK, mw_buffer_close(buffer));
	puts("cuda_hosts: ok");
	return 0;
}
