/*
 * Two processes over TCP on the loopback device: they exchange handshakes and a few
 * numbers through their own sockets, and bytes through fabrics.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabric.h"

enum { BYTES = 1000000, SLICE = 70000, HANDSHAKES = 3, TALK = 4, PEER = 77 };

static int side;
static unsigned char memory[BYTES], expected[BYTES];

/* The two sides' bytes before anything has happened. */
static void pattern(unsigned char *p, uint64_t state)
{
	for (int i = 0; i < BYTES; i++)
		p[i] = (unsigned char)(next_random(&state) >> 24);
}

static int is_closed(mw_status_t status)
{
	return status == MW_ERR_CLOSED || status == MW_ERR_HANDLE;
}

/*
 * Carries handshakes both ways until the fabric is closed: a connection that both sides
 * still take for live may be ending, and then has to be made again.
 */
static void *courier(void *arg)
{
	mw_fabric_t f = *(mw_fabric_t *)arg;
	unsigned char handshake[MW_MAX_HANDSHAKE_BYTES];
	for (;;) {
		uint64_t peer = 0, len = 0;
		mw_status_t status = mw_fabric_next_handshake(f, 1000, &peer, handshake, sizeof handshake, &len);
		if (is_closed(status))
			return NULL;
		CHECK(status == MW_OK || status == MW_IN_PROGRESS);
		if (status == MW_OK) {
			CHECK(peer == PEER && len <= sizeof handshake);
			(void)!send(HANDSHAKES, handshake, len, MSG_NOSIGNAL | MSG_DONTWAIT);
		}
		ssize_t n = recv(HANDSHAKES, handshake, sizeof handshake, MSG_DONTWAIT);
		if (n > 0) { /* the first ones may be of the fabric before, of another mode */
			status = mw_fabric_deliver(f, PEER, handshake, (uint64_t)n);
			CHECK(status == MW_OK || status == MW_ERR_PEER_MISMATCH || is_closed(status));
		}
	}
}

static void tell(const void *p, size_t n)
{
	CHECK(send(TALK, p, n, MSG_NOSIGNAL) == (ssize_t)n);
}

static void receive_bytes(void *p, size_t n)
{
	CHECK(recv(TALK, p, n, 0) == (ssize_t)n);
}

/* Both sides come here before either goes on. */
static void meet(void)
{
	char c = 0;
	tell(&c, 1);
	receive_bytes(&c, 1);
}

static void immediates(mw_fabric_t f, mw_region_t mine, const mw_remote_t *theirs)
{
	mw_transfer_args_t wait = transfer_args(MW_TRANSFER_RECEIVE_IMM, PEER, (mw_region_t){0}, 0, 0, NULL);
	mw_transfer_args_t a = transfer_args(MW_TRANSFER_WRITE_IMM, PEER, mine, 0, BYTES, theirs);
	pattern(expected, 5);
	if (side == 0) { /* the number comes after the bytes, whatever slices there are */
		a.imm = 0xdeadbeef;
		CHECK(finish(begin(f, &a), MW_OK).num_bytes == BYTES);
	} else {
		CHECK(finish(begin(f, &wait), MW_OK).imm == 0xdeadbeef);
		CHECK(memcmp(memory, expected, BYTES) == 0);
		memset(memory, 0, 1000);
		memcpy(memory + 500, "read me", 7);
	}
	meet();
	if (side == 0) {
		a = transfer_args(MW_TRANSFER_READ, PEER, mine, 300, 7, theirs);
		a.remote_offset = 500;
		CHECK(finish(begin(f, &a), MW_OK).num_bytes == 7);
		CHECK(memcmp(memory + 300, "read me", 7) == 0);
		CHECK(memcmp(memory, expected, 300) == 0 && memcmp(memory + 307, expected + 307, 600) == 0);
	}
	/* A cancelled transfer is ended and released at once; its id is invalid afterwards. */
	mw_transfer_t t = begin(f, &wait);
	mw_transfer_result_t r = {.size = sizeof r};
	STATUS(MW_IN_PROGRESS, mw_transfer_wait(t, MW_UNTIL_ENDED, 0, &r));
	CHECK(r.status == MW_IN_PROGRESS && r.released == 0);
	STATUS(MW_OK, mw_transfer_cancel(t));
	STATUS(MW_OK, mw_transfer_cancel(t));
	(void)finish(t, MW_ERR_CANCELLED);
	REFUSED(MW_ERR_HANDLE, mw_transfer_wait(t, MW_UNTIL_ENDED, 0, &r));
	REFUSED(MW_ERR_HANDLE, mw_transfer_cancel(t));
	meet();
}

