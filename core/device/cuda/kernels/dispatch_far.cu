// Dispatch between ranks that are reached by messages: one block for each rank,
// which does something for far ones only. A token goes once to a rank, cast if it
// is to be, however many experts it has there.
#include "cast.cuh"
#include "far_rest.cuh"

enum { MW_FAR_THREADS = 256 }; // of a block, at most

struct mw_far_tally {
  u32 tokens[MW_FAR_THREADS];
};

// The expert of a rank that a selection's row is for, or -1; 0 for a flat row.
MW_INLINE i32 mw_far_expert(const mw_far_send_args &a, i64 at, int rank) {
  if (a.index[at] == MW_NO_ROW || a.index[at] <= MW_SAME_AS) return -1;
  int l = mw_block_of(a.c, a.c.topk_idx[at]) - rank * a.c.local_experts;
  return l >= 0 && l < a.c.local_experts ? l : -1;
}

MW_INLINE bool mw_far_goes(const mw_far_send_args &a, i64 token, int rank) {
  for (int k = 0; k < a.c.topk; k++)
    if (mw_far_expert(a, token * a.c.topk + k, rank) >= 0) return true;
  return false;
}

// Lists the tokens that go to a rank, in order, and returns how many there are.
// Each thread has a part of all, and looks at it twice.
MW_INLINE u32 mw_far_list(const mw_far_send_args &a, int rank, i32 *list, mw_far_tally *tally) {
  i64 all = a.c.num_tokens, part = (all + blockDim.x - 1) / blockDim.x;
  i64 first = min((i64)threadIdx.x * part, all), end = min(first + part, all);
  u32 mine = 0, at = 0, total = 0;
  for (i64 t = first; t < end; t++) mine += mw_far_goes(a, t, rank);
  tally->tokens[threadIdx.x] = mine;
  __syncthreads();
  for (u32 i = 0; i < blockDim.x; i++) {
    if (i < threadIdx.x) at += tally->tokens[i];
    total += tally->tokens[i];
  }
  for (i64 t = first; t < end; t++)
    if (mw_far_goes(a, t, rank)) list[at++] = (i32)t;
  __syncthreads();
  return total;
}

MW_INLINE mw_far_parts mw_far_parts_out(const mw_common &c, i64 rows) {
  return mw_far_parts_of(c.slab, c.flags & MW_FLAG_FLAT, c.local_experts, c.topk, rows);
}

// What stands before the rows of a piece.
MW_INLINE void mw_far_describe(const mw_far_send_args &a, int rank, const i32 *list, const mw_far_head &h, u8 *msg) {
  const mw_common &c = a.c;
  mw_slot *s = &c.state->slot[c.slot];
  mw_far_parts x = mw_far_parts_out(c, h.rows);
  if (threadIdx.x == 0) *(mw_far_head *)msg = h;
  u8 *mirror = mw_slab_at(c, rank, s->slab_of[rank]);
  for (i64 l = threadIdx.x; l < c.local_experts; l += blockDim.x)
    ((u32 *)(msg + x.counts))[l] = (u32)mw_load_relaxed_sys(mw_layout_at(c, mirror, l, c.rank));
  for (i64 i = threadIdx.x; i < (i64)h.rows; i += blockDim.x) ((i32 *)(msg + x.tokens))[i] = list[h.first + i];
  for (i64 i = threadIdx.x; i < (i64)h.rows * c.topk && !(c.flags & MW_FLAG_FLAT); i += blockDim.x) {
    i64 at = (i64)list[h.first + i / c.topk] * c.topk + i % c.topk;
    ((mw_far_place *)(msg + x.places))[i] = {mw_far_expert(a, at, rank), (u32)a.index[at]};
  }
}

// Ids of the owner's own experts, and their weights, beside the flat rows of a piece:
// those of mw_place_topk.
MW_INLINE void mw_far_fill_topk(const mw_far_send_args &a, int rank, const i32 *list, i64 rows, u8 *columns) {
  const mw_common &c = a.c;
  i64 *ids = (i64 *)columns;
  float *weights = (float *)(columns + mw_far_align(8 * c.topk * rows, 16));
  for (i64 i = threadIdx.x; i < rows * c.topk; i += blockDim.x) {
    i64 at = (i64)list[i / c.topk] * c.topk + i % c.topk, local = c.topk_idx[at] - (i64)rank * c.block_experts;
    bool there = local >= 0 && local < c.block_experts;
    ids[i] = there ? local : -1;
    weights[i] = there ? a.weights[at] : 0.0f;
  }
}

