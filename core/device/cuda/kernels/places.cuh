// Places of rows: docs/protocol.md, "Dispatch of operation i", 4, and
// "Deterministic order". Every function here is for one block, all its threads.
#pragma once

#include "slots.cuh"

// What the threads of the block that begins an operation share.
struct mw_beginning {
  u64 op;
  u64 members; // when the operation began
  u64 serve;   // owners that are waited for
  u64 opened;  // of those, the ones that have opened
  u64 in;      // sources that get places in the own slab
  u64 lacks;   // owners that have no room
  i32 slab_of[MW_MAX_RANKS];
  u8 placed[MW_MAX_RANKS]; // owners that have given this rank places
};

MW_INLINE void mw_store_params(const mw_common &c, u64 op, u64 *p) {
  mw_store_relaxed_sys(&p[MW_PARAM_OP], op + 1);
  mw_store_relaxed_sys(&p[MW_PARAM_MAX_TOKENS], c.max_tokens);
  mw_store_relaxed_sys(&p[MW_PARAM_HIDDEN], c.hidden);
  mw_store_relaxed_sys(&p[MW_PARAM_EXPERTS], c.num_experts);
  mw_store_relaxed_sys(&p[MW_PARAM_FLAGS], c.flags & MW_FLAGS_AGREED);
  mw_store_relaxed_sys(&p[MW_PARAM_TOPK], c.topk);
  mw_store_relaxed_sys(&p[MW_PARAM_TOKENS], mw_tokens(c));
  mw_store_relaxed_sys(&p[MW_PARAM_EXTRAS], mw_extras(c));
}

// Leaves the parameters where owners look for them, and which blocks get no
// rows; in order, how many each gets, and says so.
MW_INLINE void mw_announce(const mw_plan_args &a, const mw_beginning *b) {
  const mw_common &c = a.c;
  bool ordered = c.flags & MW_FLAG_ORDERED;
  for (int i = threadIdx.x; i < c.num_ranks * c.local_experts; i += blockDim.x) {
    int owner = i / c.local_experts;
    u32 n = mw_has(b->serve, owner) ? a.count[i] : 0; // a remote rank that is left out gets none
    if (mw_has(b->opened, owner) && (ordered || n == 0))
      mw_store_relaxed_sys(mw_layout_at(c, mw_slab_at(c, owner, b->slab_of[owner]), i % c.local_experts, c.rank), n);
  }
  int r = threadIdx.x;
  bool publishes = r < c.num_ranks && mw_has(b->opened, r);
  u8 *slab = publishes ? mw_slab_at(c, r, b->slab_of[r]) : 0;
  if (publishes) mw_store_params(c, b->op, mw_line_at(slab, c.slab.params, c.rank));
  if (!ordered) return;
  __syncthreads();
  if (publishes)
    mw_store_release_sys(mw_line_at(slab, c.slab.counted, c.rank), mw_word(b->op, 0));
}

// Whether a source has said how many rows it has: with none it may only say
// that they are there.
MW_INLINE bool mw_has_announced(const mw_common &c, u8 *slab, u64 op, int rank) {
  u64 want = mw_word(op, 0);
  return mw_load_acquire_sys(mw_line_at(slab, c.slab.counted, rank)) == want ||
         mw_load_acquire_sys(mw_line_at(slab, c.slab.arrive, rank)) == want;
}

// Makes places of the counts of those ranks that have told theirs, in order of
// rank, and answers.
MW_INLINE void mw_give_offsets(const mw_common &c, mw_beginning *b) {
  mw_slot *s = &c.state->slot[c.slot];
  u8 *slab = mw_slab_at(c, c.rank, c.slot);
  if (threadIdx.x == 0) b->in = mw_failed(c) ? 0 : mw_load_relaxed_sys(&s->placed);
  __syncthreads();
  for (int l = threadIdx.x; l < c.local_experts; l += blockDim.x) {
    u64 total = 0;
    for (int q = 0; q < c.num_ranks; q++) {
      if (!mw_has(b->in, q)) continue;
      u64 *word = mw_layout_at(c, slab, l, q), n = mw_load_relaxed_sys(word) & 0xffffffffu;
      if (n > (u64)c.max_tokens) {
        mw_fail(c, MW_ERROR_WILD, MW_WILD_LAYOUT, l, n, c.max_tokens);
        n = 0;
      }
      if (n) mw_store_relaxed_sys(word, total << 32 | n);
      total += n;
    }
    mw_store_relaxed_sys((u64 *)(slab + c.slab.counter) + l, total);
  }
  __syncthreads();
  int r = threadIdx.x;
  if (r < c.num_ranks && mw_has(s->writers, r))
    mw_store_release_sys(&mw_inbox_at(c, r)->row_order[c.slot], mw_word(b->op, mw_has(b->in, r)));
}

