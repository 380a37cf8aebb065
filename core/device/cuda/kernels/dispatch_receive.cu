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
  // A rank that has only counted takes part in another form: it gets no answer here.
  int end = mw_await(c, rank, [&] {
    return mw_load_acquire_sys(arrive) == want || (!ordered && mw_load_acquire_sys(counted) == want);
  });
  if (end == MW_RANK_OUT) return false;
  return mw_agrees(c, slab, rank);
}

// One thread: whether a rank that counts will dispatch again.
MW_INLINE bool mw_peers_have_more(const mw_common &c, u64 counted) {
  u8 *slab = mw_slab_at(c, c.rank, c.slot);
  for (int q = 0; q < c.num_ranks; q++)
    if (mw_has(counted, q) && mw_load_relaxed_sys(mw_line_at(slab, c.slab.params, q) + MW_PARAM_TOKENS) >> MW_HAS_MORE_SHIFT) return true;
  return false;
}

// One thread, once the parameters of all are here and the same: owners that had no room.
// A rank that has not come may have taken it, in another shape.
MW_INLINE void mw_report_lacking(const mw_common &c, const mw_slot *s, u64 missed) {
  u64 lacks = s->lacks & ~mw_peek_gpu(&c.state->wild); // of the others the host knows
  for (int q = 0; q < c.num_ranks; q++) {
    if (!mw_has(lacks, q)) continue;
    u64 held = mw_load_relaxed_sys(&c.report->held[q]);
    if (missed & ~s->lacks)
      mw_fail(c, MW_ERROR_CAPACITY, q, held);
    else
      mw_violates_capacity(c, q, MW_WILD_COUNTER, held);
  }
}

// Counts the rows that came, by expert and by source.
MW_INLINE void mw_record_received(const mw_receive_args &a) {
  const mw_common &c = a.c;
  mw_inflight *f = mw_inflight_of(c);
  bool flat = c.flags & MW_FLAG_FLAT;
  u64 *shown = (u64 *)(c.counters + 1);
  if (threadIdx.x == 0 && !flat) mw_store_relaxed_sys(&c.counters->num_experts, c.local_experts);
  for (int l = threadIdx.x; l < c.local_experts; l += blockDim.x) {
    u32 rows = 0;
    for (int r = 0; r < c.num_ranks; r++) {
      u32 n = (u32)a.layout[l * c.num_ranks + r];
      if (n) mw_add_relaxed_gpu(&f->rows_from[r], n);
      rows += n;
    }
    if (rows && !flat) mw_store_relaxed_sys(&shown[l], a.experts[l] += rows);
  }
}

// Ends the operation's record; all threads.
MW_INLINE void mw_record_dispatch(const mw_receive_args &a, bool failed) {
  const mw_common &c = a.c;
  mw_inflight *f = mw_inflight_of(c);
  if (!failed) mw_record_received(a);
  __syncthreads();
  int r = threadIdx.x;
  if (r < c.num_ranks && !failed) mw_record_rows(c, r);
  if (r != (int)blockDim.x - 1) return;
  u64 out = 0, in = 0;
  for (int q = 0; q < c.num_ranks && !failed; q++) {
    out += f->rows_to[q];
    in += f->rows_from[q];
  }
  f->num_received = (u32)in;
  mw_record_end(c, MW_RECORD_DISPATCH, failed, out, in, mw_record_row_bytes(c));
}

MW_KERNEL void moewire_rows_receive(const mw_receive_args a) {
  const mw_common &c = a.c;
  MW_SHARED(u64, counted);
  MW_SHARED(u64, missed);
  mw_slot *s = &c.state->slot[c.slot];
  if (threadIdx.x == 0) {
    if (s->ticket != c.ticket) mw_fail(c, MW_ERROR_STALE, c.slot);
    s->counted = 0;
    mw_record_resume(c, MW_RECORD_DISPATCH);
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
  if (threadIdx.x == 0) {
    counted = mw_failed(c) ? 0 : mw_load_relaxed_sys(&s->counted);
    missed = s->writers & ~counted;
    if (s->lacks && counted) mw_report_lacking(c, s, missed);
    if (a.peers_have_more) *a.peers_have_more = mw_peers_have_more(c, counted);
  }
  __syncthreads();
  if (c.counters && threadIdx.x == blockDim.x - 1) {
    mw_record_waits(c, MW_RECORD_DISPATCH);
    s->inflight.seen = mw_now_ns();
  }
  const u8 *slab = mw_slab_at(c, c.rank, c.slot);
  for (int l = threadIdx.x; l < c.local_experts; l += blockDim.x) {
    u64 rows = counted ? mw_load_relaxed_sys((const u64 *)(slab + c.slab.counter) + l) : 0;
    if (rows > (u64)c.slab.rows_per_expert) { // a rank that has not come may have another shape
      if (!missed) mw_fail(c, MW_ERROR_WILD, MW_WILD_COUNTER, l, rows, c.slab.rows_per_expert);
      rows = c.slab.rows_per_expert;
    }
    a.recv_count[l] = (i32)rows;
    a.rows[l] = (u32)rows;
  }
  for (int i = threadIdx.x; i < c.local_experts * c.num_ranks; i += blockDim.x) {
    u64 range = mw_has(counted, i % c.num_ranks) ? mw_load_relaxed_sys((const u64 *)(slab + c.slab.layout) + i) : 0;
    if (!mw_fits(range >> 32, range & 0xffffffffu, c.slab.rows_per_expert)) {
      mw_fail(c, MW_ERROR_WILD, MW_WILD_LAYOUT, i / c.num_ranks, range, c.slab.rows_per_expert);
      range = 0;
    }
    a.layout[i] = (i64)range;
  }
  __syncthreads();
  if (c.flags & MW_FLAG_FLAT && !(c.flags & MW_FLAG_NO_ROUTING)) {
    mw_clear_holes(c, mw_slab_at(c, c.rank, c.slot), a.layout, a.rows[0]);
    __syncthreads(); // holes have ids of earlier operations
    mw_check_ids(c, mw_slab_at(c, c.rank, c.slot), a.rows[0], missed != 0);
  }
  if (a.stats && (int)threadIdx.x < c.num_ranks)
    for (int l = 0; l < c.local_experts; l++)
      a.stats[threadIdx.x] += (i64)((u64)a.layout[l * c.num_ranks + threadIdx.x] & 0xffffffffu);
  if (c.counters && s->ticket == c.ticket) mw_record_dispatch(a, mw_failed(c));
}
