// Dispatch between ranks that are reached by messages: one block for each rank,
// which does something for remote ones only. A token goes once to a rank, cast if it
// is to be, however many experts it has there.
#include "cast.cuh"
#include "remote_rest.cuh"

enum { MW_REMOTE_THREADS = 256 }; // of a block, at most

struct mw_remote_counts {
  u32 tokens[MW_REMOTE_THREADS];
};

// The expert of a rank that a selection's row is for, or -1; 0 for a flat row.
MW_INLINE i32 mw_remote_expert(const mw_remote_send_args &a, i64 at, int rank) {
  if (a.index[at] == MW_NO_ROW || a.index[at] <= MW_SAME_AS) return -1;
  int l = mw_block_of(a.c, a.c.topk_idx[at]) - rank * a.c.local_experts;
  return l >= 0 && l < a.c.local_experts ? l : -1;
}

MW_INLINE bool mw_remote_goes(const mw_remote_send_args &a, i64 token, int rank) {
  for (int k = 0; k < a.c.topk; k++)
    if (mw_remote_expert(a, token * a.c.topk + k, rank) >= 0) return true;
  return false;
}

// Lists the tokens that go to a rank, in order, and returns how many there are.
// Each thread has a part of all, and looks at it twice.
MW_INLINE u32 mw_remote_list(const mw_remote_send_args &a, int rank, i32 *list, mw_remote_counts *counts) {
  i64 all = a.c.num_tokens, part = (all + blockDim.x - 1) / blockDim.x;
  i64 first = min((i64)threadIdx.x * part, all), end = min(first + part, all);
  u32 mine = 0, at = 0, total = 0;
  for (i64 t = first; t < end; t++) mine += mw_remote_goes(a, t, rank);
  counts->tokens[threadIdx.x] = mine;
  __syncthreads();
  for (u32 i = 0; i < blockDim.x; i++) {
    if (i < threadIdx.x) at += counts->tokens[i];
    total += counts->tokens[i];
  }
  for (i64 t = first; t < end; t++)
    if (mw_remote_goes(a, t, rank)) list[at++] = (i32)t;
  __syncthreads();
  return total;
}

MW_INLINE mw_remote_parts mw_remote_parts_out(const mw_common &c, i64 rows) {
  return mw_remote_parts_of(c.slab, c.flags & MW_FLAG_FLAT, c.local_experts, c.topk, rows);
}

// What stands before the rows of a piece.
MW_INLINE void mw_remote_describe(const mw_remote_send_args &a, int rank, const i32 *list, const mw_remote_head &h, u8 *msg) {
  const mw_common &c = a.c;
  mw_slot *s = &c.state->slot[c.slot];
  mw_remote_parts x = mw_remote_parts_out(c, h.rows);
  if (threadIdx.x == 0) *(mw_remote_head *)msg = h;
  u8 *shadow = mw_slab_at(c, rank, s->slab_of[rank]);
  for (i64 l = threadIdx.x; l < c.local_experts; l += blockDim.x)
    ((u32 *)(msg + x.counts))[l] = (u32)mw_load_relaxed_sys(mw_layout_at(c, shadow, l, c.rank));
  for (i64 i = threadIdx.x; i < (i64)h.rows; i += blockDim.x) ((i32 *)(msg + x.tokens))[i] = list[h.first + i];
  for (i64 i = threadIdx.x; i < (i64)h.rows * c.topk && !(c.flags & MW_FLAG_FLAT); i += blockDim.x) {
    i64 at = (i64)list[h.first + i / c.topk] * c.topk + i % c.topk;
    ((mw_remote_place *)(msg + x.places))[i] = {mw_remote_expert(a, at, rank), (u32)a.index[at]};
  }
}

// Ids of the owner's own experts, and their weights, beside the flat rows of a piece:
// those of mw_place_topk.
MW_INLINE void mw_remote_fill_topk(const mw_remote_send_args &a, int rank, const i32 *list, i64 rows, u8 *columns) {
  const mw_common &c = a.c;
  i64 *ids = (i64 *)columns;
  float *weights = (float *)(columns + mw_remote_align(8 * c.topk * rows, 16));
  for (i64 i = threadIdx.x; i < rows * c.topk; i += blockDim.x) {
    i64 at = (i64)list[i / c.topk] * c.topk + i % c.topk, local = c.topk_idx[at] - (i64)rank * c.block_experts;
    bool there = local >= 0 && local < c.block_experts;
    ids[i] = there ? local : -1;
    weights[i] = there ? a.weights[at] : 0.0f;
  }
}

