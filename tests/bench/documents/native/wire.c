// Bytes between two hosts: plain sockets, and Moewire's transfers through the C ABI. The caller gives its functions by
// address.

#define _GNU_SOURCE

#include "clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

// Messages over connected, blocking sockets, each of which takes every
// num_fds-th of them. A message has a place, one of `slots`, unless `hot`: then
// all are sent from, and received into, the first piece of memory.
struct stream {
	const int32_t *fds;
	int64_t num_fds;
	uint8_t *memory;
	int64_t message_bytes;
	int64_t slots;
	int64_t count;       // messages, a multiple of num_fds
	int64_t piece_bytes; // of one system call
	int64_t hot;
	int64_t each; // every message is answered, not only the last one
};

struct lane {
	const struct stream *stream;
	int64_t number;
	int32_t status;
	int (*run)(const struct stream *s, int64_t number);
	pthread_t thread;
};

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int send_all(int fd, const uint8_t *from, int64_t left)
{
	while (left > 0) {
		ssize_t done = send(fd, from, (size_t)left, MSG_NOSIGNAL);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return errno ? errno : EPIPE;
		from += done;
		left -= done;
	}
	return 0;
}

static int recv_all(int fd, uint8_t *to, int64_t left)
{
	while (left > 0) {
		ssize_t done = recv(fd, to, (size_t)left, 0);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return done < 0 ? errno : EPIPE;
		to += done;
		left -= done;
	}
	return 0;
}

// One message in pieces, by one of the two above.
static int message(const struct stream *s, int fd, int64_t number,
		   int (*move)(int fd, uint8_t *at, int64_t left))
{
	uint8_t *place = s->memory + (number % s->slots) * s->message_bytes;

	for (int64_t done = 0; done < s->message_bytes; done += s->piece_bytes) {
		int64_t piece = least(s->piece_bytes, s->message_bytes - done);
		int status = move(fd, s->hot ? s->memory : place + done, piece);

		if (status)
			return status;
	}
	return 0;
}

static int send_piece(int fd, uint8_t *at, int64_t left)
{
	return send_all(fd, at, left);
}

static int send_lane(const struct stream *s, int64_t number)
{
	int fd = s->fds[number], status = 0;
	uint8_t answer;

	for (int64_t i = number; i < s->count && !status; i += s->num_fds) {
		status = message(s, fd, i, send_piece);
		if (!status && (s->each || i + s->num_fds >= s->count))
			status = recv_all(fd, &answer, 1);
	}
	return status;
}

static int recv_lane(const struct stream *s, int64_t number)
{
	int fd = s->fds[number], status = 0;
	const uint8_t answer = 1;

	for (int64_t i = number; i < s->count && !status; i += s->num_fds) {
		status = message(s, fd, i, recv_all);
		if (!status && (s->each || i + s->num_fds >= s->count))
			status = send_all(fd, &answer, 1);
	}
	return status;
}

static void *lane_main(void *argument)
{
	struct lane *lane = argument;

	lane->status = lane->run(lane->stream, lane->number);
	return NULL;
}

#define MAX_LANES 16

// Every lane but the first has a thread, which is part of the time: some tens
// of microseconds. 0 or an error number.
static int run_lanes(const struct stream *s, int (*run)(const struct stream *s, int64_t number))
{
	struct lane lanes[MAX_LANES];
	int64_t started = 1;
	int status = 0;

	if (s->num_fds < 1 || s->num_fds > MAX_LANES)
		return EINVAL;
	for (int64_t i = 0; i < s->num_fds; i++)
		lanes[i] = (struct lane){s, i, 0, run, 0};
	for (; started < s->num_fds && !status; started++)
		status = pthread_create(&lanes[started].thread, NULL, lane_main, &lanes[started]);
	started -= status != 0;
	if (!status)
		lane_main(&lanes[0]);
	for (int64_t i = 0; i < started; i++) {
		if (i > 0)
			pthread_join(lanes[i].thread, NULL);
		status = status ? status : lanes[i].status;
	}
	return status;
}

// Nanoseconds until the last answer; minus an error number.
int64_t wire_send(const struct stream *s)
{
	int64_t begin = now_ns();
	int status = run_lanes(s, send_lane);

	return status ? -status : now_ns() - begin;
}

// 0, or an error number.
int32_t wire_recv(const struct stream *s)
{
	return run_lanes(s, recv_lane);
}

// ------------------------------------------------------------------ transfers

typedef struct {
	uint64_t id;
} id_type;

