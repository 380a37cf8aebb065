// Integers by their widths. NVRTC has no <stdint.h>.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

// 16 bytes, for one wide access.
struct alignas(16) mw_quad {
  u32 v[4];
};

struct alignas(8) mw_pair {
  u32 v[2];
};
