// Dispatch in deterministic order, between ranks of which some are reached by
// messages: behind moewire_rows_plan, which ends then when near ranks have the
// counts. One block for each rank. Far ranks get theirs by messages; whose are here
// get places; rows follow behind them.
//
// Near ranks are waited for here as well, because other blocks take messages
// meanwhile. Rows that come before the order is made stay where they are. Nothing
// behind them is waited for by then, so nobody waits in a circle: what the order
// waits for is in front of the rows of whoever sends it.
#include "far_rest.cuh"
#include "places.cuh"

// Tells a far rank how many rows it gets, none if it is left out.
MW_INLINE void mw_far_send_counts(const mw_far_order_args &a, int rank, bool left_out, const mw_far_turn *t) {
  const mw_common &c = a.plan.c;
  u8 *msg = (u8 *)a.far.far[rank].to + t->at;
  if (threadIdx.x == 0) {
    mw_far_head h = mw_far_head_of(c, &c.state->slot[c.slot], MW_FAR_COUNTS);
    h.tokens = mw_tokens(c);
    *(mw_far_head *)msg = h;
  }
  u32 *counts = (u32 *)(msg + sizeof(mw_far_head));
  for (int l = threadIdx.x; l < c.local_experts; l += blockDim.x)
    counts[l] = left_out ? 0 : a.plan.count[rank * c.local_experts + l];
  mw_far_post(c, a.far, rank, mw_far_counts_bytes(c.local_experts));
}

// Gives a far rank the counts of this one, behind what is left from before, and
// waits for its own.
MW_INLINE void mw_far_exchange_counts(const mw_far_order_args &a, mw_beginning *b, int rank, mw_far_turn *t) {
  const mw_common &c = a.plan.c;
  u8 *slab = mw_slab_at(c, c.rank, c.slot);
  bool serve = mw_has(b->serve, rank), sent = false;
  for (;;) {
    __syncthreads(); // what the thread that speaks has noted
    int before = mw_far_first_left(c, rank);
    if (mw_far_until(c, a.far, rank, !sent, t, [&] { return sent && (!serve || mw_has_announced(c, slab, b->op, rank)); }) != MW_FAR_ROOM) break;
    if (before >= 0) {
      mw_far_send_next(c, a.far, before, rank, (u8 *)a.far.far[rank].to + t->at, t);
      continue;
    }
    if (t->bytes < mw_far_counts_bytes(c.local_experts)) { // the host has seen to it that they fit
      if (mw_far_speaks(rank)) mw_fail(c, MW_ERROR_MESSAGE, rank, t->bytes);
      return;
    }
    mw_far_send_counts(a, rank, !serve, t);
    sent = true;
  }
  if (mw_far_speaks(rank) && serve && t->state == MW_FAR_DONE && mw_agrees(c, slab, rank))
    mw_or_gpu(&c.state->slot[c.slot].placed, 1ull << rank);
}

// What moewire_rows_plan has come to, as far as it concerns a rank. One thread.
MW_INLINE void mw_far_recall(const mw_common &c, mw_beginning *b, int rank) {
  const mw_slot *s = &c.state->slot[c.slot];
  u64 bit = 1ull << rank;
  b->op = s->op - 1;
  b->opened = mw_failed(c) ? 0 : s->owners & bit;
  b->serve = c.active && c.active[rank] == 0 ? 0 : b->opened;
  b->slab_of[rank] = s->slab_of[rank];
  b->placed[rank] = 0;
  b->lacks = 0;
}

// As source: waits for a near owner's answer, but first until the own rank has all
// counts: who is late with those would be this owner's wait as well. They come from
// the last block to have some, whose waits have an end. One thread.
MW_INLINE void mw_far_await_place(const mw_common &c, mw_beginning *b, int rank) {
  const u64 *own = &mw_inbox_from(c, c.rank)->order[c.slot];
  while (mw_load_acquire_sys(own) >> MW_OP_SHIFT != b->op + 1 && !mw_failed(c)) {
    mw_settle(c, rank);
    mw_pause();
  }
  if (!mw_failed(c)) mw_await_place(c, b, rank);
}

// What the last block to have counts does. The waits for them end here, and are
// booked before anybody can wait for places.
MW_INLINE void mw_far_order(const mw_common &c, mw_beginning *b) {
  if (threadIdx.x == 0) mw_tally_waits(c, MW_TALLY_DISPATCH);
  mw_give_places(c, b);
}

MW_KERNEL void moewire_rows_far_order(const mw_far_order_args a) {
  const mw_common &c = a.plan.c;
  MW_SHARED(mw_far_turn, t);
  MW_SHARED(mw_beginning, b);
  MW_SHARED(mw_common, quiet);
  MW_SHARED(u32, skip);
  if (!c.state->far) return; // a graph that was recorded when there were some
  int rank = blockIdx.x;
  bool far = mw_is_far(c, rank);
  if (threadIdx.x == 0) {
    mw_far_begin(c, &t);
    mw_far_recall(c, &b, rank);
    quiet = c;
    quiet.tally = 0; // for who serves on while waits are booked: its own would be lost, or another one's
    skip = mw_failed(c);
  }
  __syncthreads();
  if (far && mw_has(b.opened, rank))
    mw_far_exchange_counts(a, &b, rank, &t);
  else if (mw_far_speaks(rank) && mw_has(b.serve, rank))
    mw_await_counts(c, &b, rank);
  if (mw_is_last(c, MW_STEP_COUNTS) && !skip) mw_far_order(c, &b);
  if (!far && mw_far_speaks(rank) && mw_has(b.serve, rank)) mw_far_await_place(c, &b, rank);
  __syncthreads();
  mw_reserve_all(a.plan, &b, rank, rank + 1);
  mw_far_end(quiet, a.far, rank, &t);
  if (!mw_is_last(c, MW_STEP_ORDER) || !c.tally || threadIdx.x != 0) return;
  mw_tally_waits(c, MW_TALLY_DISPATCH);
  mw_flight_of(c)->place = mw_now_ns();
}
