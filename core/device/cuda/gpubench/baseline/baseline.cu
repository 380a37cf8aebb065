// A baseline to compare with, for benchmarks only: dispatch and combine with
// four copies, as low-latency kernels of other systems do it. Rows go from x to
// a staging buffer, from there to a fixed place at the receiver for every
// expert, and from there to the packed rows; outputs go to a fixed place at the
// token's owner, which adds them up. Written from the description alone.
//
// The caller runs each phase on all ranks before the next: no wait lasts.
//
// Its loads are as wide, and as many under way, as those of the kernels that it
// is compared with; several blocks share a pair of expert and source.
#include "numbers.cuh"
#include "streams.cuh"

struct mw_four_args {
  const u8 *x;         // bf16 [T, H]
  const i64 *topk_idx; // [T, K], different experts or -1
  const float *weights;
  u8 *out;       // bf16 [T, H]
  u8 *staging;   // [T] messages
  u8 *packed;    // [L, R T] rows; outputs take their place
  u8 *scales;    // [L, R T, H / 128], fp8 only
  i32 *src_info; // [L, R T]
  u32 *count;    // [E], zeros: rows sent
  i64 *ranges;   // [L, R]: begin << 32 | number
  const u64 *regions; // by rank: flags, then places
  i64 places_off, message_bytes, row_bytes;
  i64 op; // counts from 1
  i32 rank, num_ranks, num_experts, local_experts;
  i32 num_tokens, hidden, topk, fp8;
};

enum { MW_FOUR_HEAD = 16, MW_FOUR_MAX_TOPK = 64 };

// Flags of a region: first of rows [L, R], then of outputs [E].
MW_INLINE u64 *mw_four_flag(const mw_four_args &a, int rank, int i) { return (u64 *)a.regions[rank] + i; }

MW_INLINE u8 *mw_four_row_place(const mw_four_args &a, int owner, i64 l, int src, u32 slot) {
  return (u8 *)a.regions[owner] + a.places_off + ((l * a.num_ranks + src) * a.num_tokens + slot) * a.message_bytes;
}

MW_INLINE u8 *mw_four_output_place(const mw_four_args &a, int src, i64 e, i64 token) {
  return (u8 *)a.regions[src] + a.places_off + (e * a.num_tokens + token) * a.hidden * 2;
}

MW_INLINE void mw_four_copy(u8 *to, const u8 *from, i64 bytes) {
  mw_stream((const mw_quad *)from, threadIdx.x, bytes / 16, blockDim.x,
            [&](i64 i, const mw_quad &v) { ((mw_quad *)to)[i] = v; });
}

// The largest magnitude of what 16 neighbouring lanes hold.
MW_INLINE u32 mw_four_largest(const mw_quad &v) {
  u32 most = 0;
  for (int i = 0; i < 4; i++) most = max(most, max(v.v[i] & 0x7fffu, v.v[i] >> 16 & 0x7fffu));
  u32 lanes = 0xffffu << (threadIdx.x & 16);
  for (int apart = 8; apart > 0; apart /= 2) most = max(most, __shfl_xor_sync(lanes, most, apart));
  return most;
}

MW_INLINE void mw_four_cast(const mw_four_args &a, int t, u8 *message) {
  const mw_quad *x = (const mw_quad *)(a.x + (i64)t * a.hidden * 2);
  for (int i = threadIdx.x; i < a.hidden / 8; i += blockDim.x) {
    mw_quad v = x[i];
    mw_cast cast = mw_cast_of(mw_four_largest(v), false);
    u32 q[4];
    for (int j = 0; j < 4; j++)
      q[j] = mw_to_e4m3_pair(__fmul_rn(mw_from_bf16(v.v[j] & 0xffffu), cast.scale),
                             __fmul_rn(mw_from_bf16(v.v[j] >> 16), cast.scale));
    mw_pair out = {{q[0] | q[1] << 16, q[2] | q[3] << 16}};
    ((mw_pair *)(message + MW_FOUR_HEAD))[i] = out;
    if (i % 16 == 0) ((u32 *)(message + MW_FOUR_HEAD + a.row_bytes))[i / 16] = cast.stored;
  }
}

MW_KERNEL void moewire_four_send(const mw_four_args a) {
  MW_SHARED(u32, slot);
  for (int t = blockIdx.x; t < a.num_tokens; t += gridDim.x) {
    u8 *message = a.staging + t * a.message_bytes;
    if (threadIdx.x == 0) *(i32 *)message = t;
    if (a.fp8)
      mw_four_cast(a, t, message);
    else
      mw_four_copy(message + MW_FOUR_HEAD, a.x + (i64)t * a.hidden * 2, a.row_bytes);
    for (int k = 0; k < a.topk; k++) {
      i64 e = a.topk_idx[(i64)t * a.topk + k];
      if (e < 0) continue;
      __syncthreads();
      if (threadIdx.x == 0) slot = mw_add_relaxed_gpu(&a.count[e], 1);
      __syncthreads();
      mw_four_copy(mw_four_row_place(a, (int)(e / a.local_experts), e % a.local_experts, a.rank, slot), message,
                   a.message_bytes);
    }
    __syncthreads();
  }
}

