// Rows through registers, 16 bytes at a time: every row is a multiple of them.
#pragma once

#include "order.cuh"

// How many loads of 16 bytes each thread has under way before it waits for the
// first.
enum { MW_LOADS = 4 };

// Hands every step-th of n quads to store, from the first-th on.
template <class Store> MW_INLINE void mw_stream(const mw_quad *from, i64 first, i64 n, i64 step, Store store) {
  for (i64 i = first; i < n; i += MW_LOADS * step) {
    mw_quad v[MW_LOADS] = {};
    MW_UNROLL
    for (int j = 0; j < MW_LOADS; j++)
      if (i + j * step < n) v[j] = from[i + j * step];
    MW_UNROLL
    for (int j = 0; j < MW_LOADS; j++)
      if (i + j * step < n) store(i + j * step, v[j]);
  }
}
