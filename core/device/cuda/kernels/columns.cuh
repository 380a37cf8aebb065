// What a token brings beside its flat row: docs/protocol.md, "Flat rows".
#pragma once

#include "streams.cuh"
#include "waits.cuh"

// Where a token's rows go, by selection.
struct mw_places {
  u8 *row[MW_MAX_TOPK];    // null: none, or the place of an earlier selection
  u8 *scales[MW_MAX_TOPK]; // of the row's first block
  u8 *slab[MW_MAX_TOPK];   // of its owner
  i32 pos[MW_MAX_TOPK];    // in its block
  u8 owner[MW_MAX_TOPK];
};

// Ids of the owner's own experts, counted from its first one, and their weights;
// other selections are none there.
MW_INLINE void mw_place_topk(const mw_place_args &a, int t, const mw_places *p, int k) {
  const mw_common &c = a.c;
  i64 first = (i64)p->owner[k] * c.block_experts, row = (i64)p->pos[k] * c.topk;
  i64 *ids = (i64 *)(p->slab[k] + c.slab.topk_idx) + row;
  float *weights = (float *)(p->slab[k] + c.slab.topk_weights) + row;
  for (int i = threadIdx.x; i < c.topk; i += blockDim.x) {
    i64 at = (i64)t * c.topk + i, local = c.topk_idx[at] - first;
    bool there = local >= 0 && local < c.block_experts;
    ids[i] = there ? local : -1;
    weights[i] = there ? a.weights[at] : 0.0f;
  }
}

template <class Unit> MW_INLINE void mw_copy_units(u8 *to, const u8 *from, int bytes) {
  for (int i = threadIdx.x; i < bytes / (int)sizeof(Unit); i += blockDim.x) ((Unit *)to)[i] = ((const Unit *)from)[i];
}

// Columns begin at pages, so that the widest access is the one that a row's width
// and the caller's address allow.
MW_INLINE void mw_copy_column(u8 *to, const u8 *from, int bytes) {
  u64 bits = (u64)from | bytes;
  if (bits % 16 == 0 && (u64)to % 16 == 0)
    mw_copy_units<mw_quad>(to, from, bytes);
  else if (bits % 4 == 0 && (u64)to % 4 == 0)
    mw_copy_units<u32>(to, from, bytes);
  else
    mw_copy_units<u8>(to, from, bytes);
}

MW_INLINE void mw_place_columns(const mw_place_args &a, int t, const mw_places *p) {
  const mw_common &c = a.c;
  for (int k = 0; k < c.topk; k++) {
    if (!p->row[k]) continue;
    if (!(c.flags & MW_FLAG_NO_ROUTING)) mw_place_topk(a, t, p, k);
    for (int i = 0; i < MW_NUM_EXTRAS; i++) {
      i64 bytes = c.slab.extra_bytes[i];
      if (bytes) mw_copy_column(p->slab[k] + c.slab.extra[i] + p->pos[k] * bytes, a.extra[i] + t * bytes, (int)bytes);
    }
  }
}

// Takes the ids out of rows that were reserved and that no counted source has
// filled, so that no expert runs for them. Sources lie in order of
// rank, at places [R].
MW_INLINE void mw_clear_holes(const mw_common &c, u8 *slab, const i64 *places, i64 num_rows) {
  i64 *ids = (i64 *)(slab + c.slab.topk_idx);
  float *weights = (float *)(slab + c.slab.topk_weights);
  i64 next = 0;
  for (int q = 0; q <= c.num_ranks; q++) {
    i64 begin = q < c.num_ranks ? (i64)((u64)places[q] >> 32) : num_rows, n = q < c.num_ranks ? places[q] & 0xffffffff : 1;
    if (n == 0) continue;
    for (i64 i = next * c.topk + threadIdx.x; i < min(begin, num_rows) * c.topk; i += blockDim.x) {
      ids[i] = -1;
      weights[i] = 0.0f;
    }
    next = begin + n;
  }
}

// Compares the ids of the first rows with what a source can have sent: -1, or one of this
// rank's own experts. Others become none. missed: a rank has not come, which may have
// another shape; then they are no error.
MW_INLINE void mw_check_ids(const mw_common &c, u8 *slab, i64 num_rows, bool missed) {
  i64 *ids = (i64 *)(slab + c.slab.topk_idx);
  float *weights = (float *)(slab + c.slab.topk_weights);
  for (i64 i = threadIdx.x; i < num_rows * c.topk; i += blockDim.x) {
    i64 id = ids[i];
    if (id >= -1 && id < c.block_experts) continue;
    ids[i] = -1;
    weights[i] = 0.0f;
    if (!missed) mw_fail(c, MW_ERROR_WILD, MW_WILD_ID, i, id, c.block_experts - 1);
  }
}
