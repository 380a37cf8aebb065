// Where the rows of a combine lie, and the outputs of which owners it needs.
#pragma once

#include "slots.cuh"

// The rank that a selection's row went to, or -1.
MW_INLINE int mw_went_to(const i64 *where, i64 at) { return where[at] < 0 ? -1 : (int)(where[at] >> 48); }

// Selections that a thread of mw_needed looks at together.
enum { MW_LOOKS = 4 };

// Of some owners, those that a combine needs: it does not leave out all their rows. All threads.
// Sums by rank may be made elsewhere, by what was dispatched: nothing is left out of
// those. Mostly the first selections name every owner; the others are not looked at then.
MW_INLINE u64 mw_needed(const mw_common &c, const i64 *where, u64 owners) {
  MW_SHARED(u64, found);
  if (c.flags & (MW_FLAG_FLAT | MW_FLAG_PRE_REDUCE)) return owners;
  if (threadIdx.x == 0) found = 0;
  i64 n = (i64)c.num_tokens * c.topk, step = (i64)MW_LOOKS * blockDim.x;
  __syncthreads();
  for (i64 first = 0; first < n && (found & owners) != owners; first += step) {
    u64 mine = 0;
    MW_UNROLL
    for (int j = 0; j < MW_LOOKS; j++) {
      i64 at = first + j * (i64)blockDim.x + threadIdx.x;
      if (at < n && mw_went_to(where, at) >= 0 && c.topk_idx[at] != -1) mine |= 1ull << mw_went_to(where, at);
    }
    __syncthreads(); // all have looked at found
    if (mine) mw_or_block(&found, mine);
    __syncthreads();
  }
  return found & owners;
}
