// How a kernel asks the host for something: a bounded queue of descriptors in
// pinned host memory. core/device/cuda/fifo has the host's side, and its mirror
// of these structs; a test compares them.
//
// A number is a generation, in the upper 16 bits, and a count. A thread that pushes takes
// the next number only when there is room for it, and waits for nothing between
// that and the release of `seq`: no number is ever taken and left out.
#pragma once

#include "slots.cuh"

// One request. `seq` is written last, and is the number plus one.
struct alignas(32) mw_descriptor {
  u64 seq;
  u64 what;   // kind, rank << 8
  u64 bytes;
  u64 number; // of the lease or the message that it is about
};

// Where the queue begins: the host's words. Descriptors follow.
struct mw_fifo_words {
  u64 taken; // the number that the host takes next: those before are free again
  u64 ended;  // not 0: the host takes no more, and why
  u64 pad[6];
};

struct mw_fifo {
  mw_fifo_words *words; // in pinned host memory
  u64 *next;            // the next number, in the device's own memory
  u64 num;              // descriptors; a power of two
};

enum { MW_FIFO_PUSHED, MW_FIFO_FULL, MW_FIFO_ENDED };

// Pushes if there is room. Also FULL: another thread was faster.
MW_INLINE int mw_fifo_try(const mw_fifo &f, u64 what, u64 bytes, u64 number) {
  u64 ended = mw_load_relaxed_sys(&f.words->ended); // on its way together with the next one
  u64 ticket = mw_peek_gpu(f.next);
  u64 taken = mw_load_acquire_sys(&f.words->taken);
  if (ended) return MW_FIFO_ENDED;
  if (ticket - taken >= f.num) return ticket >> MW_FIFO_SHIFT == taken >> MW_FIFO_SHIFT ? MW_FIFO_FULL : MW_FIFO_ENDED;
  if (mw_swap_if_gpu(f.next, ticket, ticket + 1) != ticket) return MW_FIFO_FULL;
  mw_descriptor *d = (mw_descriptor *)(f.words + 1) + (ticket & (f.num - 1));
  mw_store_relaxed_sys(&d->what, what);
  mw_store_relaxed_sys(&d->bytes, bytes);
  mw_store_relaxed_sys(&d->number, number);
  mw_store_release_sys(&d->seq, ticket + 1); // also what this thread stored before
  return MW_FIFO_PUSHED;
}

// Whether the host takes no more; then the buffer has failed, and it says why.
MW_INLINE bool mw_fifo_ended(const mw_common &c, const mw_fifo &f) {
  u64 ended = mw_load_relaxed_sys(&f.words->ended);
  if (ended) mw_fail(c, MW_ERROR_PROXY, ended);
  return ended != 0;
}

// Waits for room. False: the queue has ended, or this rank is out, or the host has
// done nothing for too long; then the buffer has failed, and it says so.
MW_INLINE bool mw_fifo_push(const mw_common &c, const mw_fifo &f, u64 what, u64 bytes, u64 number) {
  int state = MW_FIFO_FULL;
  int end = mw_await(c, c.rank, [&] { return (state = mw_fifo_try(f, what, bytes, number)) != MW_FIFO_FULL; });
  if (state == MW_FIFO_ENDED) mw_fail(c, MW_ERROR_PROXY, mw_load_relaxed_sys(&f.words->ended));
  if (end == MW_RANK_OUT) mw_fail(c, MW_ERROR_FENCED); // the first error stays
  return end == MW_READY && state == MW_FIFO_PUSHED;
}
