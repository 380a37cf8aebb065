// What the engine's kernels take for granted of a device, asked of it: that memory_order.cuh
// orders plain accesses of other threads, that a warp's threads go on when they part,
// and how fine the clock of deadlines is.
#include "memory_order.cuh"

enum { MW_PROBE_WORDS = 2048, MW_PROBE_LINE = 16 }; // of a pair's data, few enough for a cache; apart from others

// Where results stand in `out`.
enum { MW_PROBE_OLD, MW_PROBE_LATE, MW_PROBE_LEAST, MW_PROBE_MOST, MW_PROBE_STEPS, MW_PROBE_BACK, MW_PROBE_LANES };

struct mw_probe_args {
  u64 *data;  // [pairs, MW_PROBE_WORDS], or [blocks, threads]
  u64 *flags; // [pairs, 2, MW_PROBE_LINE]; or one per lane; or a counter
  u64 *out;
  i64 rounds, round;
  i64 limit_ns; // of a wait
  i64 ordered;  // 0: with relaxed words, which is wrong
};

// Waits for a word to become a value. False: it took too long.
MW_INLINE bool mw_probe_await(const mw_probe_args &a, const u64 *word, u64 value, bool ordered) {
  u64 start = mw_now_ns();
  for (;;) {
    if ((ordered ? mw_load_acquire_sys(word) : mw_load_relaxed_sys(word)) == value) return true;
    if (mw_now_ns() - start > (u64)a.limit_ns) {
      mw_add_relaxed_sys(&a.out[MW_PROBE_LATE], 1);
      return false;
    }
    mw_pause();
  }
}

MW_INLINE u64 *mw_probe_flag(const mw_probe_args &a, int i) { return a.flags + (2 * blockIdx.x + i) * MW_PROBE_LINE; }

// A block per pair: writes data, says so, waits until they are read.
MW_KERNEL void moewire_probe_write(const mw_probe_args a) {
  MW_SHARED(u32, ok);
  u64 *data = a.data + blockIdx.x * MW_PROBE_WORDS;
  for (i64 i = 1; i <= a.rounds; i++) {
    for (int w = threadIdx.x; w < MW_PROBE_WORDS; w += blockDim.x) data[w] = i;
    __syncthreads();
    if (threadIdx.x == 0) {
      if (a.ordered)
        mw_store_release_sys(mw_probe_flag(a, 0), i);
      else
        mw_store_relaxed_sys(mw_probe_flag(a, 0), i);
      ok = mw_probe_await(a, mw_probe_flag(a, 1), i, true);
    }
    __syncthreads();
    if (!ok) return;
  }
}

// The other block of each pair, on another stream: counts what is not of the round.
MW_KERNEL void moewire_probe_read(const mw_probe_args a) {
  MW_SHARED(u32, ok);
  const u64 *data = a.data + blockIdx.x * MW_PROBE_WORDS;
  u64 old = 0;
  for (i64 i = 1; i <= a.rounds; i++) {
    if (threadIdx.x == 0) ok = mw_probe_await(a, mw_probe_flag(a, 0), i, a.ordered);
    __syncthreads();
    if (!ok) break;
    for (int w = threadIdx.x; w < MW_PROBE_WORDS; w += blockDim.x) old += data[w] != (u64)i;
    __syncthreads();
    if (threadIdx.x == 0) mw_store_release_sys(mw_probe_flag(a, 1), i);
  }
  if (old) mw_add_relaxed_sys(&a.out[MW_PROBE_OLD], old);
}

// Many blocks: the last one sees what all have written, as in mw_is_last; also what it
// has read before that was written.
MW_KERNEL void moewire_probe_last(const mw_probe_args a) {
  MW_SHARED(u32, last);
  u64 old = 0;
  for (u32 b = 0; b < gridDim.x; b++) old += a.data[b * blockDim.x + threadIdx.x] > (u64)a.round; // none is
  a.data[blockIdx.x * blockDim.x + threadIdx.x] = a.round;
  __syncthreads();
  if (threadIdx.x == 0) {
    mw_fence_sys();
    last = mw_add_relaxed_gpu((u32 *)a.flags, 1) == gridDim.x - 1;
    if (last) {
      mw_fence_sys();
      *(u32 *)a.flags = 0;
    }
  }
  __syncthreads();
  if (!last) return;
  for (u32 b = 0; b < gridDim.x; b++) old += a.data[b * blockDim.x + threadIdx.x] != (u64)a.round;
  if (old) mw_add_relaxed_sys(&a.out[MW_PROBE_OLD], old);
  if (threadIdx.x == 0) mw_add_relaxed_sys(&a.out[MW_PROBE_STEPS], 1);
}

// One warp: each thread waits for the next one, and then, in another row of words,
// for the one before.
MW_KERNEL void moewire_probe_warp(const mw_probe_args a) {
  int lane = threadIdx.x, lanes = blockDim.x;
  bool ok = lane == lanes - 1 || mw_probe_await(a, &a.flags[lane + 1], 1, true);
  mw_store_release_sys(&a.flags[lane], ok);
  u64 *down = a.flags + lanes;
  ok = (lane == 0 || mw_probe_await(a, &down[lane - 1], 1, true)) && ok;
  mw_store_release_sys(&down[lane], ok);
  if (ok) mw_add_relaxed_sys(&a.out[MW_PROBE_LANES], 1);
}

// One thread: between which values the clock steps.
MW_KERNEL void moewire_probe_clock(const mw_probe_args a) {
  u64 last = mw_now_ns(), least = ~0ull, most = 0, steps = 0, back = 0;
  for (i64 i = 0; i < a.rounds; i++) {
    u64 now = mw_now_ns();
    if (now == last) continue;
    back += now < last;
    steps++;
    least = now - last < least ? now - last : least;
    most = now - last > most ? now - last : most;
    last = now;
  }
  a.out[MW_PROBE_LEAST] = least;
  a.out[MW_PROBE_MOST] = most;
  a.out[MW_PROBE_STEPS] = steps;
  a.out[MW_PROBE_BACK] = back;
}
