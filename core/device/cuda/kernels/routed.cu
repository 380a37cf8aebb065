// Rows of scatters and gathers between the caller's memory and this rank's own. Which row
// goes where, the host has checked.
#include "sums.cuh"

// One thread's part of a row.
template <class Unit> MW_INLINE void mw_move_row(const mw_move_args &a, i64 i) {
  i64 from = a.moves[2 * i], to = a.moves[2 * i + 1];
  const Unit *source = (const Unit *)(a.from + max(from, (i64)0) * a.bytes);
  Unit *target = (Unit *)(a.to + to * a.bytes);
  for (i64 j = threadIdx.x % a.lanes; j < a.bytes / (i64)sizeof(Unit); j += a.lanes) target[j] = from < 0 ? Unit{} : source[j];
}

MW_KERNEL void moewire_rows_move(const mw_move_args a) {
  if (mw_failed(a.c)) return;
  u64 bits = (u64)a.from | (u64)a.to | (u64)a.bytes;
  i64 first = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / a.lanes, step = (i64)gridDim.x * blockDim.x / a.lanes;
  for (i64 i = first; i < a.num; i += step) {
    if (bits % 16 == 0)
      mw_move_row<mw_quad>(a, i);
    else if (bits % 4 == 0)
      mw_move_row<u32>(a, i);
    else
      mw_move_row<u8>(a, i);
  }
}

// Lists the terms of a sum: biases, then rows. Returns how many there are at most.
MW_INLINE int mw_list_terms(const mw_sum_args &a, i64 t, i64 bytes, mw_terms *p) {
  int biases = (a.bias[0] != 0) + (a.bias[1] != 0), num = biases + (int)a.width;
  int all = (num + MW_MOST_LOADS - 1) / MW_MOST_LOADS * MW_MOST_LOADS;
  for (int j = threadIdx.x; j < all; j += blockDim.x) {
    const u8 *bias = j == 0 && a.bias[0] ? a.bias[0] : a.bias[1];
    i64 row = j >= biases && j < num ? a.terms[t * a.width + j - biases] : -1;
    p->row[j] = j < biases ? bias + t * bytes : row >= 0 ? a.rows + row * bytes : 0;
    p->weight[j] = 1.0f;
    p->ends[j] = 0;
  }
  return num;
}

// Adds up what came with the rows of a sum.
MW_INLINE void mw_sum_weights(const mw_sum_args &a, i64 t) {
  int topk = a.c.topk;
  for (int k = threadIdx.x; k < topk; k += blockDim.x) {
    float sum = 0;
    for (i64 j = 0; j < a.width; j++) {
      i64 row = a.terms[t * a.width + j];
      if (row >= 0) sum = __fadd_rn(sum, a.weights[row * topk + k]);
    }
    a.out_weights[t * topk + k] = sum;
  }
}

template <bool fp32, bool fp32_out> MW_INLINE void mw_sum_rows(const mw_sum_args &a) {
  MW_SHARED(mw_terms, p);
  if (mw_failed(a.c)) return;
  int hidden = a.c.hidden, n = hidden / 8;
  for (i64 t = blockIdx.x; t < a.num; t += gridDim.x) {
    int num = mw_list_terms(a, t, hidden * (fp32 ? 4 : 2), &p);
    __syncthreads();
    mw_quad *out = (mw_quad *)(a.out + t * hidden * (fp32_out ? 4 : 2));
    for (int i = threadIdx.x; i < n; i += blockDim.x)
      mw_sum_to<fp32, false, fp32 ? MW_LOADS / 2 : MW_LOADS, 1, fp32_out>(out, &p, num, i, n, blockDim.x);
    if (a.weights) mw_sum_weights(a, t);
    __syncthreads();
  }
}

// One for each type of rows and sums.
MW_KERNEL void moewire_rows_sum(const mw_sum_args a) { mw_sum_rows<false, false>(a); }
MW_KERNEL void moewire_rows_sum_fp32(const mw_sum_args a) { mw_sum_rows<true, false>(a); }
MW_KERNEL void moewire_rows_sum_fp32_out(const mw_sum_args a) { mw_sum_rows<true, true>(a); }
