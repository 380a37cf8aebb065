// Dispatch, third part: waits for the rows of all active ranks and counts them.
// One block.
#include "columns.cuh"
#include "slots.cuh"

// One thread per rank: whether its rows count.
MW_INLINE bool mw_arrived(const mw_common &c, const mw_slot *s, int rank) {
  if (!mw_has(s->placed, rank) || (c.active && c.active[rank] == 0)) return false;
  u8 *slab = mw_slab_at(c, c.rank, c.slot);
  u64 want = mw_word(s->op - 1, 0);
  const u64 *arrive = mw_line_at(slab, c.slab.arrive, rank), *counted = mw_line_at(slab, c.slab.counted, rank);
  bool ordered = c.flags & MW_FLAG_ORDERED;
  // Who has only counted takes part in another form: it gets no answer here.
  int end = mw_await(c, rank, [&] {
    return mw_load_acquire_sys(arrive) == want || (!ordered && mw_load_acquire_sys(counted) == want);
  });
  if (end == MW_GONE) return false;
  return mw_agrees(c, slab, rank);
}

MW_KERNEL void moewire_dispatch_receive(const mw_receive_args a) {
  const mw_common &c = a.c;
  MW_SHARED(u64, counted);
  mw_slot *s = &c.state->slot[c.slot];
  if (threadIdx.x == 0) {
    if (s->ticket != c.ticket) mw_fail(c, MW_ERROR_STALE, c.slot);
    s->counted = 0;
  }
  __syncthreads();
  mw_wait_together(c, [&](int r) {
    mw_settle(c, r);
    if (mw_arrived(c, s, r))
      mw_or_gpu(&s->counted, 1ull << r);
    else if (c.active)
      c.active[r] = 0;
  });
  __syncthreads();
  if (threadIdx.x == 0) counted = mw_failed(c) ? 0 : mw_load_relaxed_sys(&s->counted);
  __syncthreads();
  const u8 *slab = mw_slab_at(c, c.rank, c.slot);
  for (int l = threadIdx.x; l < c.local_experts; l += blockDim.x) {
    u64 rows = counted ? mw_load_relaxed_sys((const u64 *)(slab + c.slab.counter) + l) : 0;
    if (rows > (u64)c.slab.rows_per_expert) rows = c.slab.rows_per_expert;
    a.recv_count[l] = (i32)rows;
    a.rows[l] = (u32)rows;
  }
  for (int i = threadIdx.x; i < c.local_experts * c.num_ranks; i += blockDim.x) {
    u64 range = mw_has(counted, i % c.num_ranks) ? ((const u64 *)(slab + c.slab.layout))[i] : 0;
    a.layout[i] = (i64)range;
  }
  __syncthreads();
  if (c.flags & MW_FLAG_FLAT && !(c.flags & MW_FLAG_BARE))
    mw_clear_holes(c, mw_slab_at(c, c.rank, c.slot), a.layout, a.rows[0]);
  if (a.stats && (int)threadIdx.x < c.num_ranks)
    for (int l = 0; l < c.local_experts; l++)
      a.stats[threadIdx.x] += (i64)((u64)a.layout[l * c.num_ranks + threadIdx.x] & 0xffffffffu);
}
