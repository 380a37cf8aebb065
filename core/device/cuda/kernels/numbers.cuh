// The arithmetic of docs/numerics.md, bit for bit: products, sums and quotients
// are single IEEE operations, all other rules work on the bits.
#pragma once

#include "memory_order.cuh"

MW_INLINE float mw_float_of(u32 bits) { return __uint_as_float(bits); }
MW_INLINE u32 mw_bits_of(float f) { return __float_as_uint(f); }

// bf16 is the upper half of a float32.
MW_INLINE float mw_from_bf16(u32 half) { return mw_float_of(half << 16); }

// Rounded to nearest even; any NaN becomes 0x7fc0.
MW_INLINE u32 mw_to_bf16(float f) {
  u32 u = mw_bits_of(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
  return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

// e4m3fn without the instruction: rounded to nearest even, saturated to 448.
MW_INLINE u32 mw_to_e4m3_by_bits(float f) {
  u32 u = mw_bits_of(f), sign = u >> 24 & 0x80u, mag = u & 0x7fffffffu;
  if (mag > 0x7f800000u) return 0x7fu;
  if (mag >= 0x43e00000u) return sign | 0x7eu; // 448
  if (mag < 0x3c800000u) {                      // below 2^-6: steps of 2^-9
    // Adding 2^14 leaves the value in steps of 2^-9 in the low bits of the sum,
    // rounded to nearest even by the addition itself.
    return sign | (mw_bits_of(__fadd_rn(mw_float_of(mag), 16384.0f)) & 0xffu);
  }
  u32 r = mag + 0x7ffffu + (mag >> 20 & 1u); // three bits of fraction stay
  return sign | ((r >> 20) - ((127u - 7u) << 3));
}

MW_INLINE u32 mw_to_e4m3_pair(float low, float high) {
#ifdef MW_HAS_E4M3
  // The instruction keeps a NaN's sign on some devices; the rule is 0x7f.
  u32 r = mw_e4m3_pair(low, high);
  if ((r & 0x7fu) == 0x7fu) r &= 0xff7fu;
  if ((r & 0x7f00u) == 0x7f00u) r &= 0x7fffu;
  return r;
#else
  return mw_to_e4m3_by_bits(low) | mw_to_e4m3_by_bits(high) << 8;
#endif
}

// How a block of 128 values is cast.
struct mw_cast {
  float scale; // what values are multiplied by
  u32 stored;  // bits of the scale that goes with the rows
};

// largest is the block's largest magnitude, compared by bits. pow2: scales are powers of two.
MW_INLINE mw_cast mw_cast_of(u32 largest, bool pow2) {
  float amax = mw_from_bf16(largest);
  if (amax < 1e-4f) amax = 1e-4f;
  mw_cast c;
  float stored = __fdiv_rn(amax, 448.0f);
  c.scale = __fdiv_rn(448.0f, amax);
  c.stored = mw_bits_of(stored);
  if (pow2 && c.stored < 0x7f800000u) {
    c.stored = (c.stored + 0x7fffffu) & ~0x7fffffu; // up to a power of two
    c.scale = __fdiv_rn(1.0f, mw_float_of(c.stored));
  }
  if (largest > 0x7f80u) c.stored = 0x7fc00000u;
  return c;
}
