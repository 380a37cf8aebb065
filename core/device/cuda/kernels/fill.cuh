// Overwrites what operations have left in a slab, so that misuse shows: rows that no
// rank wrote are NaN in every dtype then, and -1 as an id.
#pragma once

#include "control_words.cuh"

// All threads of one block. A region begins at a page, and none begins within a
// quad of its end, so the last one is filled whole.
MW_INLINE void mw_fill_region(u8 *to, i64 bytes) {
  const mw_quad filled = {{~0u, ~0u, ~0u, ~0u}};
  for (i64 i = threadIdx.x; i * (i64)sizeof(mw_quad) < bytes; i += blockDim.x) ((mw_quad *)to)[i] = filled;
}

// Rows, what stands beside them, and their outputs, as far as a call has room for
// them. Not the words that ranks tell one another.
MW_INLINE void mw_fill_slab(const mw_common &c, u8 *slab) {
  const mw_slab &s = c.slab;
  i64 rows = c.local_experts * s.rows_per_expert;
  mw_fill_region(slab + s.src_info, rows * 4);
  mw_fill_region(slab + s.scales, rows * s.scale_words * 4);
  if (s.topk_idx) mw_fill_region(slab + s.topk_idx, rows * c.topk * 8);
  if (s.topk_weights) mw_fill_region(slab + s.topk_weights, rows * c.topk * 4);
  MW_ROLLED
  for (int i = 0; i < MW_NUM_EXTRAS; i++) mw_fill_region(slab + s.extra[i], rows * s.extra_bytes[i]);
  mw_fill_region(slab + s.rows, rows * s.row_bytes);
  mw_fill_region(slab + s.y, rows * s.output_bytes);
}
