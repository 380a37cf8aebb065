// Memory order, time and the few instructions that need PTX, each by its name.
//
// The scope "sys" is for words that another device or the host reads or
// writes; "gpu" for words of this device alone; "block" for what the threads of a
// block share. Nothing else in this folder has
// inline assembly. The host build (MW_HOST) has its own versions.
#pragma once

#include "types.cuh"

#ifdef MW_HOST
#include "host.h"
#else

#define MW_KERNEL extern "C" __global__
#define MW_INLINE __device__ __forceinline__
#define MW_UNROLL _Pragma("unroll")
#define MW_ROLLED _Pragma("unroll 1") // for loops with a large body
// A value that the threads of a block share.
#define MW_SHARED(type, name) __shared__ type name

MW_INLINE u64 mw_load_acquire_sys(const u64 *p) {
  u64 v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

MW_INLINE u64 mw_load_relaxed_sys(const u64 *p) {
  u64 v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

// 16 bytes that others may write to, read once: what is compared is what is used.
MW_INLINE mw_quad mw_read_quad(const void *p) {
  mw_quad q;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(q.v[0]), "=r"(q.v[1]), "=r"(q.v[2]), "=r"(q.v[3]) : "l"(p));
  return q;
}

// What may be out of date: for words that are looked at again, or by the host.
MW_INLINE u64 mw_peek_sys(const u64 *p) { return mw_load_relaxed_sys(p); }

MW_INLINE u64 mw_peek_gpu(const u64 *p) {
  u64 v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

MW_INLINE void mw_store_release_sys(u64 *p, u64 v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

MW_INLINE void mw_store_relaxed_sys(u64 *p, u64 v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

MW_INLINE u64 mw_add_relaxed_sys(u64 *p, u64 v) {
  u64 old;
  asm volatile("atom.relaxed.sys.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
  return old;
}

MW_INLINE u32 mw_add_relaxed_gpu(u32 *p, u32 v) {
  u32 old;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}

// Puts v where 0 stands; returns what stood there.
MW_INLINE u64 mw_swap_if_zero_gpu(u64 *p, u64 v) {
  u64 old;
  asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], 0, %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
  return old;
}

// Puts v where old stands; returns what stood there.
MW_INLINE u64 mw_swap_if_gpu(u64 *p, u64 old, u64 v) {
  u64 was;
  asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;" : "=l"(was) : "l"(p), "l"(old), "l"(v) : "memory");
  return was;
}

MW_INLINE void mw_or_gpu(u64 *p, u64 v) {
  asm volatile("red.relaxed.gpu.global.or.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

MW_INLINE void mw_or_block(u64 *p, u64 v) {
  asm volatile("red.relaxed.cta.or.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

MW_INLINE void mw_and_gpu(u64 *p, u64 v) {
  asm volatile("red.relaxed.gpu.global.and.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

MW_INLINE void mw_count_gpu(u64 *p) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], 1;" ::"l"(p) : "memory");
}

MW_INLINE void mw_fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Nanoseconds of a clock that all devices of a host share, roughly.
MW_INLINE u64 mw_now_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// Lets other warps have the units for a moment.
MW_INLINE void mw_pause() { __nanosleep(20); }

// The first of two values is the lower byte. Rounded to nearest even, saturated.
#if __CUDA_ARCH__ >= 890
#define MW_HAS_E4M3 1
MW_INLINE u32 mw_e4m3_pair(float low, float high) {
  unsigned short r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
}
#endif

#endif