// One block, behind the rows: how many there are.
MW_KERNEL void moewire_four_notify(const mw_four_args a) {
  mw_fence_sys();
  for (int e = threadIdx.x; e < a.num_experts; e += blockDim.x) {
    int owner = e / a.local_experts, l = e % a.local_experts;
    mw_store_release_sys(mw_four_flag(a, owner, l * a.num_ranks + a.rank), (u64)a.op << 32 | a.count[e]);
    a.count[e] = 0;
  }
}

// How many rows source src has sent for expert l, once it has said so.
MW_INLINE u32 mw_four_sent(const mw_four_args &a, int l, int src) {
  const u64 *flag = mw_four_flag(a, a.rank, l * a.num_ranks + src);
  u64 word;
  while ((i64)((word = mw_load_acquire_sys(flag)) >> 32) != a.op) mw_pause();
  return (u32)word;
}

// Some blocks per local expert and source, which take turns with its rows.
// Rows lie in order of source, so that no block asks another where.
MW_KERNEL void moewire_four_receive(const mw_four_args a) {
  MW_SHARED(i64, range);
  int pairs = a.local_experts * a.num_ranks, pair = blockIdx.x % pairs;
  int l = pair / a.num_ranks, src = pair % a.num_ranks;
  if (threadIdx.x == 0) {
    u32 before = 0;
    for (int r = 0; r < src; r++) before += mw_four_sent(a, l, r);
    range = (i64)before << 32 | mw_four_sent(a, l, src);
    if ((int)blockIdx.x < pairs) a.ranges[pair] = range;
  }
  __syncthreads();
  u32 begin = (u32)(range >> 32), n = (u32)range;
  i64 first = (i64)l * a.num_ranks * a.num_tokens + begin;
  for (u32 i = blockIdx.x / pairs; i < n; i += gridDim.x / pairs) {
    const u8 *message = mw_four_row_place(a, a.rank, l, src, i);
    mw_four_copy(a.packed + (first + i) * a.row_bytes, message + MW_FOUR_HEAD, a.row_bytes);
    if (a.fp8) mw_four_copy(a.scales + (first + i) * (a.hidden / 32), message + MW_FOUR_HEAD + a.row_bytes, a.hidden / 32);
    if (threadIdx.x == 0) a.src_info[first + i] = *(const i32 *)message;
  }
}

// Some blocks per local expert and source: outputs, in bf16, to where they came from.
MW_KERNEL void moewire_four_return(const mw_four_args a) {
  int pairs = a.local_experts * a.num_ranks, pair = blockIdx.x % pairs;
  int l = pair / a.num_ranks, src = pair % a.num_ranks;
  i64 range = a.ranges[pair];
  i64 first = (i64)l * a.num_ranks * a.num_tokens + (range >> 32), e = (i64)a.rank * a.local_experts + l;
  for (u32 i = blockIdx.x / pairs; i < (u32)range; i += gridDim.x / pairs)
    mw_four_copy(mw_four_output_place(a, src, e, a.src_info[first + i]), a.packed + (first + i) * a.hidden * 2, a.hidden * 2);
}

// One block, behind the outputs.
MW_KERNEL void moewire_four_notify_outputs(const mw_four_args a) {
  mw_fence_sys();
  for (int i = threadIdx.x; i < a.local_experts * a.num_ranks; i += blockDim.x) {
    int l = i / a.num_ranks, src = i % a.num_ranks;
    mw_store_release_sys(mw_four_flag(a, src, a.num_experts + a.rank * a.local_experts + l), (u64)a.op);
  }
}

MW_INLINE void mw_four_add(float *sum, const mw_quad &v, float w) {
  for (int j = 0; j < 4; j++) {
    sum[2 * j] = __fadd_rn(sum[2 * j], __fmul_rn(w, mw_from_bf16(v.v[j] & 0xffffu)));
    sum[2 * j + 1] = __fadd_rn(sum[2 * j + 1], __fmul_rn(w, mw_from_bf16(v.v[j] >> 16)));
  }
}

MW_KERNEL void moewire_four_reduce(const mw_four_args a) {
  for (int t = blockIdx.x; t < a.num_tokens; t += gridDim.x) {
    const i64 *idx = a.topk_idx + (i64)t * a.topk;
    for (int k = threadIdx.x; k < a.topk; k += blockDim.x)
      if (idx[k] >= 0)
        while ((i64)mw_load_acquire_sys(mw_four_flag(a, a.rank, a.num_experts + (int)idx[k])) != a.op) mw_pause();
    __syncthreads();
    for (int i = threadIdx.x; i < a.hidden / 8; i += blockDim.x) {
      float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
      for (int k = 0; k < a.topk; k += MW_LOADS) {
        mw_quad v[MW_LOADS] = {};
        MW_UNROLL
        for (int n = 0; n < MW_LOADS; n++)
          if (k + n < a.topk && idx[k + n] >= 0) v[n] = ((const mw_quad *)mw_four_output_place(a, a.rank, idx[k + n], t))[i];
        MW_UNROLL
        for (int n = 0; n < MW_LOADS; n++)
          if (k + n < a.topk && idx[k + n] >= 0) mw_four_add(sum, v[n], a.weights[(i64)t * a.topk + k + n]);
      }
      mw_quad v;
      for (int j = 0; j < 4; j++) v.v[j] = mw_to_bf16(sum[2 * j]) | mw_to_bf16(sum[2 * j + 1]) << 16;
      ((mw_quad *)(a.out + (i64)t * a.hidden * 2))[i] = v;
    }
  }
}
