/*
 * A Mixture-of-Experts layer over two processes, through the C ABI alone.
 *
 * The program starts a second copy of itself. The two exchange a few bytes
 * over a socket, as any launcher would, and are then connected. Each sends its
 * tokens to the experts that they chose, computes its own two experts for what
 * it received, and gets the weighted sums of its tokens back.
 */
#include <inttypes.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moewire.h"

enum { RANKS = 2, EXPERTS = 4, LOCAL = EXPERTS / RANKS, TOKENS = 6, TOPK = 2, HIDDEN = 64 };

#define ADDRESS(p) ((uint64_t)(uintptr_t)(p))

static int rank;

static void check(mw_status_t status, const char *what)
{
	if (status == MW_OK)
		return;
	fprintf(stderr, "rank %d: %s: status %d: %s\n", rank, what, status, mw_last_error());
	exit(1);
}

/* bf16 is the upper half of a float; the values here fit without rounding. */
static uint16_t to_bf16(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return (uint16_t)(bits >> 16);
}

static float from_bf16(uint16_t value)
{
	uint32_t bits = (uint32_t)value << 16;
	float result;
	memcpy(&result, &bits, sizeof result);
	return result;
}

/* Our side of the exchange: send the local metadata, receive the peer's. */
static mw_buffer_t connect_buffer(int socket)
{
	unsigned char metadata[RANKS][1024];
	mw_bytes_t all[RANKS];
	mw_config_t config = {.size = sizeof config, .rank = (uint32_t)rank, .num_ranks = RANKS};
	mw_buffer_t buffer;
	check(mw_buffer_create(&config, &buffer), "create");

	uint64_t len = 0;
	check(mw_buffer_metadata(buffer, metadata[rank], sizeof metadata[rank], &len), "metadata");
	ssize_t received = -1;
	if (send(socket, metadata[rank], len, 0) == (ssize_t)len)
		received = recv(socket, metadata[1 - rank], sizeof metadata[0], 0);
	if (received <= 0) {
		perror("exchanging metadata");
		exit(1);
	}
	all[rank] = (mw_bytes_t){ADDRESS(metadata[rank]), len};
	all[1 - rank] = (mw_bytes_t){ADDRESS(metadata[1 - rank]), (uint64_t)received};
	check(mw_buffer_connect(buffer, all, RANKS, 10000000), "connect");
	return buffer;
}

/* Expert e multiplies by e + 1. In place: outputs go where combine reads them. */
static int compute_experts(const mw_dispatch_result_t *result, const int32_t *recv_count)
{
	const uint16_t *x = (const uint16_t *)(uintptr_t)result->recv_x;
	uint16_t *y = (uint16_t *)(uintptr_t)result->combine_x;
	int rows = 0;
	for (int local = 0; local < LOCAL; local++) {
		size_t block = (size_t)local * RANKS * TOKENS * HIDDEN; /* [LOCAL, RANKS*TOKENS, HIDDEN] */
		for (size_t i = 0; i < (size_t)recv_count[local] * HIDDEN; i++)
			y[block + i] = to_bf16(from_bf16(x[block + i]) * (float)(rank * LOCAL + local + 1));
		rows += recv_count[local];
	}
	return rows;
}

static int run_layer(mw_buffer_t buffer)
{
	uint16_t x[TOKENS][HIDDEN], out[TOKENS][HIDDEN];
	int64_t experts[TOKENS][TOPK];
	float weights[TOKENS][TOPK];
	for (int t = 0; t < TOKENS; t++) {
		for (int h = 0; h < HIDDEN; h++)
			x[t][h] = to_bf16((float)(t + 1 + rank * TOKENS));
		experts[t][0] = (t + rank) % EXPERTS;
		experts[t][1] = (t + 2 * rank + 1) % EXPERTS;
		weights[t][0] = 0.75f;
		weights[t][1] = 0.25f;
	}

	int32_t recv_count[LOCAL];
	int64_t layout_range[LOCAL][RANKS];
	mw_dispatch_result_t result = {.size = sizeof result};
	mw_dispatch_args_t dispatch = {
		.size = sizeof dispatch, .x = ADDRESS(x), .topk_idx = ADDRESS(experts),
		.num_tokens = TOKENS, .hidden = HIDDEN, .num_topk = TOPK,
		.num_max_tokens_per_rank = TOKENS, .num_experts = EXPERTS,
		.timeout_us = 10000000, .slice_us = -1,
		.recv_count = ADDRESS(recv_count), .layout_range = ADDRESS(layout_range),
		.result = &result,
	};
	mw_op_t op; /* stays 0: both calls wait until everything is done */
	check(mw_buffer_dispatch(buffer, &dispatch, &op), "dispatch");
	int rows = compute_experts(&result, recv_count);

	mw_combine_args_t combine = {
		.size = sizeof combine, .flags = MW_COMBINE_ZERO_COPY, .handle = result.handle,
		.x = result.combine_x, .topk_idx = ADDRESS(experts), .topk_weights = ADDRESS(weights),
		.out = ADDRESS(out), .num_tokens = TOKENS, .num_topk = TOPK,
		.timeout_us = 10000000, .slice_us = -1,
	};
	check(mw_buffer_combine(buffer, &combine, &op), "combine");

	for (int t = 0; t < TOKENS; t++) {
		float factor = 0;
		for (int k = 0; k < TOPK; k++)
			factor += weights[t][k] * (float)(experts[t][k] + 1);
		for (int h = 0; h < HIDDEN; h++)
			if (from_bf16(out[t][h]) != from_bf16(x[t][h]) * factor)
				return fprintf(stderr, "rank %d: token %d is wrong\n", rank, t), 1;
	}
	printf("rank %d: %d tokens to %d experts each, %d rows for its own experts, all sums correct\n",
	       rank, TOKENS, TOPK, rows);
	return 0;
}

static int run_rank(int socket)
{
	mw_buffer_t buffer = connect_buffer(socket);
	int failed = run_layer(buffer);
	check(mw_buffer_close(buffer), "close");
	return failed;
}

int main(int argc, char **argv)
{
	if (argc == 3) { /* started by the lines below */
		rank = atoi(argv[1]);
		return run_rank(atoi(argv[2]));
	}
	int sockets[RANKS], status = 0;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0) {
		perror("socketpair");
		return 1;
	}
	char fd[16];
	snprintf(fd, sizeof fd, "%d", sockets[1]);
	char *arguments[] = {argv[0], "1", fd, NULL};
	extern char **environ;
	pid_t child;
	if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) != 0) {
		perror("posix_spawn");
		return 1;
	}
	close(sockets[1]);
	int failed = run_rank(sockets[0]);
	waitpid(child, &status, 0);
	if (!failed && status == 0)
		printf("moewire %s: ok\n", mw_version());
	return failed || status != 0;
}
