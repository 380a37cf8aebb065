// Dispatch and combine over MPI_Alltoallv, as one would write them: exchange
// the counts, pack the rows by expert, exchange, unpack; back the same way.
// Orders come through a Unix socket: see peers/remote.py.

#define _GNU_SOURCE

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "rows.h"

struct work {
	int64_t rank, ranks, tokens, hidden, experts, topk, fp8, reserved;
	int64_t *topk_idx;
	float *weights;
	uint16_t *x;
	// Derived.
	int64_t selections, local, capacity, row_bytes;
	int *sent, *received, *sent_at, *received_at; // rows per rank
	int64_t *sent_for, *received_for;	      // rows per expert
	int64_t *slot;				      // where a selection's row was packed
	int64_t *target;			      // where an arrived row goes
	uint8_t *packed, *arrived, *recv;	      // rows of row_bytes
	uint8_t *forth;				      // outputs as they are sent
	uint16_t *outputs, *back, *out;		      // rows of bf16
	MPI_Datatype row, output_row;
	int64_t lead, pairs;
	double spin; // seconds
};

static void fail(const char *what)
{
	perror(what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *take(int64_t bytes)
{
	void *memory = calloc(1, bytes > 0 ? (size_t)bytes : 1);

	if (!memory)
		fail("out of memory");
	return memory;
}

static void *load(FILE *file, int64_t bytes)
{
	void *memory = take(bytes);

	if (fread(memory, 1, (size_t)bytes, file) != (size_t)bytes)
		fail("workload too short");
	return memory;
}

static void read_work(struct work *w, const char *path)
{
	FILE *file = fopen(path, "rb");

	if (!file || fread(w, 8, 8, file) != 8)
		fail(path);
	w->selections = w->tokens * w->topk;
	w->topk_idx = load(file, 8 * w->selections);
	w->weights = load(file, 4 * w->selections);
	w->x = load(file, 2 * w->tokens * w->hidden);
	fclose(file);
}

static void prepare(struct work *w)
{
	w->local = w->experts / w->ranks;
	w->capacity = w->ranks * w->tokens;
	w->row_bytes = w->fp8 ? w->hidden + 4 * (w->hidden / BLOCK) : 2 * w->hidden;
	w->sent = take(w->ranks * sizeof(int));
	w->received = take(w->ranks * sizeof(int));
	w->sent_at = take(w->ranks * sizeof(int));
	w->received_at = take(w->ranks * sizeof(int));
	w->sent_for = take(8 * w->experts);
	w->received_for = take(8 * w->experts);
	w->slot = take(8 * w->selections);
	w->target = take(8 * w->local * w->capacity);
	w->packed = take(w->selections * w->row_bytes);
	w->arrived = take(w->local * w->capacity * w->row_bytes);
	w->recv = take(w->local * w->capacity * w->row_bytes);
	w->outputs = take(w->local * w->capacity * 2 * w->hidden);
	w->forth = take(w->local * w->capacity * 2 * w->hidden);
	w->back = take(w->selections * 2 * w->hidden);
	w->out = take(w->tokens * 2 * w->hidden);
	MPI_Type_contiguous((int)w->row_bytes, MPI_BYTE, &w->row);
	MPI_Type_contiguous((int)(2 * w->hidden), MPI_BYTE, &w->output_row);
	MPI_Type_commit(&w->row);
	MPI_Type_commit(&w->output_row);
}

// Rows are packed by expert, and within one in order of token.
static void count_rows(struct work *w)
{
	int64_t *next = take(8 * (w->experts + 1));

	memset(w->sent_for, 0, (size_t)(8 * w->experts));
	for (int64_t i = 0; i < w->selections; i++)
		w->sent_for[w->topk_idx[i]]++;
	for (int64_t e = 0; e < w->experts; e++)
		next[e + 1] = next[e] + w->sent_for[e];
	for (int64_t i = 0; i < w->selections; i++)
		w->slot[i] = next[w->topk_idx[i]]++;
	free(next);
}

static void per_rank(const struct work *w, const int64_t *per_expert, int *count, int *at)
{
	for (int64_t r = 0; r < w->ranks; r++) {
		int64_t rows = 0;

		for (int64_t l = 0; l < w->local; l++)
			rows += per_expert[r * w->local + l];
		count[r] = (int)rows;
		at[r] = r ? at[r - 1] + count[r - 1] : 0;
	}
}

static void pack_rows(struct work *w)
{
	for (int64_t i = 0; i < w->selections; i++) {
		uint8_t *to = w->packed + w->slot[i] * w->row_bytes;
		const uint16_t *from = w->x + i / w->topk * w->hidden;

		if (!w->fp8)
			memcpy(to, from, (size_t)w->row_bytes);
		else if (i % w->topk == 0)
			quantise_row(to, (float *)(to + w->hidden), from, w->hidden);
		else // cast once per token
			memcpy(to, w->packed + w->slot[i - i % w->topk] * w->row_bytes,
			       (size_t)w->row_bytes);
	}
}

// Rows arrive by source and expert; each expert's rows are wanted together.
static void find_targets(struct work *w)
{
	int64_t *next = take(8 * w->local), at = 0;

	for (int64_t r = 0; r < w->ranks; r++)
		for (int64_t l = 0; l < w->local; l++)
			for (int64_t i = 0; i < w->received_for[r * w->local + l]; i++)
				w->target[at++] = l * w->capacity + next[l]++;
	free(next);
}

static int64_t num_arrived(const struct work *w)
{
	return w->received_at[w->ranks - 1] + w->received[w->ranks - 1];
}

static void dispatch(struct work *w)
{
	int64_t rows;

	count_rows(w);
	MPI_Alltoall(w->sent_for, (int)w->local, MPI_INT64_T, w->received_for, (int)w->local,
		     MPI_INT64_T, MPI_COMM_WORLD);
	per_rank(w, w->sent_for, w->sent, w->sent_at);
	per_rank(w, w->received_for, w->received, w->received_at);
	pack_rows(w);
	MPI_Alltoallv(w->packed, w->sent, w->sent_at, w->row, w->arrived, w->received,
		      w->received_at, w->row, MPI_COMM_WORLD);
	find_targets(w);
	rows = num_arrived(w);
	for (int64_t i = 0; i < rows; i++)
		memcpy(w->recv + w->target[i] * w->row_bytes, w->arrived + i * w->row_bytes,
		       (size_t)w->row_bytes);
}

// The identity expert.
static void compute(struct work *w)
{
	int64_t rows = num_arrived(w);

	for (int64_t i = 0; i < rows; i++) {
		const uint8_t *from = w->recv + w->target[i] * w->row_bytes;
		uint16_t *to = w->outputs + w->target[i] * w->hidden;

		if (w->fp8)
			dequantise_row(to, from, from + w->hidden, w->hidden);
		else
			memcpy(to, from, (size_t)w->row_bytes);
	}
}

static void combine(struct work *w)
{
	int64_t rows = num_arrived(w), bytes = 2 * w->hidden;
	const uint16_t **wanted = take(8 * w->topk);

	for (int64_t i = 0; i < rows; i++)
		memcpy(w->forth + i * bytes, w->outputs + w->target[i] * w->hidden, (size_t)bytes);
	MPI_Alltoallv(w->forth, w->received, w->received_at, w->output_row, w->back, w->sent,
		      w->sent_at, w->output_row, MPI_COMM_WORLD);
	for (int64_t t = 0; t < w->tokens; t++) {
		for (int64_t k = 0; k < w->topk; k++)
			wanted[k] = w->back + w->slot[t * w->topk + k] * w->hidden;
		reduce_row(w->out + t * w->hidden, wanted, w->weights + t * w->topk, w->topk,
			   w->hidden);
	}
	free(wanted);
}

static void write_out(struct work *w, const char *path)
{
	FILE *file = fopen(path, "wb");
	size_t values = (size_t)(w->tokens * w->hidden);

	if (!file || fwrite(w->out, 2, values, file) != values || fclose(file))
		fail(path);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// As Moewire's ranks do: asleep, and for the last moments spinning.
static void wait_until(double begin, double spin)
{
	double until = begin - spin;
	struct timespec t = {(time_t)until, (long)((until - (double)(time_t)until) * 1e9)};

	if (until > now())
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
	while (now() < begin)
		;
}

struct order {
	char word[8];
	double begin;
};

// Without rest; the time from `lead` on counts.
static double pairs(struct work *w)
{
	double begin = now();

	for (int64_t i = -w->lead; i < w->pairs; i++) {
		if (i == 0)
			begin = now();
		dispatch(w);
		combine(w);
	}
	return begin;
}

static void obey(struct work *w, const struct order *order, double answer[2], const char *out)
{
	wait_until(order->begin, w->spin);
	answer[0] = now();
	if (!strncmp(order->word, "dispatch", 8))
		dispatch(w);
	else if (!strncmp(order->word, "compute", 8))
		compute(w);
	else if (!strncmp(order->word, "combine", 8))
		combine(w);
	else if (!strncmp(order->word, "pairs", 8))
		answer[0] = pairs(w);
	else
		write_out(w, out);
	answer[1] = now();
}

static int connect_to(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int link = socket(AF_UNIX, SOCK_STREAM, 0);

	if (strlen(path) >= sizeof(address.sun_path))
		fail("the temporary folder's name is too long for a socket");
	memcpy(address.sun_path, path, strlen(path));
	if (link < 0 || connect(link, (struct sockaddr *)&address, sizeof(address)))
		fail(path);
	return link;
}

int main(int argc, char **argv)
{
	struct work w = {0};
	struct order order;
	double answer[2];
	char path[200];
	int rank, link;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (argc != 5)
		fail("arguments: the prefix of the files, seconds to spin, pairs before and in a round");
	snprintf(path, sizeof(path), "%s-%d.work", argv[1], rank);
	read_work(&w, path);
	prepare(&w);
	w.spin = atof(argv[2]);
	w.lead = atoll(argv[3]);
	w.pairs = atoll(argv[4]);
	snprintf(path, sizeof(path), "%s-%d.sock", argv[1], rank);
	link = connect_to(path);
	snprintf(path, sizeof(path), "%s-%d.out", argv[1], rank);
	while (recv(link, &order, sizeof(order), MSG_WAITALL) == sizeof(order) &&
	       strncmp(order.word, "quit", 8)) {
		obey(&w, &order, answer, path);
		if (send(link, answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer))
			break;
	}
	MPI_Finalize();
	return 0;
}
