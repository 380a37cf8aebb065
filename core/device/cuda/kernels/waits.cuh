// Waiting, blaming and the words of other ranks: docs/protocol.md, "Waits".
#pragma once

#include "counters.cuh"

// How often a wait that turns looks at the host's control block, which lies on the far
// side of the bus. A wait that ends before its first look does not touch that.
enum { MW_LOOK_EVERY = 64 };

// How long past the deadline a wait goes on while the host does not take what
// it is told.
#ifndef MW_HOST_GRACE_NS // tests that keep the host waiting have another
enum { MW_HOST_GRACE_NS = 2000000000 };
#endif

MW_INLINE bool mw_has(u64 set, int rank) { return set >> rank & 1; }

// The members of this rank's epoch in a word of the host's.
MW_INLINE u64 mw_members_of(const mw_common &c, u64 word) { return word >> MW_EPOCH_SHIFT == c.state->epoch ? word & ~(~0ull << MW_EPOCH_SHIFT) : 0; }

// Members, as the device knows: it may be out of date, by what was lost since the
// latest look. It is enough where nothing worse follows than for a rank that is lost
// a moment later: memory of such a rank is written to in vain.
MW_INLINE u64 mw_known(const mw_common &c) { return mw_peek_gpu(&c.state->in); }

// Asks the host for the members: a way over the bus and back.
MW_INLINE u64 mw_look(const mw_common &c) {
  u64 in = mw_members_of(c, mw_load_acquire_sys(&c.host_control->members));
  mw_and_gpu(&c.state->in, in);
  return in;
}

// Whether a rank is reached by messages. What stands for its memory then is in
// this rank's own, its shadow: places there are this rank's alone.
MW_INLINE bool mw_is_remote(const mw_common &c, int rank) { return mw_has(c.state->remote, rank); }

MW_INLINE u8 *mw_arena_of(const mw_common &c, int rank) { return (u8 *)c.bases[rank]; }

MW_INLINE mw_inbox *mw_inbox_at(const mw_common &c, int rank) {
  return &((mw_arena *)mw_arena_of(c, rank))->from[c.rank];
}

MW_INLINE const mw_inbox *mw_inbox_from(const mw_common &c, int rank) {
  return &((mw_arena *)mw_arena_of(c, c.rank))->from[rank];
}

MW_INLINE u8 *mw_slab_at(const mw_common &c, int rank, int slot) {
  return mw_arena_of(c, rank) + c.slab_off + slot * c.slab_bytes;
}

MW_INLINE u64 *mw_line_at(u8 *slab, i64 off, int rank) { return (u64 *)(slab + off + rank * MW_LINE_BYTES); }

// The block of rows of an expert, of all ranks' blocks; -1 for no expert.
MW_INLINE int mw_block_of(const mw_common &c, i64 expert) {
  return expert < 0 || expert >= c.num_experts ? -1 : (int)expert / c.block_experts;
}

MW_INLINE u64 *mw_layout_at(const mw_common &c, u8 *slab, int l, int rank) {
  return (u64 *)(slab + c.slab.layout) + (i64)l * c.num_ranks + rank;
}

// Ends the buffer with an error; the first one stays.
MW_INLINE void mw_fail(const mw_common &c, u64 error, u64 d0 = 0, u64 d1 = 0, u64 d2 = 0, u64 d3 = 0) {
  if (mw_swap_if_zero_gpu(&c.state->failed, error) != 0) return;
  mw_store_relaxed_sys(&c.report->detail[0], d0);
  mw_store_relaxed_sys(&c.report->detail[1], d1);
  mw_store_relaxed_sys(&c.report->detail[2], d2);
  mw_store_relaxed_sys(&c.report->detail[3], d3);
  mw_store_release_sys(&c.report->error, error);
}

// Whether n places from begin on are within the first capacity ones. What a counter
// holds is another rank's word: no sum of it is made, which could wrap.
MW_INLINE bool mw_fits(u64 begin, u64 n, u64 capacity) { return n <= capacity && begin <= capacity - n; }

// A word of another rank that it cannot have stored: the host takes that rank out. This
// one goes on as with any rank that is lost. The first word of a rank stays.
MW_INLINE void mw_violates(const mw_common &c, int rank, u64 word, u64 held) {
  mw_or_gpu(&c.state->wild, 1ull << rank);
  if (mw_load_relaxed_sys(&c.report->wild[rank]) != 0) return;
  mw_store_relaxed_sys(&c.report->held[rank], held);
  mw_store_release_sys(&c.report->wild[rank], word);
}

// The same of an owner that has no room, which may be this rank itself.
MW_INLINE void mw_violates_capacity(const mw_common &c, int owner, u64 word, u64 held) {
  if (owner == c.rank)
    mw_fail(c, MW_ERROR_WILD, word, ~0ull, held, c.slab.rows_per_expert);
  else
    mw_violates(c, owner, word, held);
}

