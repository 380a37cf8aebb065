// Dispatch, first part: counts rows, opens the own slot, and reserves places at
// every owner. The last block to end does all but the counting.
#include "fill.cuh"
#include "places.cuh"

// The index of a selection's row among this rank's rows for that expert.
MW_INLINE i32 mw_index_of(const mw_plan_args &a, int at, bool serve) {
  const mw_common &c = a.c;
  int t = at / c.topk, k = at % c.topk;
  const i64 *row = c.topk_idx + (i64)t * c.topk;
  i64 e = row[k];
  if (e == -1) return MW_NO_ROW;
  if (e < 0 || e >= c.num_experts) {
    mw_fail(c, MW_ERROR_EXPERT, at, (u64)e, 0, c.topk);
    return MW_NO_ROW;
  }
  if (!serve) return MW_NO_ROW;
  for (int earlier = 0; earlier < k; earlier++) // one block twice makes one row
    if (mw_block_of(c, row[earlier]) == mw_block_of(c, e)) return MW_SAME_AS - earlier;
  if (c.flags & MW_FLAG_ORDERED) return a.index[at]; // see dispatch_number.cu
  return (i32)mw_add_relaxed_gpu(&a.count[e], 1);
}

// Ranks that rows are sent to: members that the caller has not left out.
MW_INLINE bool mw_serves(const mw_common &c, i64 expert) {
  int block = mw_block_of(c, expert), owner = block / c.local_experts;
  if (block < 0) return true; // said elsewhere
  return mw_has(mw_known(c), owner) && !(c.active && c.active[owner] == 0);
}

// Fills the own slab while no other rank reads or writes there: the others have said that
// they are done, or are out, and none knows yet that it is open. If the wait ended
// otherwise, because the buffer has failed or is no member, some may still read.
MW_INLINE void mw_fill_own(const mw_common &c, const mw_beginning *b) {
  if (mw_failed(c) || !mw_has(b->members, c.rank)) return;
  mw_fill_slab(c, mw_slab_at(c, c.rank, c.slot));
}

// An operation looks at the members once, by a thread of its own: the look is under way
// while other threads release and wait, and these see lost ranks meanwhile.
MW_INLINE void mw_open_own(const mw_common &c, mw_beginning *b) {
  int r = threadIdx.x;
  bool looks = r == (int)blockDim.x - 1;
  u64 word = looks ? mw_peek_sys(&c.host_control->members) : 0;
  mw_slot *s = &c.state->slot[c.slot];
  if (r == 0) mw_record_begin(c, c.state->next_op, MW_RECORD_READERS);
  if (r < c.num_ranks && !mw_failed(c)) {
    mw_settle(c, r);
    if (s->op && !s->released) mw_release(c, s, c.slot, r);
    mw_release_combined(c, c.slot, r);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mw_mark_released(c, c.slot);
    s->released = 1; // a rank that still lacks words gets all there are
    b->op = c.state->next_op;
  }
  __syncthreads();
  mw_wait_together(c, [&](int rank) { mw_await_done(c, s, c.slot, rank); });
  if (looks) b->members = mw_members_of(c, word);
  __syncthreads();
  if (c.flags & MW_FLAG_FILL) mw_fill_own(c, b); // seen before `open` by the barrier in front of that
  u64 *counter = (u64 *)(mw_slab_at(c, c.rank, c.slot) + c.slab.counter);
  for (int l = threadIdx.x; l < c.local_experts; l += blockDim.x) mw_store_relaxed_sys(&counter[l], 0);
  if (threadIdx.x == 0) {
    mw_record_waits(c, MW_RECORD_DISPATCH); // a rank that is late with this is not late with `open`
    mw_and_gpu(&c.state->in, b->members);
    u64 in = b->members & mw_known(c); // also without ranks that were lost during the wait
    if (!mw_has(in, c.rank)) mw_fail(c, MW_ERROR_FENCED);
    b->serve = b->opened = b->lacks = 0;
    s->writers = 0;
    for (int q = 0; q < c.num_ranks; q++) {
      if (!mw_has(in, q)) continue;
      s->writers |= 1ull << q;
      if (!(c.active && c.active[q] == 0)) b->serve |= 1ull << q;
    }
    s->op = b->op + 1;
    s->owners = s->writers;
    s->unopened = s->writers & ~b->serve & ~c.state->remote; // remote ranks get a message without rows
    s->sent = s->counted = s->combines = s->reduced = s->released = s->lacks = 0;
    s->ordered = c.flags & MW_FLAG_ORDERED ? 1 : 0;
    s->placed = s->ordered ? 0 : s->writers;
    s->ticket = c.ticket;
    u32 call[] = {(u32)c.max_tokens, (u32)c.hidden, (u32)c.num_experts, c.flags & MW_FLAGS_AGREED};
    for (int i = 0; i < 4; i++) s->call[i] = call[i];
    s->topk = c.topk;
    s->extras = mw_extras(c);
    s->tokens = mw_tokens(c);
    s->slab = c.slab;
    c.state->next_op = b->op + 1;
    mw_record_show(c, b->op, MW_RECORD_DISPATCH, s->inflight.start);
    mw_store_relaxed_sys(&c.report->ops, b->op + 1);
  }
  __syncthreads();
  if (r >= c.num_ranks) return;
  s->inflight.rows_to[r] = s->inflight.rows_from[r] = 0;
  if (!mw_failed(c)) mw_publish_open(c, b->op, c.slot, s->writers, r);
}

