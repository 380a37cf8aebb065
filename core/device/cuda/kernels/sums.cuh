// Sums of rows: docs/numerics.md, "Reduce". Every function here is for one thread.
#pragma once

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

// Stores eight values of a sum at place i, as bf16 or float32. A NaN is the canonical one.
template <bool fp32_out, bool fp32, bool runs> MW_INLINE void mw_put_sum(mw_quad *out, int i, const mw_sum<fp32, runs> &s) {
  if constexpr (!fp32_out) {
    out[i] = mw_sum_out(s);
    return;
  }
  MW_UNROLL
  for (int j = 0; j < 8 && fp32_out; j++)
    out[2 * i + j / 4].v[j % 4] = s.sum[j] == s.sum[j] ? mw_bits_of(s.sum[j]) : 0x7fc00000u;
}

// Eight values of a token's sum in each of some columns that are step apart, of n. The
// loads of so many terms, in all columns, are under way together.
template <bool fp32, bool runs, int terms, int columns, bool fp32_out = false>
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
    if (i + j * step < n) mw_put_sum<fp32_out>(out, i + j * step, s[j]);
}
