// Dispatch, third part: waits for the rows of all active ranks and counts them.
// One block.
#include "slots.cuh"

// The first parameter on which two ranks differ and must not; -1: none.
MW_INLINE int mw_differs(const mw_common &c, const u64 *p, u64 *mine) {
  u64 own[] = {0, (u64)c.max_tokens, (u64)c.hidden, (u64)c.num_experts, c.flags & MW_FLAG_PARAMS};
  for (int i = MW_PARAM_TOKENS_MAX; i <= MW_PARAM_FLAGS; i++) {
    *mine = own[i];
    if (mw_load_relaxed_sys(&p[i]) != own[i]) return i;
  }
  return -1;
}

// One thread per rank: whether its rows count.
MW_INLINE bool mw_arrived(const mw_common &c, const mw_slot *s, int rank) {
  if (!mw_has(s->writers, rank) || (c.active && c.active[rank] == 0)) return false;
  u8 *slab = mw_slab_at(c, c.rank, c.slot);
  u64 want = mw_word(s->op - 1, 0);
  const u64 *arrive = mw_line_at(slab, c.slab.arrive, rank);
  if (mw_await(c, rank, [&] { return mw_load_acquire_sys(arrive) == want; }) == MW_GONE) return false;
  u64 mine;
  const u64 *p = mw_line_at(slab, c.slab.params, rank);
  int differs = mw_differs(c, p, &mine);
  if (differs < 0) return true;
  mw_fail(c, MW_ERROR_MISMATCH, rank, differs, mine, p[differs]);
  return false;
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
  if (a.stats && (int)threadIdx.x < c.num_ranks)
    for (int l = 0; l < c.local_experts; l++)
      a.stats[threadIdx.x] += (i64)((u64)a.layout[l * c.num_ranks + threadIdx.x] & 0xffffffffu);
}