// Waits for the owners' slabs. Those of remote ranks are shadows. An owner opens to
// members alone, and uses its slab again when they are done or quiesced: so a rank that
// has found it open writes there, also if it is taken out meanwhile.
MW_INLINE void mw_await_owners(const mw_common &c, mw_beginning *b) {
  mw_wait_together(c, [&](int r) {
    if (!mw_has(b->serve, r) || mw_is_remote(c, r)) return;
    int slab = -1;
    int end = mw_await(c, r, [&] { return (slab = mw_opened(c, r, b->op)) >= 0; });
    b->slab_of[r] = end == MW_READY ? slab : -1;
    if (end == MW_READY && slab >= c.num_slots) mw_fail(c, MW_ERROR_WILD, MW_WILD_OPEN, r, slab, c.num_slots - 1);
  });
  __syncthreads();
  if (threadIdx.x == 0) {
    mw_slot *s = &c.state->slot[c.slot];
    for (int q = 0; q < c.num_ranks; q++) {
      if (mw_has(s->owners, q) && mw_is_remote(c, q)) b->slab_of[q] = c.slot;
      else if (!mw_has(b->serve, q)) continue;
      if (b->slab_of[q] < 0) {
        s->owners &= ~(1ull << q);
        continue;
      }
      s->slab_of[q] = (u8)b->slab_of[q];
      b->opened |= 1ull << q;
    }
    mw_record_waits(c, MW_RECORD_DISPATCH); // nor with its counts
  }
  __syncthreads();
}

MW_KERNEL void moewire_rows_plan(const mw_plan_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_beginning, b);
  i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at < (i64)c.num_tokens * c.topk) {
    a.index[at] = mw_index_of(a, (int)at, mw_serves(c, c.topk_idx[at]));
  }
  if (!mw_is_last(c, MW_STEP_PLAN)) return;
  if (c.state->remote && !(c.flags & MW_FLAG_REMOTE) && threadIdx.x == 0) mw_fail(c, MW_ERROR_NO_REMOTE, c.state->remote);
  mw_open_own(c, &b);
  mw_await_owners(c, &b);
  if (mw_failed(c)) return;
  mw_announce(a, &b);
  bool ordered = c.flags & MW_FLAG_ORDERED;
  if (ordered && c.state->remote) return; // dispatch_remote_order.cu goes on
  if (ordered) {
    mw_assign_offsets(c, &b);
    mw_await_offsets(c, &b);
  }
  mw_reserve_all(a, &b, 0, c.num_ranks);
  if (!c.counters || threadIdx.x != blockDim.x - 1) return;
  mw_record_waits(c, MW_RECORD_DISPATCH);
  mw_inflight_of(c)->place = mw_now_ns();
}
