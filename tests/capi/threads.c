/*
 * Rules between threads and after fork: each thread has its own last error, a buffer is
 * closed once, a wait ends when another thread closes.
 */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { NUM_THREADS = 8, NUM_CALLS = 2000 };

/* Makes failing calls with a number that only this thread uses. */
static void *fail_in_own_words(void *arg)
{
	uint32_t mine = 100000u + (uint32_t)(uintptr_t)arg;
	char want[16];
	for (uint32_t i = 0; i < NUM_CALLS; i++) {
		uint32_t given = mine + i * 16;
		mw_config_t config = config_of(0, given);
		mw_buffer_t buffer = {UNTOUCHED};
		STATUS(MW_ERR_INVALID_ARGUMENT, mw_buffer_create(&config, &buffer));
		CHECK(buffer.id == UNTOUCHED);
		snprintf(want, sizeof want, "%u", given);
		if (!strstr(mw_last_error(), want))
			FAIL("want %s in the message", want);
		CHECK(mw_abi_version() == MW_ABI_VERSION); /* a success changes nothing */
		CHECK(strstr(mw_last_error(), want));
	}
	return NULL;
}

static void *check_no_error(void *arg)
{
	(void)arg;
	CHECK(mw_last_error()[0] == 0);
	return NULL;
}

static void run_threads(int n, void *(*body)(void *), int index_as_argument, void *shared)
{
	pthread_t threads[NUM_THREADS];
	for (int i = 0; i < n; i++) {
		void *arg = index_as_argument ? (void *)(uintptr_t)i : shared;
		CHECK(pthread_create(&threads[i], NULL, body, arg) == 0);
	}
	for (int i = 0; i < n; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

static void test_last_error(void)
{
	run_threads(NUM_THREADS, fail_in_own_words, 1, NULL);
	REFUSED(MW_ERR_HANDLE, mw_op_test((mw_op_t){5}));
	run_threads(1, check_no_error, 0, NULL); /* this thread's error is not the new thread's */
	CHECK(mw_last_error()[0] != 0);
}

static mw_buffer_t contested;
static _Atomic int num_closed;

static void *close_contested(void *arg)
{
	(void)arg;
	mw_status_t status = mw_buffer_close(contested);
	if (status == MW_OK)
		num_closed++;
	else
		CHECK(status == MW_ERR_HANDLE);
	return NULL;
}

static void test_close_once(void)
{
	for (int i = 0; i < 50; i++) {
		contested = lone_buffer();
		num_closed = 0;
		run_threads(NUM_THREADS, close_contested, 0, NULL);
		CHECK(num_closed == 1);
		REFUSED(MW_ERR_HANDLE, mw_buffer_close(contested));
	}
}

/* In a child every call says so, and none hangs. */
static int calls_in_child(mw_buffer_t buffer)
{
	mw_config_t config = config_of(0, 1);
	mw_counters_t counters = {.size = sizeof counters};
	mw_buffer_t fresh = {UNTOUCHED};
	alarm(20);
	if (mw_buffer_create(&config, &fresh) != MW_ERR_FORKED || fresh.id != UNTOUCHED)
		return 1;
	if (mw_buffer_counters(buffer, &counters) != MW_ERR_FORKED)
		return 2;
	if (mw_buffer_close(buffer) != MW_ERR_FORKED)
		return 3;
	if (mw_op_test((mw_op_t){1}) != MW_ERR_FORKED)
		return 4;
	if (mw_handle_release((mw_handle_t){1}) != MW_ERR_FORKED)
		return 5;
	if (mw_last_error()[0] == 0)
		return 6;
	if (mw_abi_version() != MW_ABI_VERSION)
		return 7;
	return 0;
}

static void test_fork(void)
{
	mw_buffer_t buffer = lone_buffer();
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(calls_in_child(buffer));
	int status = 0;
	CHECK(waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		FAIL("the forked child ended with wait status %#x", status);
	mw_counters_t counters = {.size = sizeof counters};
	STATUS(MW_OK, mw_buffer_counters(buffer, &counters)); /* the parent goes on */
	STATUS(MW_OK, mw_buffer_close(buffer));
}

int main(void)
{
	test_last_error();
	test_close_once();
	test_fork();
	puts("threads: ok");
	return 0;
}
