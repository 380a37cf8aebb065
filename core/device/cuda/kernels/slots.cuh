// Opening, serving and releasing slots: docs/protocol.md, "Dispatch of
// operation i", 2 to 4. Every function here has one thread per rank, and its
// callers synchronise the block between them.
#pragma once

#include "waits.cuh"

// What is said of a call's tokens: how many there are, and, above that, whether
// this rank has more.
enum { MW_HAS_MORE_SHIFT = 32 };

MW_INLINE u64 mw_tokens(const mw_common &c) {
  return (u64)c.num_tokens | (c.flags & MW_FLAG_HAS_MORE ? 1ull << MW_HAS_MORE_SHIFT : 0);
}

// Writes what an owner that opens late is still to get: parameters, no rows,
// and the words that say so.
MW_INLINE void mw_notify_owner(const mw_common &c, mw_slot *s, int owner) {
  u8 *slab = mw_slab_at(c, owner, s->slab_of[owner]);
  u64 op = s->op - 1, *p = mw_line_at(slab, c.slab.params, c.rank);
  mw_store_relaxed_sys(&p[MW_PARAM_OP], op + 1);
  for (int i = 0; i < 4; i++) mw_store_relaxed_sys(&p[MW_PARAM_MAX_TOKENS + i], s->call[i]);
  mw_store_relaxed_sys(&p[MW_PARAM_TOPK], s->topk);
  mw_store_relaxed_sys(&p[MW_PARAM_TOKENS], s->tokens);
  mw_store_relaxed_sys(&p[MW_PARAM_EXTRAS], s->extras);
  bool flat = s->call[MW_PARAM_FLAGS - MW_PARAM_MAX_TOKENS] & MW_FLAG_FLAT;
  int local = flat ? 1 : (int)s->call[MW_PARAM_EXPERTS - MW_PARAM_MAX_TOKENS] / c.num_ranks;
  for (int l = 0; l < local; l++) // where it lies is the same for every shape
    mw_store_relaxed_sys(mw_layout_at(c, slab, l, c.rank), 0);
  mw_store_release_sys(mw_line_at(slab, c.slab.arrive, c.rank), mw_word(op, 0));
  if (s->released)
    mw_store_release_sys(mw_line_at(slab, c.slab.done, c.rank), mw_word(op, s->combines | MW_FINAL));
}

// The slab that an owner has opened for an operation, or -1. There may be none of that number.
MW_INLINE int mw_opened(const mw_common &c, int owner, u64 op) {
  u64 word = mw_load_acquire_sys(&mw_inbox_from(c, owner)->open[op % MW_OPEN_RING]);
  return mw_op_of(word) == op && word ? (int)(word & MW_DETAIL) : -1;
}

// Serves owners that have opened since: they were left out by the caller's mask
// when the operation began.
MW_INLINE void mw_settle(const mw_common &c, int rank) {
  for (int j = 0; j < c.num_slots; j++) {
    mw_slot *s = &c.state->slot[j];
    if (!s->op || !mw_has(mw_unopened(s), rank)) continue;
    u64 in = mw_known(c);
    int slab = mw_has(in, rank) ? mw_opened(c, rank, s->op - 1) : -1;
    if ((u32)slab >= (u32)c.num_slots || !mw_has(in, c.rank)) continue;
    s->slab_of[rank] = (u8)slab;
    mw_notify_owner(c, s, rank);
    mw_and_gpu(&s->unopened, ~(1ull << rank));
  }
}

MW_INLINE bool mw_has_unopened(const mw_common &c, int rank) {
  for (int j = 0; j < c.num_slots; j++)
    if (c.state->slot[j].op && mw_has(mw_unopened(&c.state->slot[j]), rank)) return true;
  return false;
}

