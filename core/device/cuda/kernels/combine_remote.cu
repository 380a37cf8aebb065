// Combine between ranks that are reached by messages: one block for each rank,
// which does something for remote ones only.
#include "remote_rest.cuh"
#include "owners.cuh"

// Behind moewire_outputs_publish. A source that has no rows here waits for nothing.
MW_KERNEL void moewire_outputs_remote_send(const mw_remote_take_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_remote_turn, t);
  MW_SHARED(u32, skip);
  const mw_slot *s = &c.state->slot[c.slot];
  int rank = blockIdx.x;
  if (threadIdx.x == 0) {
    mw_remote_begin(c, &t);
    skip = mw_failed(c) || !mw_is_remote(c, rank) || s->ticket != c.ticket || !mw_remote_awaits_outputs(c, s, rank);
  }
  __syncthreads();
  if (!skip) mw_remote_give(c, a.remote, rank, MW_REMOTE_OUTPUTS, !(c.flags & MW_FLAG_SPLIT), &t);
  mw_remote_end(c, a.remote, rank, &t);
}

// Before moewire_outputs_wait: sends what was left, and takes messages until a remote
// owner's outputs are here, also where none of them is needed: that owner sends them
// all the same, and may wait for the room. Only that it has let go is no error then.
MW_KERNEL void moewire_outputs_remote_take(const mw_remote_take_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_remote_turn, t);
  MW_SHARED(u32, skip);
  MW_SHARED(u64, owner);
  const mw_slot *s = &c.state->slot[c.slot];
  int rank = blockIdx.x;
  if (threadIdx.x == 0) {
    if (rank == 0) mw_record_resume(c, MW_RECORD_COMBINE);
    mw_remote_begin(c, &t);
    skip = mw_failed(c) || !mw_is_remote(c, rank) || s->ticket != c.ticket;
    owner = c.active && c.active[rank] == 0 ? 0 : mw_peek_gpu(&s->sent) & 1ull << rank;
  }
  __syncthreads();
  if (!skip) {
    bool asked = mw_needed(c, a.where, owner) != 0;
    const u64 *ready = &mw_inbox_from(c, rank)->y_ready[s->slab_of[rank]];
    mw_remote_finish(c, a.remote, rank, &t, [&] { // an owner may say that it has nothing of this rank's
      return !owner || !mw_has(mw_peek_gpu(&s->sent), rank) || mw_load_acquire_sys(ready) >= mw_word(s->op - 1, s->combines);
    });
    if (mw_remote_speaks(rank) && asked && mw_has(mw_peek_gpu(&s->sent), rank)) mw_remote_check_outputs(c, s, rank);
  }
  mw_remote_end(c, a.remote, rank, &t);
}