// What stands beside the flat rows of a piece.
MW_INLINE void mw_far_fill_columns(const mw_far_send_args &a, int rank, const i32 *list, i64 rows, u8 *columns) {
  const mw_common &c = a.c;
  if (c.slab.topk_idx) {
    mw_far_fill_topk(a, rank, list, rows, columns);
    columns += mw_far_align(8 * c.topk * rows, 16) + mw_far_align(4 * c.topk * rows, 16);
  }
  MW_ROLLED
  for (int e = 0; e < MW_NUM_EXTRAS; e++) {
    i64 bytes = c.slab.extra_bytes[e];
    for (i64 i = 0; i < rows && bytes; i++) mw_copy_column(columns + i * bytes, a.extra[e] + list[i] * bytes, (int)bytes);
    columns += mw_far_extra_bytes(c.slab, e, rows);
  }
}

// The rows of a piece.
MW_INLINE void mw_far_fill(const mw_far_send_args &a, const i32 *list, const mw_far_head &h, u8 *msg, mw_places *p) {
  const mw_common &c = a.c;
  mw_far_parts x = mw_far_parts_out(c, h.rows);
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
MW_INLINE bool mw_far_can_keep(const mw_far_send_args &a, const mw_far_head &h, i64 bytes) {
  const mw_common &c = a.c;
  i64 left = h.total - h.first, most = mw_far_room_for(c.slab, c.flags & MW_FLAG_FLAT, c.local_experts, c.topk, *a.far.message_bytes);
  if (most == 0 && left > 0) return false; // let it find that out of the loan
  i64 messages = left == 0 ? 1 : (left + most - 1) / most;
  return messages * mw_far_align(mw_far_parts_out(c, min(most, left)).size, 64) <= bytes;
}

// Puts the next piece together. False: a row does not fit.
MW_INLINE bool mw_far_write_piece(const mw_far_send_args &a, int rank, const i32 *list, u64 bytes, u8 *msg, mw_far_head *h, mw_far_turn *t) {
  const mw_common &c = a.c;
  bool flat = c.flags & MW_FLAG_FLAT;
  h->rows = min(h->total - h->first, (u64)mw_far_room_for(c.slab, flat, c.local_experts, c.topk, bytes));
  if (h->rows == 0 && h->total > 0) return false;
  h->bytes = mw_far_parts_out(c, h->rows).size;
  mw_far_describe(a, rank, list, *h, msg);
  mw_far_fill(a, list, *h, msg, &t->p);
  if (flat) mw_far_fill_columns(a, rank, list + h->first, h->rows, msg + mw_far_parts_out(c, h->rows).columns);
  return true;
}

// That the operation before in the slot was released is in its own message no more: those
// that come now say it. One thread.
MW_INLINE void mw_far_drop_released(const mw_common &c, int rank) {
  mw_far_rest *rest = &c.state->rest[c.slot][rank];
  if (rest->kind == MW_FAR_RELEASED) rest->turn = 0;
}

// Sends a far rank its rows, behind what is left from before. One without rows gets a
// message, too: it waits for one.
MW_INLINE void mw_far_send_rows(const mw_far_send_args &a, int rank, mw_far_turn *t, mw_far_tally *tally) {
  const mw_common &c = a.c;
  i32 *list = a.tokens + rank * a.list_tokens;
  mw_far_head h = mw_far_head_of(c, &c.state->slot[c.slot], MW_FAR_ROWS);
  h.total = mw_far_list(a, rank, list, tally);
  h.tokens = mw_tokens(c);
  bool wait = !(c.flags & MW_FLAG_SPLIT), more = true;
  if (mw_far_speaks(rank)) mw_far_drop_released(c, rank);
  u8 *kept = 0; // where the next piece is kept; null: it is sent
  while (more) {
    __syncthreads(); // what the thread that speaks has noted; and the places of the piece before are used
    int before = mw_far_first_left(c, rank);
    // What is left of the operation before in this slot lies where this one's would.
    u8 *msg = kept ? kept : mw_far_lend(c, a.far, rank, wait || mw_far_has_left(c, rank), before, t);
    if (!msg && t->state != MW_FAR_DONE) return;
    if (!msg && mw_far_first_left(c, rank) != before) continue;
    if (!msg) {
      mw_far_shelf shelf = mw_far_shelf_of(c, rank);
      wait = !mw_far_can_keep(a, h, shelf.bytes);
      if (wait) continue;
      msg = kept = shelf.at;
    }
    if (!kept && before >= 0) {
      mw_far_send_next(c, a.far, before, rank, msg, t);
      continue;
    }
    u64 bytes = kept ? (u64)*a.far.message_bytes : t->bytes;
    if (!mw_far_write_piece(a, rank, list, bytes, msg, &h, t)) { // the host has seen to it that one fits
      if (mw_far_speaks(rank)) mw_fail(c, MW_ERROR_MESSAGE, rank, bytes);
      return;
    }
    if (kept)
      kept += mw_far_align(h.bytes, 64);
    else
      mw_far_post(c, a.far, rank, h.bytes);
    h.first += h.rows;
    more = h.first < h.total;
  }
  if (kept && mw_far_speaks(rank)) mw_far_leave(c, rank, MW_FAR_ROWS);
}

// Behind moewire_dispatch_place, which has found the rows' places in the mirrors.
MW_KERNEL void moewire_rows_far_send(const mw_far_send_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_far_turn, t);
  MW_SHARED(mw_far_tally, tally);
  MW_SHARED(u32, skip);
  const mw_slot *s = &c.state->slot[c.slot];
  int rank = blockIdx.x;
  if (threadIdx.x == 0) {
    mw_far_begin(c, &t);
    skip = mw_failed(c) || !mw_is_far(c, rank) || !mw_has(s->owners, rank);
  }
  __syncthreads();
  if (!skip) mw_far_send_rows(a, rank, &t, &tally);
  mw_far_end(c, a.far, rank, &t);
}