// Has the thread of each rank wait for it. A thread that is ready goes on to serve its
// rank as long as others wait: the rank may be what they wait for.
template <class Wait> MW_INLINE void mw_wait_together(const mw_common &c, Wait wait) {
  int r = threadIdx.x;
  if (r >= c.num_ranks) return;
  u64 all = (mw_peek_gpu(&c.state->waits_ended) / c.num_ranks + 1) * c.num_ranks;
  if (!mw_failed(c)) wait(r);
  mw_count_gpu(&c.state->waits_ended);
  while (mw_has_unopened(c, r) && mw_peek_gpu(&c.state->waits_ended) < all && !mw_failed(c)) {
    mw_settle(c, r);
    mw_pause();
  }
}

// Whether a slot's operation is released by the next call for another one: it
// was combined, and the sums of that are made.
MW_INLINE bool mw_is_combined(const mw_slot *s) { return s->op && s->combines && s->reduced == s->combines; }

// Releases what was combined and is not combined again: every slot but keep.
MW_INLINE void mw_release_combined(const mw_common &c, int keep, int rank) {
  for (int j = 0; j < c.num_slots; j++) {
    mw_slot *s = &c.state->slot[j];
    if (j != keep && mw_is_combined(s) && !s->released) mw_release(c, s, j, rank);
  }
}

// One thread, after all have been through mw_release_combined.
MW_INLINE void mw_mark_released(const mw_common &c, int keep) {
  for (int j = 0; j < c.num_slots; j++) {
    mw_slot *s = &c.state->slot[j];
    if (j != keep && mw_is_combined(s)) s->released = 1;
  }
}

// Waits until a rank is done with the own slab: it said so, or is out and known
// to write nothing more. (Data that is late would land in the next operation.)
// For a remote rank this one's own kernels write.
MW_INLINE void mw_await_done(const mw_common &c, const mw_slot *s, int slot, int rank) {
  if (!s->op || !mw_has(s->writers, rank) || mw_is_remote(c, rank)) return;
  u64 want = mw_word(s->op - 1, MW_FINAL);
  const u64 *done = mw_line_at(mw_slab_at(c, c.rank, slot), c.slab.done, rank);
  if (mw_await(c, rank, [&] { return mw_load_acquire_sys(done) >= want; }) == MW_READY) return;
  u32 turn = 0; // it may take seconds: the bus is for others, too
  mw_await(c, c.rank, [&] { return turn++ % MW_LOOK_EVERY == 0 && mw_has(mw_load_acquire_sys(&c.host_control->quiesced), rank); });
}

// Tells every member that the slot takes an operation's rows.
MW_INLINE void mw_publish_open(const mw_common &c, u64 op, int slot, u64 writers, int rank) {
  if (mw_has(writers, rank))
    mw_store_release_sys(&mw_inbox_at(c, rank)->open[op % MW_OPEN_RING], mw_word(op, slot));
}

// The widths of the extra columns: 16 bits each, the first one lowest.
MW_INLINE u64 mw_extras(const mw_common &c) {
  u64 all = 0;
  for (int i = 0; i < MW_NUM_EXTRAS; i++) all |= (u64)c.slab.extra_bytes[i] << 16 * i;
  return all;
}

// Whether a rank has called with the same parameters. If not, the buffer ends.
// Of flat rows K and the columns are the same, too.
MW_INLINE bool mw_agrees(const mw_common &c, u8 *slab, int rank) {
  u64 own[] = {0, (u64)c.max_tokens, (u64)c.hidden, (u64)c.num_experts, c.flags & MW_FLAGS_AGREED, (u64)c.topk, 0, mw_extras(c)};
  const u64 *p = mw_line_at(slab, c.slab.params, rank);
  int last = c.flags & MW_FLAG_FLAT ? MW_PARAM_EXTRAS : MW_PARAM_FLAGS;
  for (int i = MW_PARAM_MAX_TOKENS; i <= last; i++) {
    u64 theirs = mw_load_relaxed_sys(&p[i]);
    if (theirs == own[i] || i == MW_PARAM_TOKENS) continue;
    mw_fail(c, MW_ERROR_MISMATCH, rank, i, own[i], theirs);
    return false;
  }
  return true;
}
