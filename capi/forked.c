/*
 * Handlers that run before and after fork(). No function of the library works in a forked
 * child (mwi_forked). But the child has copies of all descriptors, and would keep the
 * sockets of its parent open beyond the parent's end: other ranks would wait for a dead
 * rank. So the child closes these descriptors and does nothing else. It makes only system
 * calls.
 */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

volatile int mwi_forked;

struct mwi_fork_table mwi_fork_table;

/* Waits until sockets that other threads are making are in the table, and descriptors
   that they are closing are closed. */
static void before_fork(void)
{
	struct timespec pause = {0, 50 * 1000};
	__atomic_add_fetch(&mwi_fork_table.forking, 1, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&mwi_fork_table.forks, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 200 && __atomic_load_n(&mwi_fork_table.making, __ATOMIC_SEQ_CST) != 0; i++)
		nanosleep(&pause, NULL);
}

static void in_parent(void)
{
	__atomic_sub_fetch(&mwi_fork_table.forking, 1, __ATOMIC_SEQ_CST);
}

static void in_child(void)
{
	mwi_forked = 1;
	for (int word = 0; word < MWI_FORK_WORDS; word++)
		for (uint64_t rest = mwi_fork_table.held[word]; rest != 0; rest &= rest - 1)
			close(64 * word + __builtin_ctzll(rest));
	/* A child of the child has no descriptors to close. */
	for (int word = 0; word < MWI_FORK_WORDS; word++)
		if (mwi_fork_table.held[word] != 0)
			mwi_fork_table.held[word] = 0;
	mwi_fork_table.making = mwi_fork_table.forking = 0;
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, in_parent, in_child);
}