// As owner: waits for a rank's counts. One thread.
MW_INLINE void mw_await_counts(const mw_common &c, const mw_beginning *b, int r) {
  u8 *slab = mw_slab_at(c, c.rank, c.slot);
  if (mw_await(c, r, [&] { return mw_has_announced(c, slab, b->op, r); }) != MW_READY) return;
  if (mw_agrees(c, slab, r)) mw_or_gpu(&c.state->slot[c.slot].placed, 1ull << r);
}

// The same for all ranks. A rank that is out by then has no places.
MW_INLINE void mw_assign_offsets(const mw_common &c, mw_beginning *b) {
  mw_wait_together(c, [&](int r) {
    if (mw_has(b->serve, r)) mw_await_counts(c, b, r);
  });
  __syncthreads();
  if (threadIdx.x == 0) mw_record_waits(c, MW_RECORD_DISPATCH); // a rank that is late with this is not late with its answer
  mw_give_offsets(c, b);
}

// As source: waits for an owner's answer. One thread.
MW_INLINE void mw_await_offset(const mw_common &c, mw_beginning *b, int r) {
  const u64 *order = &mw_inbox_from(c, r)->row_order[b->slab_of[r]];
  u64 word = 0;
  if (mw_await(c, r, [&] { return mw_op_of(word = mw_load_acquire_sys(order)) == b->op && word; }) == MW_READY)
    b->placed[r] = word & 1;
}

MW_INLINE void mw_await_offsets(const mw_common &c, mw_beginning *b) {
  if ((int)threadIdx.x < c.num_ranks) b->placed[threadIdx.x] = 0;
  mw_wait_together(c, [&](int r) {
    if (mw_has(b->opened, r)) mw_await_offset(c, b, r);
  });
  __syncthreads();
}

// One thread: an owner has no room. This happens as well if ranks disagree about the shape:
// moewire_rows_receive, which has all parameters, knows which rank is to blame. What no
// shape explains is wild now.
MW_INLINE void mw_lack(const mw_common &c, mw_beginning *b, int owner, u64 held) {
  bool ordered = c.flags & MW_FLAG_ORDERED; // then the owner has agreed before it gave places
  mw_or_block(&b->lacks, 1ull << owner);
  mw_store_relaxed_sys(&c.report->held[owner], held);
  if (ordered || held > MW_MAX_RESERVED) mw_violates_capacity(c, owner, ordered ? MW_WILD_LAYOUT : MW_WILD_COUNTER, held);
}

// One thread per block of rows: where this rank's begin.
MW_INLINE void mw_reserve(const mw_plan_args &a, mw_beginning *b, int block) {
  const mw_common &c = a.c;
  int owner = block / c.local_experts, l = block % c.local_experts;
  u32 n = a.count[block];
  a.base[block] = 0;
  if (!n || !mw_has(b->opened & b->serve, owner)) return;
  u8 *slab = mw_slab_at(c, owner, b->slab_of[owner]);
  u64 *layout = mw_layout_at(c, slab, l, c.rank), begin = 0;
  bool remote = mw_is_remote(c, owner), ordered = c.flags & MW_FLAG_ORDERED;
  if (!remote && !ordered)
    begin = mw_add_relaxed_sys((u64 *)(slab + c.slab.counter) + l, n);
  else if (!remote && b->placed[owner])
    begin = mw_load_relaxed_sys(layout) >> 32;
  else if (!remote)
    return; // the owner does not count this rank
  if (!mw_fits(begin, n, c.slab.rows_per_expert)) {
    mw_lack(c, b, owner, begin);
    return;
  }
  if (remote || !ordered) mw_store_relaxed_sys(layout, begin << 32 | n); // a remote rank has the first places
  a.base[block] = (u32)begin;
  mw_or_gpu(&c.state->slot[c.slot].sent, 1ull << owner);
  if (c.counters) mw_add_relaxed_gpu(&mw_inflight_of(c)->rows_to[owner], n);
}

// Gives an owner that has no room for all rows none. One thread.
MW_INLINE void mw_send_none(const mw_common &c, const mw_beginning *b, int owner) {
  mw_slot *s = &c.state->slot[c.slot];
  u8 *slab = mw_slab_at(c, owner, b->slab_of[owner]);
  for (int l = 0; l < c.local_experts; l++) mw_store_relaxed_sys(mw_layout_at(c, slab, l, c.rank), 0);
  mw_and_gpu(&s->sent, ~(1ull << owner));
  mw_or_gpu(&s->lacks, 1ull << owner);
  s->inflight.rows_to[owner] = 0;
}

// Reserves at some owners.
MW_INLINE void mw_reserve_all(const mw_plan_args &a, mw_beginning *b, int first, int end) {
  const mw_common &c = a.c;
  for (int i = first * c.local_experts + threadIdx.x; i < end * c.local_experts; i += blockDim.x) mw_reserve(a, b, i);
  __syncthreads();
  if (!b->lacks || threadIdx.x != 0) return;
  for (int q = first; q < end; q++)
    if (mw_has(b->lacks, q)) mw_send_none(c, b, q);
}