// Before moewire_rows_receive: sends what was left, and takes messages until a far
// rank's rows are here. For ranks that are lost, or left out, it does not wait. Before
// a release (MW_FLAG_REST) it says that there will be no more outputs. That waits for
// room, but not of what was combined in phases apart: no first phase waits then, nor
// does this, and what is left goes with the next launch.
MW_KERNEL void moewire_rows_far_take(const mw_far_take_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_far_turn, t);
  MW_SHARED(u32, skip);
  MW_SHARED(u32, counts);
  const mw_slot *s = &c.state->slot[c.slot];
  int rank = blockIdx.x;
  if (threadIdx.x == 0) {
    if (rank == 0 && !(c.flags & MW_FLAG_REST)) mw_tally_resume(c, MW_TALLY_DISPATCH);
    mw_far_begin(c, &t);
    skip = mw_failed(c) || !mw_is_far(c, rank) || s->ticket != c.ticket;
    counts = !(c.flags & MW_FLAG_REST) && mw_has(s->placed, rank) && !(c.active && c.active[rank] == 0);
  }
  __syncthreads();
  if (!skip) {
    const u64 *arrive = mw_line_at(mw_slab_at(c, c.rank, c.slot), c.slab.arrive, rank);
    mw_far_finish(c, a.far, rank, &t, [&] { // who has only counted: see mw_arrived
      return !counts || mw_load_acquire_sys(arrive) == mw_word(s->op - 1, 0) || (!s->ordered && mw_far_counted(c, c.slot, rank));
    });
    if (c.flags & MW_FLAG_REST && t.state != MW_FAR_GONE && !s->released && mw_far_is_owed(c, s, rank))
      mw_far_give(c, a.far, rank, MW_FAR_RELEASED, !s->combines || !(c.flags & MW_FLAG_SPLIT), &t);
  }
  mw_far_end(c, a.far, rank, &t);
}
