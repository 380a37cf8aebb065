// Rows through registers, 16 bytes at a time: every row is a multiple of them.
#pragma once

#include "memory_order.cuh"

// How many loads of 16 bytes each thread has under way before it waits for the
// first, where no variant says otherwise; and the most that any variant has.
// Which one runs is chosen in variants.go.
enum { MW_LOADS = 4, MW_MOST_LOADS = 8 };

// Hands every step-th of n quads to store, from the first-th on.
template <int loads = MW_LOADS, class Store>
MW_INLINE void mw_stream(const mw_quad *from, i64 first, i64 n, i64 step, Store store) {
  for (i64 i = first; i < n; i += loads * step) {
    mw_quad v[loads] = {};
    MW_UNROLL
    for (int j = 0; j < loads; j++)
      if (i + j * step < n) v[j] = from[i + j * step];
    MW_UNROLL
    for (int j = 0; j < loads; j++)
      if (i + j * step < n) store(i + j * step, v[j]);
  }
}
