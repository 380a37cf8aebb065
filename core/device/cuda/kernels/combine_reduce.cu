// Combine, last part: each token pulls its rows and adds them up, in order of k
// (docs/numerics.md); then says that they are read.
#include "sums.cuh"

// Ends the operation's record; all threads.
MW_INLINE void mw_record_combine(const mw_common &c) {
  mw_slot *s = &c.state->slot[c.slot];
  if (!c.counters || threadIdx.x != 0 || s->ticket != c.ticket) return;
  mw_record_end(c, MW_RECORD_COMBINE, mw_failed(c), s->inflight.num_pulled, 0, c.slab.output_bytes);
}

template <bool fp32, bool runs, int terms, int columns> MW_INLINE void mw_reduce(const mw_reduce_args &a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_terms, p);
  MW_SHARED(u32, skip);
  u32 pulled = 0;
  if (threadIdx.x == 0) skip = mw_failed(c);
  __syncthreads();
  for (int t = blockIdx.x; t < c.num_tokens && !skip; t += gridDim.x) {
    pulled += mw_gather<runs>(a, t, &p);
    __syncthreads();
    mw_quad *out = (mw_quad *)(a.out + (i64)t * c.hidden * 2);
    int num_terms = c.flags & MW_FLAG_FLAT ? min(c.topk, c.num_ranks) : c.topk, n = c.hidden / 8;
    for (int i = threadIdx.x; i < n; i += columns * blockDim.x)
      mw_sum_to<fp32, runs, terms, columns>(out, &p, num_terms, i, n, blockDim.x);
    __syncthreads();
  }
  if (pulled && c.counters) mw_add_relaxed_gpu(&mw_inflight_of(c)->num_pulled, pulled);
  if (!mw_is_last(c, MW_STEP_REDUCE)) return;
  if (skip) {
    mw_record_combine(c);
    return;
  }
  // After the last read: an owner that no longer waited for this rank may have
  // used the slab again under the reads.
  mw_slot *s = &c.state->slot[c.slot];
  if (threadIdx.x == 0) {
    if (!mw_has(mw_look(c), c.rank)) mw_fail(c, MW_ERROR_FENCED);
    s->reduced = s->combines;
  }
  __syncthreads();
  int r = threadIdx.x;
  if (r < c.num_ranks && mw_has(s->owners & ~mw_unopened(s), r) && !mw_failed(c))
    mw_store_release_sys(mw_line_at(mw_slab_at(c, r, s->slab_of[r]), c.slab.done, c.rank), mw_word(s->op - 1, s->combines));
  mw_record_combine(c);
}

// One for each type of rows, and for sums by rank. The usual one has others beside it, by how
// many terms and columns a thread loads together. A term of float32 is two loads.
MW_KERNEL void moewire_combine_reduce(const mw_reduce_args a) { mw_reduce<false, false, MW_LOADS, 1>(a); }
MW_KERNEL void moewire_combine_reduce_narrow(const mw_reduce_args a) { mw_reduce<false, false, MW_LOADS / 2, 2>(a); }
MW_KERNEL void moewire_combine_reduce_deep(const mw_reduce_args a) { mw_reduce<false, false, MW_MOST_LOADS, 1>(a); }
MW_KERNEL void moewire_combine_reduce_fp32(const mw_reduce_args a) { mw_reduce<true, false, MW_LOADS / 2, 1>(a); }
MW_KERNEL void moewire_combine_reduce_runs(const mw_reduce_args a) { mw_reduce<false, true, MW_LOADS, 1>(a); }
MW_KERNEL void moewire_combine_reduce_runs_fp32(const mw_reduce_args a) { mw_reduce<true, true, MW_LOADS / 2, 1>(a); }