// What stands beside the flat rows of a piece.
MW_INLINE void mw_remote_fill_columns(const mw_remote_send_args &a, int rank, const i32 *list, i64 rows, u8 *columns) {
  const mw_common &c = a.c;
  if (c.slab.topk_idx) {
    mw_remote_fill_topk(a, rank, list, rows, columns);
    columns += mw_remote_align(8 * c.topk * rows, 16) + mw_remote_align(4 * c.topk * rows, 16);
  }
  MW_ROLLED
  for (int e = 0; e < MW_NUM_EXTRAS; e++) {
    i64 bytes = c.slab.extra_bytes[e];
    for (i64 i = 0; i < rows && bytes; i++) mw_copy_column(columns + i * bytes, a.extra[e] + list[i] * bytes, (int)bytes);
    columns += mw_remote_extra_bytes(c.slab, e, rows);
  }
}

// The rows of a piece.
MW_INLINE void mw_remote_fill(const mw_remote_send_args &a, const i32 *list, const mw_remote_head &h, u8 *msg, mw_places *p) {
  const mw_common &c = a.c;
  mw_remote_parts x = mw_remote_parts_out(c, h.rows);
  for (int k = threadIdx.x; k < c.topk; k += blockDim.x) p->row[k] = 0;
  for (i64 i = 0; i < (i64)h.rows; i++) {
    __syncthreads();
    if (threadIdx.x == 0) {
      p->row[0] = msg + x.rows + i * c.slab.row_bytes;
      p->scales[0] = msg + x.scales + i * c.slab.scale_words * 4;
    }
    __syncthreads();
    if (c.flags & MW_FLAG_FP8)
      mw_cast_row<1>(c, a.x, list[h.first + i], p, 4);
    else
      mw_copy_row<MW_LOADS>(c, a.x, list[h.first + i], p);
  }
}

// Whether what is not sent yet of h.total rows can be kept.
MW_INLINE bool mw_remote_can_keep(const mw_remote_send_args &a, const mw_remote_head &h, i64 bytes) {
  const mw_common &c = a.c;
  i64 left = h.total - h.first, most = mw_remote_capacity_for(c.slab, c.flags & MW_FLAG_FLAT, c.local_experts, c.topk, *a.remote.message_bytes);
  if (most == 0 && left > 0) return false; // let it find that out of the lease
  i64 messages = left == 0 ? 1 : (left + most - 1) / most;
  return messages * mw_remote_align(mw_remote_parts_out(c, min(most, left)).size, 64) <= bytes;
}

// Puts the next piece together. False: a row does not fit.
MW_INLINE bool mw_remote_write_piece(const mw_remote_send_args &a, int rank, const i32 *list, u64 bytes, u8 *msg, mw_remote_head *h, mw_remote_turn *t) {
  const mw_common &c = a.c;
  bool flat = c.flags & MW_FLAG_FLAT;
  h->rows = min(h->total - h->first, (u64)mw_remote_capacity_for(c.slab, flat, c.local_experts, c.topk, bytes));
  if (h->rows == 0 && h->total > 0) return false;
  h->bytes = mw_remote_parts_out(c, h->rows).size;
  mw_remote_describe(a, rank, list, *h, msg);
  mw_remote_fill(a, list, *h, msg, &t->p);
  if (flat) mw_remote_fill_columns(a, rank, list + h->first, h->rows, msg + mw_remote_parts_out(c, h->rows).columns);
  return true;
}

// That the operation before in the slot was released is in its own message no more: those
// that come now say it. One thread.
MW_INLINE void mw_remote_drop_released(const mw_common &c, int rank) {
  mw_remote_rest *rest = &c.state->rest[c.slot][rank];
  if (rest->kind == MW_REMOTE_RELEASED) rest->turn = 0;
}