// mw_transfer_args_t and mw_transfer_result_t, as far as they are used here.
struct post_args {
	uint32_t size, kind;
	uint64_t peer, region, offset, num_bytes;
	uint64_t remote_address, remote_num_bytes, remote_key, remote_offset;
	uint32_t imm, reserved;
};

struct post_result {
	uint32_t size;
	int32_t status;
	uint64_t num_bytes;
	uint32_t imm, released;
};

struct transfers {
	int32_t (*post)(id_type fabric, const struct post_args *args, id_type *transfer);
	int32_t (*wait)(id_type transfer, uint32_t until, int64_t timeout_us,
			struct post_result *result);
	int32_t (*close)(id_type transfer);
	uint64_t fabric;
	struct post_args *args;
	int64_t slots; // places of args->num_bytes each
	int64_t count;
	int64_t depth; // begun and not ended, at most
	uint32_t until;
	int32_t would_block; // what post answers where there is no room
	int64_t timeout_us;
	int32_t status; // written: 0, or what failed; 1 (MW_IN_PROGRESS): not in time
};

#define MAX_DEPTH 64

static int32_t finish(const struct transfers *t, id_type transfer)
{
	struct post_result result = {.size = sizeof(result)};
	int32_t status = t->wait(transfer, t->until, t->timeout_us, &result);

	t->close(transfer);
	return status ? status : result.status;
}

// Writes `count` messages; nanoseconds until the last one has ended.
int64_t wire_transfers(struct transfers *t)
{
	id_type open[MAX_DEPTH];
	int64_t begin = now_ns(), posted = 0, ended = 0;
	int32_t status = t->depth >= 1 && t->depth <= MAX_DEPTH ? 0 : -1;

	while (ended < t->count && !status) {
		if (posted < t->count && posted - ended < t->depth) {
			t->args->offset = t->args->remote_offset =
				(uint64_t)(posted % t->slots) * t->args->num_bytes;
			status = t->post((id_type){t->fabric}, t->args, &open[posted % t->depth]);
			posted += status == 0;
			if (status != t->would_block || posted == ended)
				continue;
		}
		status = finish(t, open[ended++ % t->depth]);
	}
	while (ended < posted)
		finish(t, open[ended++ % t->depth]);
	t->status = status;
	return now_ns() - begin;
}

// ------------------------------------------------------------------- exchange

// Both ways at once over each socket: what an exchange of rows is without any
// protocol.
struct exchange {
	const int32_t *fds;
	int64_t num_fds;
	const int64_t *send_bytes;
	const int64_t *recv_bytes;
	uint8_t *from; // what goes to one socket lies behind what goes to those before it
	uint8_t *to;
};

static int step(int fd, uint8_t *at, int64_t *done, int64_t total, int sends)
{
	ssize_t moved;

	if (*done == total)
		return 0;
	moved = sends ? send(fd, at + *done, (size_t)(total - *done), MSG_DONTWAIT | MSG_NOSIGNAL)
		      : recv(fd, at + *done, (size_t)(total - *done), MSG_DONTWAIT);
	if (moved > 0)
		*done += moved;
	else if (moved == 0)
		return EPIPE;
	else if (errno != EAGAIN && errno != EINTR)
		return errno;
	return 0;
}

int32_t wire_exchange(const struct exchange *e, int32_t timeout_ms)
{
	struct pollfd ready[MAX_LANES];
	int64_t sent[MAX_LANES] = {0}, received[MAX_LANES] = {0}, open;
	int status = 0;

	if (e->num_fds < 1 || e->num_fds > MAX_LANES)
		return EINVAL;
	for (;;) {
		uint8_t *from = e->from, *to = e->to;

		open = 0;
		for (int64_t i = 0; i < e->num_fds; i++) {
			status = step(e->fds[i], from, &sent[i], e->send_bytes[i], 1);
			if (!status)
				status = step(e->fds[i], to, &received[i], e->recv_bytes[i], 0);
			if (status)
				return status;
			ready[i] = (struct pollfd){.fd = e->fds[i]};
			if (received[i] < e->recv_bytes[i])
				ready[i].events |= POLLIN;
			if (sent[i] < e->send_bytes[i])
				ready[i].events |= POLLOUT;
			if (!ready[i].events)
				ready[i].fd = -1;
			open += ready[i].events != 0;
			from += e->send_bytes[i];
			to += e->recv_bytes[i];
		}
		if (!open)
			return 0;
		if (poll(ready, (nfds_t)e->num_fds, timeout_ms) == 0)
			return ETIMEDOUT;
	}
}
