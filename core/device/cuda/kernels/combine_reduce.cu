// Combine, last part: each token pulls its rows and adds them up, in order of k
// (docs/numerics.md); then says that they are read.
#include "numbers.cuh"
#include "slots.cuh"

struct mw_terms {
  const u8 *row[MW_MAX_TOPK]; // null: contributes nothing
  float weight[MW_MAX_TOPK];
};

MW_INLINE void mw_gather(const mw_reduce_args &a, int t, int k, mw_terms *p) {
  const mw_common &c = a.c;
  i64 at = (i64)t * c.topk + k, where = a.where[at];
  p->row[k] = 0;
  if (where < 0 || !mw_has(*a.use, (int)(where >> 48))) return;
  int owner = (int)(where >> 48);
  i64 row = where & 0xffffffffffffll;
  p->row[k] = mw_slab_at(c, owner, c.state->slot[c.slot].slab_of[owner]) + c.slab.y + row * c.slab.output_bytes;
  p->weight[k] = a.weights[at];
}

MW_INLINE float mw_add_term(float sum, float weight, float value) { return __fadd_rn(sum, __fmul_rn(weight, value)); }

// Eight values of bf16 rows.
MW_INLINE void mw_add_narrow(float *sum, const u8 *row, int i, float w) {
  mw_quad v = ((const mw_quad *)row)[i];
  for (int j = 0; j < 4; j++) {
    sum[2 * j] = mw_add_term(sum[2 * j], w, mw_from_bf16(v.v[j] & 0xffffu));
    sum[2 * j + 1] = mw_add_term(sum[2 * j + 1], w, mw_from_bf16(v.v[j] >> 16));
  }
}

// Eight values of float32 rows.
MW_INLINE void mw_add_wide(float *sum, const u8 *row, int i, float w) {
  for (int half = 0; half < 2; half++) {
    mw_quad v = ((const mw_quad *)row)[2 * i + half];
    for (int j = 0; j < 4; j++) sum[4 * half + j] = mw_add_term(sum[4 * half + j], w, mw_float_of(v.v[j]));
  }
}

MW_INLINE void mw_reduce_token(const mw_reduce_args &a, int t, const mw_terms *p) {
  const mw_common &c = a.c;
  mw_quad *out = (mw_quad *)(a.out + (i64)t * c.hidden * 2);
  for (int i = threadIdx.x; i < c.hidden / 8; i += blockDim.x) {
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int k = 0; k < c.topk; k++) {
      if (!p->row[k]) continue;
      if (c.flags & MW_FLAG_WIDE)
        mw_add_wide(sum, p->row[k], i, p->weight[k]);
      else
        mw_add_narrow(sum, p->row[k], i, p->weight[k]);
    }
    mw_quad v;
    for (int j = 0; j < 4; j++) v.v[j] = mw_to_bf16(sum[2 * j]) | mw_to_bf16(sum[2 * j + 1]) << 16;
    out[i] = v;
  }
}

MW_KERNEL void moewire_combine_reduce(const mw_reduce_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_terms, p);
  MW_SHARED(u32, skip);
  if (threadIdx.x == 0) skip = mw_failed(c);
  __syncthreads();
  for (int t = blockIdx.x; t < c.num_tokens && !skip; t += gridDim.x) {
    for (int k = threadIdx.x; k < c.topk; k += blockDim.x) mw_gather(a, t, k, &p);
    __syncthreads();
    mw_reduce_token(a, t, &p);
    __syncthreads();
  }
  if (!mw_is_last(c, MW_STEP_REDUCE) || skip) return;
  // After the last read: an owner that no longer waited for this rank may have
  // used the slab again under the reads.
  mw_slot *s = &c.state->slot[c.slot];
  if (threadIdx.x == 0) {
    if (!mw_in(c, mw_members(c), c.rank)) mw_fail(c, MW_ERROR_FENCED);
    s->reduced = s->combines;
  }
  __syncthreads();
  int r = threadIdx.x;
  if (r < c.num_ranks && mw_has(s->owners & ~mw_owed(s), r) && !mw_failed(c))
    mw_store_release_sys(mw_line_at(mw_slab_at(c, r, s->slab_of[r]), c.slab.done, c.rank), mw_word(s->op - 1, s->combines));
}
