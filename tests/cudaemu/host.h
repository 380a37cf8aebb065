// What kernels/memory_order.cuh is on the CPU: each thread of a grid is a fibre, each
// word that others see is an atomic, and every such access may let another
// fibre go first.
#pragma once

#include <algorithm>
#include <cstring>

#include "fibres.h"
#include "races.h"
#include "types.cuh"

using std::max;
using std::min;

#define MW_KERNEL static
#define MW_INLINE static inline
#define MW_UNROLL
#define MW_ROLLED
// One value per block and place in the source; a block runs one launch.
#define MW_SHARED(type, name) \
  static const char name##_key = 0; \
  type &name = *(type *)emu::shared(&name##_key, sizeof(type))

#define threadIdx (emu::self()->thread_idx)
#define blockIdx (emu::self()->block_idx)
#define blockDim (emu::self()->block_dim)
#define gridDim (emu::self()->grid_dim)

static inline void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
  emu::barrier({file, line});
}
static inline u32 __shfl_xor_sync(u32 lanes, u32 v, int apart) { return emu::shuffle_xor(lanes, v, apart); }

static inline int __popcll(u64 v) { return __builtin_popcountll(v); }

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

// Where a primitive stands, for the search for races.
#define MW_AT const char *file = __builtin_FILE(), int line = __builtin_LINE()

#define MW_LOAD(name, order, scope) \
  MW_INLINE u64 name(const u64 *p, MW_AT) { \
    emu::maybe_yield(); \
    return emu::load(reinterpret_cast<const uint64_t *>(p), emu::order, emu::scope, {file, line}); \
  }
#define MW_STORE(name, order, scope) \
  MW_INLINE void name(u64 *p, u64 v, MW_AT) { \
    emu::maybe_yield(); \
    emu::store(reinterpret_cast<uint64_t *>(p), v, emu::order, emu::scope, {file, line}); \
  }
#define MW_CHANGE(name, does, type, as, order, scope) \
  MW_INLINE type name(type *p, type v, MW_AT) { \
    emu::maybe_yield(); \
    return emu::does(reinterpret_cast<as *>(p), v, emu::order, emu::scope, {file, line}); \
  }

MW_LOAD(mw_load_acquire_sys, ACQUIRE, SYS)
MW_LOAD(mw_load_relaxed_sys, RELAXED, SYS)
MW_LOAD(mw_peek_gpu, PEEK, GPU)
MW_LOAD(mw_peek_sys, PEEK, SYS)
MW_INLINE mw_quad mw_read_quad(const void *p, MW_AT) {
  emu::maybe_yield();
  uint64_t v[2];
  for (int i = 0; i < 2; i++) v[i] = emu::load((const uint64_t *)p + i, emu::RELAXED, emu::SYS, {file, line});
  mw_quad q;
  memcpy(&q, v, sizeof q);
  if (emu::spoiling) memset((void *)p, 0xa5, sizeof q);
  return q;
}
MW_STORE(mw_store_release_sys, RELEASE, SYS)
MW_STORE(mw_store_relaxed_sys, RELAXED, SYS)
MW_CHANGE(mw_add_relaxed_sys, add, u64, uint64_t, RELAXED, SYS)
MW_CHANGE(mw_add_relaxed_gpu, add, u32, uint32_t, RELAXED, GPU)
MW_CHANGE(mw_swap_if_zero_gpu, swap_if_zero, u64, uint64_t, ACQ_REL, GPU)
MW_INLINE u64 mw_swap_if_gpu(u64 *p, u64 old, u64 v, MW_AT) {
  emu::maybe_yield();
  return emu::swap_if(reinterpret_cast<uint64_t *>(p), old, v, emu::ACQ_REL, emu::GPU, {file, line});
}
MW_CHANGE(mw_or_gpu, bit_or, u64, uint64_t, RELAXED, GPU)
MW_CHANGE(mw_or_block, bit_or, u64, uint64_t, RELAXED, GPU)
MW_CHANGE(mw_and_gpu, bit_and, u64, uint64_t, RELAXED, GPU)
MW_INLINE void mw_count_gpu(u64 *p, MW_AT) {
  emu::maybe_yield();
  emu::add(reinterpret_cast<uint64_t *>(p), 1, emu::RELAXED, emu::GPU, {file, line});
}
MW_INLINE void mw_fence_sys(MW_AT) { emu::fence({file, line}); }
MW_INLINE u64 mw_now_ns() { return emu::now_ns(); }
MW_INLINE void mw_pause() { emu::pause(); }
