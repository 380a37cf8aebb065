// What kernels/order.cuh is on the CPU: each thread of a grid is a fibre, each
// word that others see is an atomic, and every such access may let another
// fibre go first.
#pragma once

#include <algorithm>
#include <cstring>

#include "fibres.h"
#include "types.cuh"

using std::max;
using std::min;

#define MW_KERNEL static
#define MW_INLINE static inline
// One value per block and place in the source; a block runs one launch.
#define MW_SHARED(type, name) \
  static const char name##_key = 0; \
  type &name = *(type *)emu::shared(&name##_key, sizeof(type))

#define threadIdx (emu::self()->thread_idx)
#define blockIdx (emu::self()->block_idx)
#define blockDim (emu::self()->block_dim)
#define gridDim (emu::self()->grid_dim)

static inline void __syncthreads() { emu::barrier(); }
static inline u32 __shfl_xor_sync(u32 lanes, u32 v, int apart) { return emu::shuffle_xor(lanes, v, apart); }

static inline float __uint_as_float(u32 u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}
static inline u32 __float_as_uint(float f) {
  u32 u;
  memcpy(&u, &f, sizeof u);
  return u;
}
// The build forbids fusing, so that these are what their names say.
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }

MW_INLINE u64 mw_load_acquire_sys(const u64 *p) {
  emu::maybe_yield();
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
MW_INLINE u64 mw_load_relaxed_sys(const u64 *p) {
  emu::maybe_yield();
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
MW_INLINE void mw_store_release_sys(u64 *p, u64 v) {
  emu::maybe_yield();
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
MW_INLINE void mw_store_relaxed_sys(u64 *p, u64 v) {
  emu::maybe_yield();
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
MW_INLINE u64 mw_add_relaxed_sys(u64 *p, u64 v) {
  emu::maybe_yield();
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
MW_INLINE u32 mw_add_relaxed_gpu(u32 *p, u32 v) {
  emu::maybe_yield();
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
MW_INLINE u32 mw_add_acq_rel_gpu(u32 *p, u32 v) {
  emu::maybe_yield();
  return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}
MW_INLINE u64 mw_swap_if_zero_gpu(u64 *p, u64 v) {
  emu::maybe_yield();
  u64 old = 0;
  __atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return old;
}
MW_INLINE void mw_or_gpu(u64 *p, u64 v) { __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }
MW_INLINE void mw_and_gpu(u64 *p, u64 v) { __atomic_fetch_and(p, v, __ATOMIC_RELAXED); }
MW_INLINE void mw_fence_sys() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
MW_INLINE u64 mw_now_ns() { return emu::now_ns(); }
MW_INLINE void mw_pause() { emu::pause(); }