MW_INLINE bool mw_failed(const mw_common &c) { return mw_peek_gpu(&c.state->failed) != 0; }

// See slots.cuh.
MW_INLINE void mw_settle(const mw_common &c, int rank);

// What a wait for a rank has come to.
enum { MW_READY, MW_RANK_OUT };

// What has become of a wait: bits.
enum { MW_WAITED = 1, MW_PUBLISHED = 2 };

// Waits until ready() or the rank is out. Data goes before absence: a rank that
// is out is looked at once more.
template <class Ready> MW_INLINE int mw_turn(const mw_common &c, int rank, Ready ready, u32 *did) {
  u64 start = mw_now_ns(), seen = mw_known(c), heard = 0;
  for (u32 turn = 0;; turn++) {
    if (ready()) return MW_READY;
    if (turn % MW_LOOK_EVERY == MW_LOOK_EVERY - 1 || !mw_has(seen, rank)) {
      u64 in = mw_look(c);
      if (!mw_has(in, rank)) return ready() ? MW_READY : MW_RANK_OUT;
      if (!mw_has(in, c.rank)) {
        mw_fail(c, MW_ERROR_FENCED);
        return MW_RANK_OUT;
      }
      if (in != seen) { // a rank that was late may have waited for the lost one
        seen = in;
        start = mw_now_ns();
        heard = 0;
      }
      if (rank != c.rank) {
        *did |= MW_PUBLISHED; // again and again: another launch may wait for it, too
        mw_store_relaxed_sys(&c.report->waits[rank], start | 1);
      }
      u64 waited = mw_now_ns() - start;
      if (c.timeout_ns >= 0 && waited > (u64)c.timeout_ns) {
        if (heard == 0) heard = c.timeout_ns;
        if (rank != c.rank && mw_load_relaxed_sys(&c.report->timed_out[rank]) == 0) {
          heard = waited; // the host has taken it: it is there
          mw_store_relaxed_sys(&c.report->timed_out[rank], start | 1);
        }
        if (waited > heard + MW_HOST_GRACE_NS) {
          mw_fail(c, MW_ERROR_NO_HOST, rank);
          return MW_RANK_OUT;
        }
      }
      if ((int)threadIdx.x < c.num_ranks) mw_settle(c, threadIdx.x); // may be what the rank waits for
    }
    *did |= MW_WAITED;
    mw_pause();
  }
}

template <class Ready> MW_INLINE int mw_await(const mw_common &c, int rank, Ready ready) {
  u32 did = 0;
  u64 began = c.counters ? mw_now_ns() : 0;
  int end = mw_turn(c, rank, ready, &did);
  if (did && began) mw_record_wait(c, began);
  if (did & MW_PUBLISHED) mw_store_relaxed_sys(&c.report->waits[rank], 0);
  return end;
}

// The last block of a launch to come here, all its threads, goes on with true;
// what the other blocks wrote before is visible to it.
MW_INLINE bool mw_is_last(const mw_common &c, int step) {
  MW_SHARED(u32, last);
  __syncthreads();
  if (threadIdx.x == 0) {
    mw_fence_sys(); // blocks write into other devices' memory
    u32 *finished = &c.state->slot[c.slot].finished[step];
    last = mw_add_relaxed_gpu(finished, 1) == (u32)c.num_blocks - 1;
    if (last) {
      mw_fence_sys();
      *finished = 0;
    }
  }
  __syncthreads();
  return last;
}

enum { MW_STEP_PLAN, MW_STEP_PLACE, MW_STEP_PUBLISH, MW_STEP_REDUCE, MW_STEP_COUNTS, MW_STEP_ORDER };

// Owners that have not opened yet; threads of other ranks are at it, too.
MW_INLINE u64 mw_unopened(const mw_slot *s) { return mw_peek_gpu(&s->unopened); }

// Releases an operation: its outputs first, so that a rank that still wants them gets
// an error and does not hang. One thread per rank.
MW_INLINE void mw_release(const mw_common &c, mw_slot *s, int slot, int rank) {
  u64 op = s->op - 1;
  if (!mw_has(mw_known(c), rank)) return;
  if (mw_has(s->writers, rank))
    mw_store_release_sys(&mw_inbox_at(c, rank)->y_ready[slot], mw_word(op, s->combines | MW_FINAL));
  if (mw_has(s->owners & ~mw_unopened(s), rank))
    mw_store_release_sys(mw_line_at(mw_slab_at(c, rank, s->slab_of[rank]), c.slab.done, c.rank),
                         mw_word(op, s->combines | MW_FINAL));
}
