// Dispatch, first part: counts rows, opens the own slot, and reserves places at
// every owner. The last block to end does all but the counting.
#include "slots.cuh"

// The index of a selection's row among this rank's rows for that expert.
MW_INLINE i32 mw_index_of(const mw_plan_args &a, int at, bool serve) {
  const mw_common &c = a.c;
  int t = at / c.topk, k = at % c.topk;
  const i64 *row = c.topk_idx + (i64)t * c.topk;
  i64 e = row[k];
  if (e == -1) return MW_NO_ROW;
  if (e < 0 || e >= c.num_experts) {
    mw_fail(c, MW_ERROR_EXPERT, at, (u64)e);
    return MW_NO_ROW;
  }
  if (!serve) return MW_NO_ROW;
  for (int earlier = 0; earlier < k; earlier++) // one expert twice makes one row
    if (row[earlier] == e) return MW_SAME_AS - earlier;
  return (i32)mw_add_relaxed_gpu(&a.count[e], 1);
}

// Ranks that rows are sent to: members that the caller has not left out.
MW_INLINE bool mw_serves(const mw_common &c, u64 members, i64 expert) {
  if (expert < 0 || expert >= c.num_experts) return true; // said elsewhere
  int owner = (int)(expert / c.local_experts);
  return mw_in(c, members, owner) && !(c.active && c.active[owner] == 0);
}

// What the threads of the last block share.
struct mw_beginning {
  u64 op, members;
  u64 serve;   // owners that are waited for
  u64 opened;  // of those, the ones that have opened
  i32 slab_of[MW_MAX_RANKS];
};

MW_INLINE void mw_open_own(const mw_common &c, mw_beginning *b) {
  int r = threadIdx.x;
  mw_slot *s = &c.state->slot[c.slot];
  if (r < c.num_ranks && !mw_failed(c)) {
    mw_settle(c, r);
    if (s->op && !s->released) mw_release(c, s, c.slot, r);
    mw_release_combined(c, c.slot, r);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mw_note_released(c, c.slot);
    s->released = 1; // who is still owed words gets all there are
    b->op = c.state->next_op;
  }
  __syncthreads();
  mw_wait_together(c, [&](int rank) { mw_await_done(c, s, c.slot, rank); });
  __syncthreads();
  u64 *counter = (u64 *)(mw_slab_at(c, c.rank, c.slot) + c.slab.counter);
  for (int l = threadIdx.x; l < c.local_experts; l += blockDim.x) mw_store_relaxed_sys(&counter[l], 0);
  if (threadIdx.x == 0) {
    b->members = mw_members(c);
    b->serve = b->opened = 0;
    s->writers = 0;
    for (int q = 0; q < c.num_ranks; q++) {
      if (!mw_in(c, b->members, q)) continue;
      s->writers |= 1ull << q;
      if (!(c.active && c.active[q] == 0)) b->serve |= 1ull << q;
    }
    s->op = b->op + 1;
    s->owners = s->writers;
    s->owed = s->writers & ~b->serve;
    s->sent = s->counted = s->combines = s->reduced = s->released = 0;
    s->ticket = c.ticket;
    u32 call[] = {(u32)c.max_tokens, (u32)c.hidden, (u32)c.num_experts, c.flags & MW_FLAG_PARAMS};
    for (int i = 0; i < 4; i++) s->call[i] = call[i];
    c.state->next_op = b->op + 1;
    mw_store_relaxed_sys(&c.report->ops, b->op + 1);
  }
  __syncthreads();
  if (r < c.num_ranks && !mw_failed(c)) mw_tell_open(c, b->op, c.slot, s->writers, r);
}

// Waits for the owners' slabs.
MW_INLINE void mw_await_owners(const mw_common &c, mw_beginning *b) {
  mw_wait_together(c, [&](int r) {
    if (!mw_has(b->serve, r)) return;
    int slab = -1;
    int end = mw_await(c, r, [&] { return (slab = mw_opened(c, r, b->op)) >= 0; });
    b->slab_of[r] = end == MW_READY ? slab : -1;
  });
  __syncthreads();
  if (threadIdx.x == 0) {
    mw_slot *s = &c.state->slot[c.slot];
    for (int q = 0; q < c.num_ranks; q++) {
      if (!mw_has(b->serve, q)) continue;
      if (b->slab_of[q] < 0) {
        s->owners &= ~(1ull << q);
        continue;
      }
      s->slab_of[q] = (u8)b->slab_of[q];
      b->opened |= 1ull << q;
    }
    // Read after `open` and before the first write there.
    if (!mw_in(c, mw_members(c), c.rank)) mw_fail(c, MW_ERROR_FENCED);
  }
  __syncthreads();
}

// One thread per expert: where this rank's rows begin.
MW_INLINE void mw_reserve(const mw_plan_args &a, const mw_beginning *b, int expert) {
  const mw_common &c = a.c;
  int owner = expert / c.local_experts, l = expert % c.local_experts;
  u32 n = a.count[expert];
  a.base[expert] = 0;
  if (!mw_has(b->opened, owner)) return;
  u8 *slab = mw_slab_at(c, owner, b->slab_of[owner]);
  u64 begin = 0;
  if (n) begin = mw_add_relaxed_sys((u64 *)(slab + c.slab.counter) + l, n);
  if (begin + n > (u64)c.slab.rows_per_expert) mw_fail(c, MW_ERROR_CAPACITY, owner, expert, begin + n);
  a.base[expert] = (u32)begin;
  mw_store_relaxed_sys((u64 *)(slab + c.slab.layout) + l * c.num_ranks + c.rank, begin << 32 | n);
  if (n) mw_or_gpu(&c.state->slot[c.slot].sent, 1ull << owner);
}

MW_INLINE void mw_store_params(const mw_common &c, const mw_beginning *b, int owner) {
  u64 *p = mw_line_at(mw_slab_at(c, owner, b->slab_of[owner]), c.slab.params, c.rank);
  mw_store_relaxed_sys(&p[MW_PARAM_OP], b->op + 1);
  mw_store_relaxed_sys(&p[MW_PARAM_TOKENS_MAX], c.max_tokens);
  mw_store_relaxed_sys(&p[MW_PARAM_HIDDEN], c.hidden);
  mw_store_relaxed_sys(&p[MW_PARAM_EXPERTS], c.num_experts);
  mw_store_relaxed_sys(&p[MW_PARAM_FLAGS], c.flags & MW_FLAG_PARAMS);
  mw_store_relaxed_sys(&p[MW_PARAM_TOPK], c.topk);
  mw_store_relaxed_sys(&p[MW_PARAM_TOKENS], c.num_tokens);
}

MW_KERNEL void moewire_dispatch_plan(const mw_plan_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_beginning, b);
  i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at < (i64)c.num_tokens * c.topk) {
    u64 members = mw_members(c);
    a.index[at] = mw_index_of(a, (int)at, mw_serves(c, members, c.topk_idx[at]));
  }
  if (!mw_is_last(c, MW_STEP_PLAN)) return;
  mw_open_own(c, &b);
  mw_await_owners(c, &b);
  if (mw_failed(c)) return;
  for (int e = threadIdx.x; e < c.num_experts; e += blockDim.x) mw_reserve(a, &b, e);
  if ((int)threadIdx.x < c.num_ranks && mw_has(b.opened, threadIdx.x)) mw_store_params(c, &b, threadIdx.x);
}