// Sends a remote rank its rows, behind what is left from before. One without rows gets a
// message, too: it waits for one.
MW_INLINE void mw_remote_send_rows(const mw_remote_send_args &a, int rank, mw_remote_turn *t, mw_remote_counts *counts) {
  const mw_common &c = a.c;
  i32 *list = a.tokens + rank * a.list_tokens;
  mw_remote_head h = mw_remote_head_of(c, &c.state->slot[c.slot], MW_REMOTE_ROWS);
  h.total = mw_remote_list(a, rank, list, counts);
  h.tokens = mw_tokens(c);
  bool wait = !(c.flags & MW_FLAG_SPLIT), more = true;
  if (mw_remote_speaks(rank)) mw_remote_drop_released(c, rank);
  u8 *kept = 0; // where the next piece is kept; null: it is sent
  while (more) {
    __syncthreads(); // what the thread that speaks has noted; and the places of the piece before are used
    int before = mw_remote_first_left(c, rank);
    // What is left of the operation before in this slot lies where this one's would.
    u8 *msg = kept ? kept : mw_remote_lease(c, a.remote, rank, wait || mw_remote_has_left(c, rank), before, t);
    if (!msg && t->state != MW_REMOTE_DONE) return;
    if (!msg && mw_remote_first_left(c, rank) != before) continue;
    if (!msg) {
      mw_remote_shelf shelf = mw_remote_shelf_of(c, rank);
      wait = !mw_remote_can_keep(a, h, shelf.bytes);
      if (wait) continue;
      msg = kept = shelf.at;
    }
    if (!kept && before >= 0) {
      mw_remote_send_next(c, a.remote, before, rank, msg, t);
      continue;
    }
    u64 bytes = kept ? (u64)*a.remote.message_bytes : t->bytes;
    if (!mw_remote_write_piece(a, rank, list, bytes, msg, &h, t)) { // the host has seen to it that one fits
      if (mw_remote_speaks(rank)) mw_fail(c, MW_ERROR_MESSAGE, rank, bytes);
      return;
    }
    if (kept)
      kept += mw_remote_align(h.bytes, 64);
    else
      mw_remote_post(c, a.remote, rank, h.bytes);
    h.first += h.rows;
    more = h.first < h.total;
  }
  // A piece without rows has no barrier: other threads may still look at what was left before.
  __syncthreads();
  if (kept && mw_remote_speaks(rank)) mw_remote_leave(c, rank, MW_REMOTE_ROWS);
}

// Behind moewire_dispatch_place, which has found the rows' places in the shadows.
MW_KERNEL void moewire_rows_remote_send(const mw_remote_send_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_remote_turn, t);
  MW_SHARED(mw_remote_counts, counts);
  MW_SHARED(u32, skip);
  const mw_slot *s = &c.state->slot[c.slot];
  int rank = blockIdx.x;
  if (threadIdx.x == 0) {
    mw_remote_begin(c, &t);
    skip = mw_failed(c) || !mw_is_remote(c, rank) || !mw_has(s->owners, rank);
  }
  __syncthreads();
  if (!skip) mw_remote_send_rows(a, rank, &t, &counts);
  mw_remote_end(c, a.remote, rank, &t);
}

// Before moewire_rows_receive: sends what was left, and takes messages until a remote
// rank's rows are here. For ranks that are lost, or left out, it does not wait. Before
// a release (MW_FLAG_REST) it says that there will be no more outputs. That waits for
// room, but not of what was combined in phases apart: no first phase waits then, nor
// does this, and what is left goes with the next launch.
MW_KERNEL void moewire_rows_remote_take(const mw_remote_take_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_remote_turn, t);
  MW_SHARED(u32, skip);
  MW_SHARED(u32, counts);
  const mw_slot *s = &c.state->slot[c.slot];
  int rank = blockIdx.x;
  if (threadIdx.x == 0) {
    if (rank == 0 && !(c.flags & MW_FLAG_REST)) mw_record_resume(c, MW_RECORD_DISPATCH);
    mw_remote_begin(c, &t);
    skip = mw_failed(c) || !mw_is_remote(c, rank) || s->ticket != c.ticket;
    counts = !(c.flags & MW_FLAG_REST) && mw_has(s->placed, rank) && !(c.active && c.active[rank] == 0);
  }
  __syncthreads();
  if (!skip) {
    const u64 *arrive = mw_line_at(mw_slab_at(c, c.rank, c.slot), c.slab.arrive, rank);
    mw_remote_finish(c, a.remote, rank, &t, [&] { // a rank that has only counted: see mw_arrived
      return !counts || mw_load_acquire_sys(arrive) == mw_word(s->op - 1, 0) || (!s->ordered && mw_remote_counted(c, c.slot, rank));
    });
    if (c.flags & MW_FLAG_REST && t.state != MW_REMOTE_OUT && !s->released && mw_remote_awaits_outputs(c, s, rank))
      mw_remote_give(c, a.remote, rank, MW_REMOTE_RELEASED, !s->combines || !(c.flags & MW_FLAG_SPLIT), &t);
  }
  mw_remote_end(c, a.remote, rank, &t);
}
