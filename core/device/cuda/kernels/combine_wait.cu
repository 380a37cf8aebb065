// The waits of combine. One block each.
#include "owners.cuh"

// Before outputs are written again: every rank has read the earlier ones. The next
// combine may come much later.
MW_KERNEL void moewire_outputs_again(const mw_wait_args a) {
  const mw_common &c = a.c;
  const mw_slot *s = &c.state->slot[c.slot];
  if (threadIdx.x == 0 && s->op && s->ticket == c.ticket) mw_record_show(c, s->op - 1, MW_RECORD_READERS, mw_now_ns());
  mw_wait_together(c, [&](int r) {
    if (!s->op || s->ticket != c.ticket || !mw_has(s->counted, r) || mw_is_remote(c, r)) return;
    const u64 *done = mw_line_at(mw_slab_at(c, c.rank, c.slot), c.slab.done, r);
    u64 want = mw_word(s->op - 1, s->combines);
    mw_await(c, r, [&] { return mw_load_acquire_sys(done) >= want; });
  });
  if (!c.counters) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  mw_record_waits(c, MW_RECORD_READERS);
  mw_record_hide(c, s->op - 1);
}

// What an owner says of its outputs.
enum { MW_Y_WAIT, MW_Y_READY, MW_Y_RELEASED };

MW_INLINE int mw_outputs(const mw_common &c, const mw_slot *s, int owner) {
  u64 word = mw_load_acquire_sys(&mw_inbox_from(c, owner)->y_ready[s->slab_of[owner]]);
  u64 op = s->op - 1;
  if (!word || mw_op_of(word) < op) return MW_Y_WAIT;
  if (mw_op_of(word) > op) return MW_Y_RELEASED;
  if ((word & MW_COUNT) >= s->combines) return MW_Y_READY;
  return word & MW_FINAL ? MW_Y_RELEASED : MW_Y_WAIT;
}

// All threads: the owners of outputs that the combine waits for. An owner is not among them
// if the caller leaves it, or all its rows, out: it may combine as late, or as seldom, as it likes.
MW_INLINE u64 mw_asked(const mw_wait_args &a) {
  const mw_common &c = a.c;
  MW_SHARED(u64, owners);
  if (threadIdx.x == 0) {
    owners = mw_failed(c) ? 0 : c.state->slot[c.slot].sent;
    for (int r = 0; r < c.num_ranks && c.active; r++)
      if (c.active[r] == 0) owners &= ~(1ull << r);
  }
  __syncthreads();
  return mw_needed(c, a.where, owners);
}

// One thread per rank: whether its outputs are used.
MW_INLINE bool mw_usable(const mw_common &c, const mw_slot *s, int owner) {
  int state = MW_Y_WAIT;
  if (mw_await(c, owner, [&] { return (state = mw_outputs(c, s, owner)) != MW_Y_WAIT; }) == MW_RANK_OUT) return false;
  if (state == MW_Y_RELEASED) mw_fail(c, MW_ERROR_RELEASED, owner);
  return state == MW_Y_READY;
}

MW_KERNEL void moewire_outputs_wait(const mw_wait_args a) {
  const mw_common &c = a.c;
  mw_slot *s = &c.state->slot[c.slot];
  if (threadIdx.x == 0) {
    *a.use = 0;
    mw_record_resume(c, MW_RECORD_COMBINE);
    if (s->ticket != c.ticket) mw_fail(c, MW_ERROR_STALE, c.slot);
  }
  u64 asked = mw_asked(a);
  mw_wait_together(c, [&](int r) {
    mw_settle(c, r);
    if (mw_has(asked, r) && mw_usable(c, s, r))
      mw_or_gpu(a.use, 1ull << r);
    else if (c.active && (mw_has(asked, r) || !mw_has(mw_look(c), r)))
      c.active[r] = 0;
  });
  if (!c.counters) return;
  __syncthreads();
  if (threadIdx.x != blockDim.x - 1) return;
  mw_record_waits(c, s->ticket == c.ticket ? MW_RECORD_COMBINE : MW_RECORD_READERS);
  if (s->ticket == c.ticket) s->inflight.seen = mw_now_ns();
}
