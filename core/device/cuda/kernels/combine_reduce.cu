// Combine, last part: each token pulls its rows and adds them up, in order of k
// (docs/numerics.md); then says that they are read.
#include "streams.cuh"
#include "terms.cuh"

// Eight values of a row.
template <bool fp32> struct mw_values {
  mw_quad v[fp32 ? 2 : 1];
};

template <bool fp32> MW_INLINE void mw_load_values(mw_values<fp32> *to, const u8 *row, int i) {
  const mw_quad *from = (const mw_quad *)row + (fp32 ? 2 * i : i);
  to->v[0] = from[0];
  if constexpr (fp32) to->v[1] = from[1];
}

template <bool fp32> MW_INLINE float mw_value_of(const mw_values<fp32> &v, int j) {
  if constexpr (fp32)
    return mw_float_of(v.v[j / 4].v[j % 4]);
  else
    return mw_from_bf16(v.v[0].v[j / 2] >> (j % 2 * 16) & 0xffffu);
}

template <bool fp32> MW_INLINE void mw_add_term(float *sum, const mw_values<fp32> &v, float weight) {
  MW_UNROLL
  for (int j = 0; j < 8; j++) sum[j] = __fadd_rn(sum[j], __fmul_rn(weight, mw_value_of<fp32>(v, j)));
}

// Ends the sum of one rank: it is rounded to the type of the rows, and added.
template <bool fp32> MW_INLINE void mw_end_run(float *all, float *sum) {
  MW_UNROLL
  for (int j = 0; j < 8; j++) {
    all[j] = __fadd_rn(all[j], fp32 ? sum[j] : mw_from_bf16(mw_to_bf16(sum[j])));
    sum[j] = 0;
  }
}

// Eight values of a sum, and with runs those of the rank that is being added.
template <bool fp32, bool runs> struct mw_sum {
  float sum[8], all[8];
};

template <bool fp32, bool runs> MW_INLINE mw_quad mw_sum_out(const mw_sum<fp32, runs> &s) {
  const float *out = runs ? s.all : s.sum;
  mw_quad v;
  MW_UNROLL
  for (int j = 0; j < 4; j++) v.v[j] = mw_to_bf16(out[2 * j]) | mw_to_bf16(out[2 * j + 1]) << 16;
  return v;
}

// Eight values of a token's sum in each of some columns that are step apart, of n. The
// loads of so many terms, in all columns, are under way together.
template <bool fp32, bool runs, int terms, int columns>
MW_INLINE void mw_sum_to(mw_quad *out, const mw_terms *p, int num_terms, int i, int n, int step) {
  mw_sum<fp32, runs> s[columns] = {};
  for (int k = 0; k < num_terms; k += terms) {
    mw_values<fp32> v[terms][columns] = {};
    MW_UNROLL
    for (int j = 0; j < terms * columns; j++)
      if (p->row[k + j / columns] && i + j % columns * step < n)
        mw_load_values<fp32>(&v[j / columns][j % columns], p->row[k + j / columns], i + j % columns * step);
    MW_UNROLL
    for (int j = 0; j < terms * columns; j++) {
      mw_sum<fp32, runs> &to = s[j % columns];
      if (p->row[k + j / columns]) mw_add_term<fp32>(to.sum, v[j / columns][j % columns], p->weight[k + j / columns]);
      if (runs && p->ends[k + j / columns]) mw_end_run<fp32>(to.all, to.sum);
    }
  }
  MW_UNROLL
  for (int j = 0; j < columns; j++)
    if (i + j * step < n) out[i + j * step] = mw_sum_out(s[j]);
}

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
