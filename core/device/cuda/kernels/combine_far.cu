// Combine between ranks that are reached by messages: one block for each rank,
// which does something for far ones only.
#include "far_rest.cuh"

// Sends a far source the outputs of its rows, behind what is left from before. One
// that has none waits for nothing.
MW_INLINE void mw_far_give_outputs(const mw_far_take_args &a, int rank, mw_far_turn *t) {
  const mw_common &c = a.c;
  const mw_slot *s = &c.state->slot[c.slot];
  if (mw_has(s->counted, rank) && mw_far_rows_of(c, s, mw_slab_at(c, c.rank, c.slot), rank) == 0) return;
  bool wait = !(c.flags & MW_FLAG_SPLIT), left = false;
  for (;;) {
    __syncthreads(); // what the thread that speaks has noted
    if (!left && !mw_far_has_left(c, rank)) {
      left = true;
      __syncthreads();
      if (mw_far_speaks(rank)) mw_far_leave(c, rank, MW_FAR_OUTPUTS);
      __syncthreads();
    }
    int j = mw_far_first_left(c, rank);
    u8 *msg = j < 0 ? 0 : mw_far_lend(c, a.far, rank, wait || !left, t);
    if (!msg) return;
    mw_far_send_next(c, a.far, j, rank, msg, t);
  }
}

// Behind moewire_combine_publish.
MW_KERNEL void moewire_combine_far_send(const mw_far_take_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_far_turn, t);
  MW_SHARED(u32, skip);
  const mw_slot *s = &c.state->slot[c.slot];
  int rank = blockIdx.x;
  if (threadIdx.x == 0) {
    mw_far_begin(c, &t);
    skip = mw_failed(c) || !mw_is_far(c, rank) || s->ticket != c.ticket || !mw_has(s->writers, rank);
  }
  __syncthreads();
  if (!skip) mw_far_give_outputs(a, rank, &t);
  mw_far_end(c, a.far, rank, &t);
}

// Before moewire_combine_wait: sends what was left, and takes messages until a far
// owner's outputs are here.
MW_KERNEL void moewire_combine_far_take(const mw_far_take_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_far_turn, t);
  MW_SHARED(u32, skip);
  MW_SHARED(u32, counts);
  const mw_slot *s = &c.state->slot[c.slot];
  int rank = blockIdx.x;
  if (threadIdx.x == 0) {
    if (rank == 0) mw_tally_resume(c, MW_TALLY_COMBINE);
    mw_far_begin(c, &t);
    skip = mw_failed(c) || !mw_is_far(c, rank) || s->ticket != c.ticket;
    counts = !(c.active && c.active[rank] == 0);
  }
  __syncthreads();
  if (!skip) {
    const u64 *ready = &mw_inbox_from(c, rank)->y_ready[s->slab_of[rank]];
    mw_far_finish(c, a.far, rank, &t, [&] {
      return !counts || !mw_has(mw_peek_gpu(&s->sent), rank) || mw_load_acquire_sys(ready) >= mw_word(s->op - 1, s->combines);
    });
  }
  mw_far_end(c, a.far, rank, &t);
}