static void messages(mw_fabric_t f, mw_region_t mine)
{
	mw_transfer_t t[3];
	mw_transfer_args_t a;
	pattern(expected, 5);
	if (side == 1) {
		for (int i = 0; i < 3; i++) {
			a = transfer_args(MW_TRANSFER_RECV, PEER, mine, (uint64_t)i * 1000, 1000, NULL);
			t[i] = begin(f, &a);
		}
	}
	meet();
	if (side == 0) {
		for (int i = 0; i < 2; i++) {
			a = transfer_args(MW_TRANSFER_SEND, PEER, mine, 0, 900 + (uint64_t)i, NULL);
			CHECK(finish(begin(f, &a), MW_OK).num_bytes == 900 + (uint64_t)i);
		}
		meet();
	} else {
		for (int i = 0; i < 2; i++) { /* a message carries its own number */
			mw_transfer_result_t r = finish(t[i], MW_OK);
			CHECK((r.imm == 1 || r.imm == 2) && r.num_bytes == 899 + r.imm);
			CHECK(memcmp(memory + i * 1000, expected, r.num_bytes) == 0);
		}
		meet(); /* the other side knows that both are there before the connection ends */
		/* The transfer is cancelled, and its memory is the carrier's until its connection ends. */
		mw_transfer_result_t r = {.size = sizeof r};
		STATUS(MW_OK, mw_transfer_cancel(t[2]));
		STATUS(MW_OK, mw_transfer_wait(t[2], MW_UNTIL_ENDED, SOON, &r));
		CHECK(r.status == MW_ERR_CANCELLED && r.released == 0);
		STATUS(MW_IN_PROGRESS, mw_transfer_wait(t[2], MW_UNTIL_RELEASED, 1000, &r));
		REFUSED(MW_ERR_BUSY, mw_region_close(mine));
		STATUS(MW_OK, mw_fabric_disconnect(f, PEER));
		(void)finish(t[2], MW_ERR_CANCELLED);
	}
	meet();
}

/* A transfer into a closed region is refused. The connection ends, and is made again. */
static void refusals(mw_fabric_t f, mw_region_t mine)
{
	static unsigned char other[64];
	mw_region_t closed = register_memory(f, other, sizeof other);
	mw_remote_t remote = {.size = sizeof remote}, theirs;
	STATUS(MW_OK, mw_region_remote(closed, &remote));
	STATUS(MW_OK, mw_region_close(closed));
	REFUSED(MW_ERR_HANDLE, mw_region_close(closed));
	REFUSED(MW_ERR_HANDLE, mw_region_remote(closed, &remote));
	tell(&remote, sizeof remote);
	receive_bytes(&theirs, sizeof theirs);
	if (side == 0) {
		mw_transfer_args_t a = transfer_args(MW_TRANSFER_WRITE, PEER, mine, 0, 64, &theirs);
		mw_transfer_t t = begin(f, &a);
		mw_transfer_result_t r = {.size = sizeof r};
		STATUS(MW_OK, mw_transfer_wait(t, MW_UNTIL_RELEASED, SOON, &r));
		/* The connection may break before the reason has come. */
		CHECK(r.status == MW_ERR_REFUSED || r.status == MW_ERR_UNREACHABLE);
		(void)finish(t, r.status);
	}
	meet();
	for (int i = 0; i < 64; i++)
		CHECK(other[i] == 0);
}

struct waiter {
	mw_transfer_t transfer;
	mw_transfer_result_t result;
	mw_status_t status;
};

static void *wait_for_end(void *arg)
{
	struct waiter *w = arg;
	w->result.size = sizeof w->result;
	w->status = mw_transfer_wait(w->transfer, MW_UNTIL_RELEASED, -1, &w->result);
	return NULL;
}

