// Dispatch in deterministic order, between ranks of which some are reached by
// messages: behind moewire_rows_plan, which ends then when local ranks have the
// counts. One block for each rank. Remote ranks get theirs by messages; a rank that has
// sent its counts gets places; rows follow behind them.
//
// Local ranks are waited for here as well, because other blocks take messages
// meanwhile. Rows that come before the order is made stay where they are. Nothing
// behind them is waited for by then, so there is no circle of waits: what the order
// waits for stands in front of its sender's rows.
#include "remote_rest.cuh"
#include "places.cuh"

// Tells a remote rank how many rows it gets, none if it is left out.
MW_INLINE void mw_remote_send_counts(const mw_remote_order_args &a, int rank, bool left_out, const mw_remote_turn *t) {
  const mw_common &c = a.plan.c;
  u8 *msg = (u8 *)a.remote.ranks[rank].to + t->at;
  if (threadIdx.x == 0) {
    mw_remote_head h = mw_remote_head_of(c, &c.state->slot[c.slot], MW_REMOTE_COUNTS);
    h.tokens = mw_tokens(c);
    *(mw_remote_head *)msg = h;
  }
  u32 *counts = (u32 *)(msg + sizeof(mw_remote_head));
  for (int l = threadIdx.x; l < c.local_experts; l += blockDim.x)
    counts[l] = left_out ? 0 : a.plan.count[rank * c.local_experts + l];
  mw_remote_post(c, a.remote, rank, mw_remote_counts_bytes(c.local_experts));
}

// Gives a remote rank the counts of this one, behind what is left from before, and
// waits for its own.
MW_INLINE void mw_remote_exchange_counts(const mw_remote_order_args &a, mw_beginning *b, int rank, mw_remote_turn *t) {
  const mw_common &c = a.plan.c;
  u8 *slab = mw_slab_at(c, c.rank, c.slot);
  bool serve = mw_has(b->serve, rank), sent = false;
  for (;;) {
    __syncthreads(); // what the thread that speaks has noted
    int before = mw_remote_first_left(c, rank);
    if (mw_remote_until(c, a.remote, rank, !sent, t, [&] { return sent && (!serve || mw_has_announced(c, slab, b->op, rank)); }) != MW_REMOTE_CAPACITY) break;
    if (before >= 0) {
      mw_remote_send_next(c, a.remote, before, rank, (u8 *)a.remote.ranks[rank].to + t->at, t);
      continue;
    }
    if (t->bytes < mw_remote_counts_bytes(c.local_experts)) { // the host has seen to it that they fit
      if (mw_remote_speaks(rank)) mw_fail(c, MW_ERROR_MESSAGE, rank, t->bytes);
      return;
    }
    mw_remote_send_counts(a, rank, !serve, t);
    sent = true;
  }
  if (mw_remote_speaks(rank) && serve && t->state == MW_REMOTE_DONE && mw_agrees(c, slab, rank))
    mw_or_gpu(&c.state->slot[c.slot].placed, 1ull << rank);
}

// What moewire_rows_plan has come to, as far as it concerns a rank. One thread.
MW_INLINE void mw_remote_recall(const mw_common &c, mw_beginning *b, int rank) {
  const mw_slot *s = &c.state->slot[c.slot];
  u64 bit = 1ull << rank;
  b->op = s->op - 1;
  b->opened = mw_failed(c) ? 0 : s->owners & bit;
  b->serve = c.active && c.active[rank] == 0 ? 0 : b->opened;
  b->slab_of[rank] = s->slab_of[rank];
  b->placed[rank] = 0;
  b->lacks = 0;
}

// As source: waits for a local owner's answer, but first until the own rank has all
// counts: else the wait for a rank that is late with its counts would be booked on this
// owner as well. The last block to have counts gives the answer, and its waits have an
// end. One thread.
MW_INLINE void mw_remote_await_place(const mw_common &c, mw_beginning *b, int rank) {
  const u64 *own = &mw_inbox_from(c, c.rank)->row_order[c.slot];
  while (mw_load_acquire_sys(own) >> MW_OP_SHIFT != b->op + 1 && !mw_failed(c)) {
    mw_settle(c, rank);
    mw_pause();
  }
  if (!mw_failed(c)) mw_await_offset(c, b, rank);
}

// What the last block to have counts does. The waits for them end here, and are
// booked before any rank can wait for places.
MW_INLINE void mw_remote_order(const mw_common &c, mw_beginning *b) {
  if (threadIdx.x == 0) mw_record_waits(c, MW_RECORD_DISPATCH);
  mw_give_offsets(c, b);
}

MW_KERNEL void moewire_rows_remote_order(const mw_remote_order_args a) {
  const mw_common &c = a.plan.c;
  MW_SHARED(mw_remote_turn, t);
  MW_SHARED(mw_beginning, b);
  MW_SHARED(mw_common, uncounted);
  MW_SHARED(u32, skip);
  if (!c.state->remote) return; // a graph that was recorded when there were some
  int rank = blockIdx.x;
  bool remote = mw_is_remote(c, rank);
  if (threadIdx.x == 0) {
    mw_remote_begin(c, &t);
    mw_remote_recall(c, &b, rank);
    uncounted = c;
    uncounted.counters = 0; // for a block that serves on while waits are booked: its own would be lost, or another block's
    skip = mw_failed(c);
  }
  __syncthreads();
  if (remote && mw_has(b.opened, rank))
    mw_remote_exchange_counts(a, &b, rank, &t);
  else if (mw_remote_speaks(rank) && mw_has(b.serve, rank))
    mw_await_counts(c, &b, rank);
  if (mw_is_last(c, MW_STEP_COUNTS) && !skip) mw_remote_order(c, &b);
  if (!remote && mw_remote_speaks(rank) && mw_has(b.serve, rank)) mw_remote_await_place(c, &b, rank);
  __syncthreads();
  mw_reserve_all(a.plan, &b, rank, rank + 1);
  mw_remote_end(uncounted, a.remote, rank, &t);
  if (!mw_is_last(c, MW_STEP_ORDER) || !c.counters || threadIdx.x != 0) return;
  mw_record_waits(c, MW_RECORD_DISPATCH);
  mw_inflight_of(c)->place = mw_now_ns();
}
