// Combine, first part: brings outputs to where other ranks read them, and says
// so.
#include "slots.cuh"
#include "streams.cuh"

MW_INLINE void mw_copy_outputs(const mw_publish_args &a, int l) {
  const mw_common &c = a.c;
  i64 first = (i64)l * c.slab.rows_per_expert * c.slab.output_bytes;
  const mw_quad *from = (const mw_quad *)(a.outputs + first);
  mw_quad *to = (mw_quad *)(mw_slab_at(c, c.rank, c.slot) + c.slab.y + first);
  i64 n = (i64)a.rows[l] * (c.slab.output_bytes / 16), step = (i64)gridDim.x * blockDim.x;
  mw_stream(from, (i64)blockIdx.x * blockDim.x + threadIdx.x, n, step, [&](i64 i, const mw_quad &v) { to[i] = v; });
}

// One thread: the outputs are there for the others.
MW_INLINE void mw_record_published(const mw_publish_args &a) {
  mw_inflight *f = mw_inflight_of(a.c);
  f->sent = mw_now_ns();
  f->copied = a.outputs ? f->num_received * (u64)a.c.slab.output_bytes : 0;
}

MW_KERNEL void moewire_outputs_publish(const mw_publish_args a) {
  const mw_common &c = a.c;
  MW_SHARED(u32, skip);
  mw_slot *s = &c.state->slot[c.slot];
  if (threadIdx.x == 0) {
    bool stale = !s->op || s->released || s->ticket != c.ticket;
    if (blockIdx.x == 0 && stale) mw_fail(c, MW_ERROR_STALE, c.slot);
    skip = mw_failed(c) || stale;
    if (blockIdx.x == 0 && !stale) mw_record_begin(c, s->op - 1, MW_RECORD_COMBINE);
  }
  __syncthreads();
  for (int l = 0; l < c.local_experts && a.outputs && !skip; l++) mw_copy_outputs(a, l);
  if (!mw_is_last(c, MW_STEP_PUBLISH) || skip) return;
  if (threadIdx.x == 0) {
    s->combines++;
    if (c.counters) mw_record_published(a);
  }
  __syncthreads();
  int r = threadIdx.x;
  if (r < c.num_ranks) {
    mw_settle(c, r); // a rank that is served from now on also gets what is noted below
    mw_release_combined(c, c.slot, r);
    if (mw_has(s->writers, r))
      mw_store_release_sys(&mw_inbox_at(c, r)->y_ready[c.slot], mw_word(s->op - 1, s->combines));
  }
  __syncthreads();
  if (r == 0) mw_mark_released(c, c.slot);
}
