// Brings a row of the caller's to its places, cast if asked to. Every function
// here is for one block, all its threads.
#pragma once

#include "columns.cuh"
#include "numbers.cuh"

template <int loads> MW_INLINE void mw_copy_row(const mw_common &c, const u8 *rows, int t, const mw_places *p) {
  const mw_quad *x = (const mw_quad *)(rows + (i64)t * c.hidden * 2);
  mw_stream<loads>(x, threadIdx.x, c.hidden / 8, blockDim.x, [&](i64 i, const mw_quad &v) {
    for (int k = 0; k < c.topk; k++)
      if (p->row[k]) ((mw_quad *)p->row[k])[i] = v;
  });
}

// The largest magnitude, by bits, of what 16 neighbouring lanes hold.
MW_INLINE u32 mw_largest(const mw_quad &v) {
  u32 most = 0;
  for (int i = 0; i < 4; i++) {
    u32 low = v.v[i] & 0x7fffu, high = v.v[i] >> 16 & 0x7fffu;
    most = max(most, max(low, high));
  }
  u32 lanes = 0xffffu << (threadIdx.x & 16);
  for (int apart = 8; apart > 0; apart /= 2) most = max(most, __shfl_xor_sync(lanes, most, apart));
  return most;
}

// column: how many bytes two scale words of a row are apart.
MW_INLINE void mw_store_scale(const mw_common &c, const mw_places *p, int k, int block, u32 stored, i64 column) {
  if (c.flags & MW_FLAG_UE8M0)
    p->scales[k][block / 4 * column + block % 4] = (u8)(stored >> 23);
  else
    *(u32 *)(p->scales[k] + block * column) = stored;
}

// The i-th eight values of a row, to all its places.
MW_INLINE void mw_cast_values(const mw_common &c, const mw_quad &v, int i, const mw_places *p, i64 column) {
  mw_cast cast = mw_cast_of(mw_largest(v), c.flags & (MW_FLAG_POW2 | MW_FLAG_UE8M0));
  u32 q[4];
  for (int j = 0; j < 4; j++)
    q[j] = mw_to_e4m3_pair(__fmul_rn(mw_from_bf16(v.v[j] & 0xffffu), cast.scale),
                           __fmul_rn(mw_from_bf16(v.v[j] >> 16), cast.scale));
  mw_pair out = {{q[0] | q[1] << 16, q[2] | q[3] << 16}};
  for (int k = 0; k < c.topk; k++) {
    if (!p->row[k]) continue;
    ((mw_pair *)p->row[k])[i] = out;
    if (i % 16 == 0) mw_store_scale(c, p, k, i / 16, cast.stored, column);
  }
}

// Eight values per thread and load; a block of scales is 16 neighbouring threads.
// Hidden is a multiple of 128 and a block of 32 threads, so such a group works or
// rests together, in each load.
template <int loads>
MW_INLINE void mw_cast_row(const mw_common &c, const u8 *rows, int t, const mw_places *p, i64 column) {
  const mw_quad *x = (const mw_quad *)(rows + (i64)t * c.hidden * 2);
  mw_stream<(loads < MW_LOADS ? loads : MW_LOADS)>(x, threadIdx.x, c.hidden / 8, blockDim.x,
                   [&](i64 i, const mw_quad &v) { mw_cast_values(c, v, (int)i, p, column); });
}