/* Closing ends a wait in another thread. */
static void close_all(mw_fabric_t f, mw_region_t mine, uint32_t flags)
{
	mw_transfer_args_t a = transfer_args(MW_TRANSFER_RECEIVE_IMM, PEER, (mw_region_t){0}, 0, 0, NULL);
	if (flags & MW_FABRIC_MESSAGES)
		a = transfer_args(MW_TRANSFER_RECV, PEER, mine, 0, 10, NULL);
	struct waiter w = {0};
	pthread_t thread;
	STATUS(MW_IN_PROGRESS, mw_transfer_wait(w.transfer = begin(f, &a), MW_UNTIL_ENDED, 0,
	                                        &(mw_transfer_result_t){.size = sizeof w.result}));
	CHECK(pthread_create(&thread, NULL, wait_for_end, &w) == 0);
	usleep(1000);
	meet();
	STATUS(MW_OK, mw_fabric_close(f, SOON));
	CHECK(pthread_join(thread, NULL) == 0);
	/* The other side may have been faster, or this side's wait may come too late. */
	CHECK(w.status == MW_OK || w.status == MW_ERR_HANDLE);
	if (w.status == MW_OK)
		CHECK(w.result.status == MW_ERR_CLOSED || w.result.status == MW_ERR_UNREACHABLE);
	REFUSED(MW_ERR_HANDLE, mw_fabric_close(f, SOON));
	REFUSED(MW_ERR_HANDLE, mw_region_close(mine));
	mw_transfer_t none = {UNTOUCHED};
	REFUSED(MW_ERR_HANDLE, mw_transfer_post(f, &a, &none));
	CHECK(none.id == UNTOUCHED);
}

static void play(uint32_t flags)
{
	mw_fabric_config_t config = fabric_config(flags);
	config.slice_bytes = SLICE;
	if (side == 1) { /* the same keys from another source */
		config.key_source = MW_KEYS_ENV;
		config.keys = TEXT("FABRIC_TEST_KEYS");
		CHECK(setenv("FABRIC_TEST_KEYS", strchr(test_keys, '\n') + 1, 1) == 0);
	}
	mw_fabric_t f = open_fabric(&config);
	pthread_t carries;
	CHECK(pthread_create(&carries, NULL, courier, &f) == 0);
	STATUS(MW_OK, mw_fabric_connect(f, PEER, SOON));
	pattern(memory, side == 0 ? 5 : 6);
	mw_region_t mine = register_memory(f, memory, sizeof memory);
	mw_remote_t remote = {.size = sizeof remote}, theirs;
	STATUS(MW_OK, mw_region_remote(mine, &remote));
	CHECK(remote.num_bytes == BYTES);
	tell(&remote, sizeof remote);
	receive_bytes(&theirs, sizeof theirs);
	if (flags & MW_FABRIC_MESSAGES)
		messages(f, mine);
	else
		immediates(f, mine, &theirs);
	refusals(f, mine);
	mw_status_t status;
	while ((status = mw_fabric_connect(f, PEER, SOON)) == MW_ERR_UNREACHABLE)
		usleep(1000); /* for a moment the error is that of the last connection */
	STATUS(MW_OK, status);
	meet();
	close_all(f, mine, flags);
	CHECK(pthread_join(carries, NULL) == 0);
	meet();
}

/* Fresh processes, not forked ones: the library is there already. */
static pid_t spawn(const char *program, int handshakes, int talk)
{
	pid_t pid = fork();
	if (pid == 0) {
		if (dup2(handshakes, HANDSHAKES + 10) < 0 || dup2(talk, TALK + 10) < 0 || dup2(HANDSHAKES + 10, HANDSHAKES) < 0 ||
		    dup2(TALK + 10, TALK) < 0)
			_exit(9);
		execl("/proc/self/exe", program, handshakes % 2 ? "1" : "0", (char *)NULL);
		_exit(9);
	}
	CHECK(pid > 0);
	return pid;
}

int main(int argc, char **argv)
{
	static const uint32_t flags[] = {0, MW_FABRIC_MESSAGES, MW_FABRIC_ENCRYPT};
	if (argc == 2) {
		alarm(100);
		side = atoi(argv[1]);
		for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
			play(flags[i]);
		return 0;
	}
	int handshakes[2], talk[2], status[2];
	/* The first process of a pair has an even number, and its side is even, too. */
	CHECK(dup2(1, 20) == 20 && dup2(1, 21) == 21 && dup2(1, 22) == 22 && dup2(1, 23) == 23);
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, handshakes) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, talk) == 0);
	CHECK(dup2(handshakes[0], 20) == 20 && dup2(handshakes[1], 21) == 21);
	CHECK(dup2(talk[0], 22) == 22 && dup2(talk[1], 23) == 23);
	for (int i = 0; i < 2; i++)
		CHECK(close(handshakes[i]) == 0 && close(talk[i]) == 0);
	pid_t pids[2] = {spawn(argv[0], 20, 22), spawn(argv[0], 21, 23)};
	for (int i = 0; i < 2; i++)
		CHECK(waitpid(pids[i], &status[i], 0) == pids[i]);
	if (status[0] != 0 || status[1] != 0) {
		fprintf(stderr, "side 0 ended with %#x, side 1 with %#x\n", status[0], status[1]);
		return 1;
	}
	printf("fabric: ok\n");
	return 0;
}
