// Compiles the kernels for the CPU.
#include "kernels.h"

#define MW_HOST
#include "combine_remote.cu"
#include "combine_publish.cu"
#include "combine_reduce.cu"
#include "combine_wait.cu"
#include "dispatch_remote.cu"
#include "dispatch_remote_order.cu"
#include "dispatch_number.cu"
#include "dispatch_place.cu"
#include "dispatch_plan.cu"
#include "dispatch_receive.cu"
#include "release.cu"
#include "routed.cu"

// For tests: every thread pushes a descriptor per round, and says what it has
// come to. Between a round's descriptors of one thread others push theirs.
struct emulator_push_args {
  mw_common c;
  mw_fifo fifo;
  u64 rounds;
  u64 *pushed; // [threads]
};

MW_KERNEL void emulator_push(const emulator_push_args a) {
  u64 me = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  for (u64 i = 0; i < a.rounds; i++) {
    if (!mw_fifo_push(a.c, a.fifo, me << 8, me ^ i, i)) return;
    a.pushed[me]++;
  }
}

// For tests: one block sends messages to another rank and reads those of it, in
// turn. Each word of a message names its sender, the message, and where it stands.
struct emulator_exchange_args {
  mw_common c;
  mw_remote_common remote;
  u64 send, receive; // the rings
  u64 rounds;
  i64 peer;
  u64 *out; // messages sent, received, words that were wrong
};

// Waits until the proxy says of a number that it has come: what it says is behind it.
static int emulator_await(const emulator_exchange_args &a, const u64 *of, u64 number, u64 *at, u64 *bytes) {
  u64 want = mw_remote_number(a.remote, number);
  int end = mw_await(a.c, a.peer, [&] { return mw_load_acquire_sys(of) == want || mw_fifo_ended(a.c, a.remote.fifo); });
  if (end == MW_RANK_OUT || mw_failed(a.c)) return MW_RANK_OUT;
  *at = mw_load_relaxed_sys(of + 1);
  *bytes = mw_load_relaxed_sys(of + 2);
  return MW_READY;
}

static u64 emulator_length(u64 rank, u64 i) { return (i * 7 + rank * 3) % 40 + 1; }

MW_KERNEL void emulator_exchange(const emulator_exchange_args a) {
  MW_SHARED(u64, at);
  MW_SHARED(u64, bytes);
  MW_SHARED(int, end);
  for (u64 i = 0; i < a.rounds; i++) {
    u64 n = emulator_length(a.c.rank, i);
    const mw_mail *mail = &a.remote.mail[a.peer];
    const mw_remote *remote = &a.remote.ranks[a.peer];
    if (threadIdx.x == 0) end = emulator_await(a, &mail->lease, remote->sent + 1, &at, &bytes);
    __syncthreads();
    if (end != MW_READY || bytes < 8 * n) return;
    for (u64 j = threadIdx.x; j < n; j += blockDim.x) ((u64 *)(a.send + at))[j] = (u64)a.c.rank << 32 | i << 16 | j;
    __syncthreads();
    if (threadIdx.x == 0) {
      a.out[0] += mw_remote_send(a.c, a.remote, a.peer, 8 * n);
      end = emulator_await(a, &mail->came, remote->released + 1, &at, &bytes);
    }
    __syncthreads();
    if (end != MW_READY) return;
    bool wrong = bytes != 8 * emulator_length(a.peer, i);
    for (u64 j = threadIdx.x; j < bytes / 8; j += blockDim.x)
      wrong |= ((u64 *)(a.receive + at))[j] != ((u64)a.peer << 32 | i << 16 | j);
    if (wrong) mw_add_relaxed_sys(&a.out[2], 1);
    __syncthreads();
    if (threadIdx.x == 0) a.out[1] += mw_remote_release(a.c, a.remote, a.peer);
  }
}

namespace emu {

template <class Args, void (*kernel)(Args)> static void call(const void *params) {
  kernel(*(const Args *)params);
}

#define KERNEL(name, args) {#name, call<args, name>, sizeof(args)}
#define VARIANTS(name, args) KERNEL(name, args), KERNEL(name##_narrow, args), KERNEL(name##_deep, args)

static const kernel kernels[] = {
    KERNEL(moewire_rows_plan, mw_plan_args),       VARIANTS(moewire_dispatch_place, mw_place_args),
    KERNEL(moewire_rows_receive, mw_receive_args), KERNEL(moewire_rows_release, mw_wait_args),
    KERNEL(moewire_outputs_publish, mw_publish_args),  KERNEL(moewire_outputs_again, mw_wait_args),
    KERNEL(moewire_outputs_wait, mw_wait_args),        KERNEL(moewire_rows_number, mw_plan_args),
    VARIANTS(moewire_combine_reduce, mw_reduce_args),  KERNEL(moewire_combine_reduce_fp32, mw_reduce_args),
    KERNEL(moewire_combine_reduce_runs, mw_reduce_args),
    KERNEL(moewire_combine_reduce_runs_fp32, mw_reduce_args),
    KERNEL(moewire_rows_remote_order, mw_remote_order_args),
    KERNEL(moewire_rows_remote_send, mw_remote_send_args),
    KERNEL(moewire_rows_remote_take, mw_remote_take_args),
    KERNEL(moewire_outputs_remote_send, mw_remote_take_args),
    KERNEL(moewire_outputs_remote_take, mw_remote_take_args),
    KERNEL(moewire_rows_move, mw_move_args),           KERNEL(moewire_rows_sum, mw_sum_args),
    KERNEL(moewire_rows_sum_fp32, mw_sum_args),        KERNEL(moewire_rows_sum_fp32_out, mw_sum_args),
    KERNEL(emulator_push, emulator_push_args),         KERNEL(emulator_exchange, emulator_exchange_args),
};

void hurry(void *params) { static_cast<mw_common *>(params)->num_blocks = 1; }

const kernel *find_kernel(const char *name) {
  for (const kernel &k : kernels)
    if (!strcmp(k.name, name)) return &k;
  return nullptr;
}

} // namespace emu
