// Combine between ranks that are reached by messages: one block for each rank,
// which does something for far ones only.
#include "far_rest.cuh"
#include "owners.cuh"

// Behind moewire_outputs_publish. A source that has no rows here waits for nothing.
MW_KERNEL void moewire_outputs_far_send(const mw_far_take_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_far_turn, t);
  MW_SHARED(u32, skip);
  const mw_slot *s = &c.state->slot[c.slot];
  int rank = blockIdx.x;
  if (threadIdx.x == 0) {
    mw_far_begin(c, &t);
    skip = mw_failed(c) || !mw_is_far(c, rank) || s->ticket != c.ticket || !mw_far_is_owed(c, s, rank);
  }
  __syncthreads();
  if (!skip) mw_far_give(c, a.far, rank, MW_FAR_OUTPUTS, !(c.flags & MW_FLAG_SPLIT), &t);
  mw_far_end(c, a.far, rank, &t);
}

// Before moewire_outputs_wait: sends what was left, and takes messages until a far
// owner's outputs are here, also where none of them is needed: that owner sends them
// all the same, and may wait for the room. Only that it has let go is no error then.
MW_KERNEL void moewire_outputs_far_take(const mw_far_take_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_far_turn, t);
  MW_SHARED(u32, skip);
  MW_SHARED(u64, owner);
  const mw_slot *s = &c.state->slot[c.slot];
  int rank = blockIdx.x;
  if (threadIdx.x == 0) {
    if (rank == 0) mw_tally_resume(c, MW_TALLY_COMBINE);
    mw_far_begin(c, &t);
    skip = mw_failed(c) || !mw_is_far(c, rank) || s->ticket != c.ticket;
    owner = c.active && c.active[rank] == 0 ? 0 : mw_peek_gpu(&s->sent) & 1ull << rank;
  }
  __syncthreads();
  if (!skip) {
    bool asked = mw_needed(c, a.where, owner) != 0;
    const u64 *ready = &mw_inbox_from(c, rank)->y_ready[s->slab_of[rank]];
    mw_far_finish(c, a.far, rank, &t, [&] { // an owner may say that it has nothing of this rank's
      return !owner || !mw_has(mw_peek_gpu(&s->sent), rank) || mw_load_acquire_sys(ready) >= mw_word(s->op - 1, s->combines);
    });
    if (mw_far_speaks(rank) && asked && mw_has(mw_peek_gpu(&s->sent), rank)) mw_far_check_outputs(c, s, rank);
  }
  mw_far_end(c, a.far, rank, &t);
}
