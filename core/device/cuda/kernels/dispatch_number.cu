// Dispatch in deterministic order, before its first part: numbers this rank's
// rows in each block of rows, in order of token. One block of threads for each.
#include "slots.cuh"

enum { MW_NUMBER_THREADS = 256 }; // of a block, at most

struct mw_number_rows {
  u32 rows[MW_NUMBER_THREADS];
};

// Whether a selection makes a row in a block: the first one of its token.
MW_INLINE bool mw_makes_row(const mw_common &c, i64 at, int block) {
  if (mw_block_of(c, c.topk_idx[at]) != block) return false;
  for (i64 earlier = at - at % c.topk; earlier < at; earlier++)
    if (mw_block_of(c, c.topk_idx[earlier]) == block) return false;
  return true;
}

// Each thread has a part of the selections, and looks at it twice: to count, and
// to number, once it is known how many come before.
MW_KERNEL void moewire_rows_number(const mw_plan_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_number_rows, t);
  i64 all = (i64)c.num_tokens * c.topk, part = (all + blockDim.x - 1) / blockDim.x;
  i64 first = min((i64)threadIdx.x * part, all), end = min(first + part, all);
  int block = blockIdx.x;
  u32 rows = 0, index = 0;
  for (i64 at = first; at < end; at++) rows += mw_makes_row(c, at, block);
  t.rows[threadIdx.x] = rows;
  __syncthreads();
  for (u32 before = 0; before < threadIdx.x; before++) index += t.rows[before];
  for (i64 at = first; at < end; at++)
    if (mw_makes_row(c, at, block)) a.index[at] = (i32)index++;
  if (threadIdx.x == blockDim.x - 1) a.count[block] = index;
}
