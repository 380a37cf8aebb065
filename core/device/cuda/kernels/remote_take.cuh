// Taking messages of remote ranks. The receiver does in its own memory what the sender
// would have done there, as core/ep/cpu does: it reserves places, fans rows
// out and says that they have arrived; outputs go to where the sender's slab is
// shadowed. So the other kernels know nothing of messages.
//
// Every wait for a remote rank takes what comes of it meanwhile, whichever operation
// it is of: what is waited for may be behind it. Messages are sent by the first
// phases of calls only, which all ranks make in the same order: what stands in
// front of a message that is waited for is of calls that this rank has begun.
//
// Every function here is for one block, which serves one remote rank; the thread
// with the rank's number speaks for it.
#pragma once

#include "remote_mail.cuh"

// Waits until done(), or for room if it is asked for, or for a message. One thread.
template <class Done>
MW_INLINE int mw_remote_await(const mw_common &c, const mw_remote_common &f, int rank, bool room, mw_remote_turn *t, Done done) {
  const mw_mail *m = &f.mail[rank];
  u64 lease = mw_remote_number(f, f.ranks[rank].sent + 1), came = mw_remote_came(f, rank);
  int state = MW_REMOTE_OUT;
  u32 turn = 0;
  int end = mw_await(c, rank, [&] {
    state = MW_REMOTE_OUT;
    if (done())
      state = MW_REMOTE_DONE;
    else if (room && mw_load_acquire_sys(&m->lease) == lease)
      state = MW_REMOTE_CAPACITY;
    else if (mw_remote_has_mail(c, f, rank, came, t))
      state = MW_REMOTE_MAIL;
    return state != MW_REMOTE_OUT || (++turn % MW_LOOK_EVERY == 0 && mw_fifo_ended(c, f.fifo));
  });
  if (end == MW_RANK_OUT || mw_failed(c)) return MW_REMOTE_OUT;
  mw_remote_show(f, rank, state == MW_REMOTE_MAIL, t);
  return state;
}

MW_INLINE u64 *mw_remote_layout(const mw_common &c, const mw_slab &g, u8 *slab, i64 l, int rank) {
  return (u64 *)(slab + g.layout) + l * c.num_ranks + rank;
}

MW_INLINE bool mw_remote_is_flat(const mw_slot *s) { return s->call[MW_PARAM_FLAGS - MW_PARAM_MAX_TOKENS] & MW_FLAG_FLAT; }

// How many experts have rows apart in a slot's operation.
MW_INLINE i64 mw_remote_experts(const mw_common &c, const mw_slot *s) {
  return mw_remote_is_flat(s) ? 1 : s->call[MW_PARAM_EXPERTS - MW_PARAM_MAX_TOKENS] / c.num_ranks;
}

// Whether the source has called with the parameters of this rank.
MW_INLINE bool mw_remote_agrees(const mw_slot *s, const mw_remote_head *h) {
  for (int i = 0; i < 4; i++)
    if (h->call[i] != s->call[i]) return false;
  return !mw_remote_is_flat(s) || (h->topk == s->topk && h->extras == s->extras);
}

// Where the parts of a piece that fits are.
MW_INLINE mw_remote_parts mw_remote_parts_in(const mw_common &c, const mw_slot *s, const mw_remote_head *h) {
  return mw_remote_parts_of(s->slab, mw_remote_is_flat(s), mw_remote_experts(c, s), h->topk, h->rows);
}

// And whether the piece of a source that agrees is what it says.
MW_INLINE bool mw_remote_fits(const mw_common &c, const mw_slot *s, const mw_remote_head *h, u64 bytes) {
  if (h->topk > MW_MAX_TOPK || h->rows > h->total || h->first > h->total - h->rows || h->rows > bytes) return false;
  return (u64)mw_remote_parts_in(c, s, h).size <= bytes;
}

// The source's parameters. One thread.
MW_INLINE void mw_remote_store_params(const mw_slot *s, u8 *slab, int rank, const mw_remote_head *h) {
  u64 *p = mw_line_at(slab, s->slab.params, rank);
  mw_store_relaxed_sys(&p[MW_PARAM_OP], h->op);
  for (int i = 0; i < 4; i++) mw_store_relaxed_sys(&p[MW_PARAM_MAX_TOKENS + i], h->call[i]);
  mw_store_relaxed_sys(&p[MW_PARAM_TOPK], h->topk);
  mw_store_relaxed_sys(&p[MW_PARAM_TOKENS], h->tokens);
  mw_store_relaxed_sys(&p[MW_PARAM_EXTRAS], h->extras);
}

// How many rows a message says that its source has for an expert.
MW_INLINE u64 mw_remote_count(const mw_common &c, const mw_slot *s, int rank, const u8 *msg, i64 l, mw_remote_turn *t) {
  u64 n = ((const volatile u32 *)(msg + sizeof(mw_remote_head)))[l];
  if (n <= s->call[0]) return n;
  mw_remote_blames(c, rank, t, MW_WILD_COUNTS, n);
  return 0;
}

// What a source says before its rows, if they are put in order: how many it has.
MW_INLINE void mw_remote_take_counts(const mw_common &c, int rank, const u8 *msg, mw_remote_turn *t) {
  const mw_slot *s = &c.state->slot[t->slot];
  u8 *slab = mw_slab_at(c, c.rank, t->slot);
  bool agrees = mw_remote_agrees(s, &t->head), fits = mw_remote_counts_bytes(mw_remote_experts(c, s)) <= t->bytes;
  if (agrees && !fits) mw_remote_blames(c, rank, t, MW_WILD_HEAD, t->bytes);
  if (mw_remote_speaks(rank)) mw_remote_store_params(s, slab, rank, &t->head);
  for (i64 l = threadIdx.x; l < mw_remote_experts(c, s); l += blockDim.x)
    mw_store_relaxed_sys(mw_remote_layout(c, s->slab, slab, l, rank), agrees && fits ? mw_remote_count(c, s, rank, msg, l, t) : 0);
  __syncthreads();
  if (mw_remote_speaks(rank) && !t->wild) mw_store_release_sys(mw_line_at(slab, s->slab.counted, rank), mw_word(s->op - 1, 0));
}

// With the first piece of rows that are in no order: places for them.
MW_INLINE void mw_remote_reserve(const mw_common &c, const mw_slot *s, u8 *slab, int rank, const u8 *msg, bool fits, mw_remote_turn *t) {
  if (mw_remote_speaks(rank)) mw_remote_store_params(s, slab, rank, &t->head);
  for (i64 l = threadIdx.x; l < mw_remote_experts(c, s); l += blockDim.x) {
    u64 n = fits ? mw_remote_count(c, s, rank, msg, l, t) : 0;
    u64 begin = n ? mw_add_relaxed_sys((u64 *)(slab + s->slab.counter) + l, n) : 0;
    if (!mw_fits(begin, n, s->slab.rows_per_expert)) {
      if (begin > MW_MAX_RESERVED)
        mw_fail(c, MW_ERROR_WILD, MW_WILD_COUNTER, l, begin, s->slab.rows_per_expert);
      else
        mw_fail(c, MW_ERROR_CAPACITY, c.rank, begin);
      begin = n = 0;
    }
    mw_store_relaxed_sys(mw_remote_layout(c, s->slab, slab, l, rank), begin << 32 | n);
  }
}

// One thread per selection: where row i of the piece goes in the own slab.
MW_INLINE void mw_remote_find(const mw_common &c, const mw_slot *s, u8 *slab, int rank, const mw_remote_head *h, const u8 *msg, i64 i, int k, mw_places *p) {
  const mw_slab &g = s->slab;
  mw_remote_parts x = mw_remote_parts_in(c, s, h);
  u64 word = ((const volatile u64 *)(msg + x.places))[i * h->topk + k];
  mw_remote_place to = {(i32)word, (u32)(word >> 32)};
  p->row[k] = 0;
  if (to.expert < 0 || to.expert >= mw_remote_experts(c, s)) return;
  u64 range = mw_load_relaxed_sys(mw_remote_layout(c, g, slab, to.expert, rank));
  if (to.index >= (range & 0xffffffffu) || !mw_fits(range >> 32, range & 0xffffffffu, g.rows_per_expert)) return; // see moewire_rows_receive
  i64 pos = (i64)(range >> 32) + to.index, row = to.expert * g.rows_per_expert + pos;
  p->row[k] = slab + g.rows + row * g.row_bytes;
  p->scales[k] = slab + g.scales + (to.expert * g.scale_words * g.rows_per_expert + pos) * 4;
  *(i32 *)(slab + g.src_info + row * 4) = ((const i32 *)(msg + x.tokens))[i];
}

// Stores row i of a piece at each of its places.
MW_INLINE void mw_remote_store_row(const mw_common &c, const mw_slot *s, const mw_remote_head *h, const u8 *msg, i64 i, const mw_places *p) {
  const mw_slab &g = s->slab;
  mw_remote_parts x = mw_remote_parts_in(c, s, h);
  int topk = (int)h->topk;
  const mw_quad *row = (const mw_quad *)(msg + x.rows + i * g.row_bytes);
  mw_stream(row, threadIdx.x, g.row_bytes / 16, blockDim.x, [&](i64 at, const mw_quad &v) {
    for (int k = 0; k < topk; k++)
      if (p->row[k]) ((mw_quad *)p->row[k])[at] = v;
  });
  const u32 *scales = (const u32 *)(msg + x.scales) + i * g.scale_words;
  for (i64 w = threadIdx.x; w < g.scale_words; w += blockDim.x)
    for (int k = 0; k < topk; k++)
      if (p->row[k]) *(u32 *)(p->scales[k] + w * g.rows_per_expert * 4) = scales[w];
}

// Copies what stands beside n flat rows to position pos on: tokens, and columns.
MW_INLINE void mw_remote_store_columns(const mw_slab &g, u8 *slab, i64 topk, i64 n, i64 pos, const u8 *tokens, const u8 *columns) {
  MW_ROLLED
  for (int i = -3; i < MW_NUM_EXTRAS; i++) {
    i64 to = i == -3 ? g.src_info : i == -2 ? g.topk_idx : i == -1 ? g.topk_weights : g.extra[i];
    i64 width = i == -3 ? 4 : i == -2 ? 8 * topk : i == -1 ? 4 * topk : g.extra_bytes[i];
    if (!to || !width) continue;
    mw_copy_column(slab + to + pos * width, i == -3 ? tokens : columns, (int)(n * width));
    if (i > -3) columns += mw_remote_align(n * width, 16);
  }
}

// Stores a piece of flat rows, which lie one after another.
MW_INLINE void mw_remote_store_flat(const mw_common &c, const mw_slot *s, u8 *slab, int rank, const mw_remote_head *h, const u8 *msg) {
  const mw_slab &g = s->slab;
  mw_remote_parts x = mw_remote_parts_in(c, s, h);
  u64 range = mw_load_relaxed_sys(mw_remote_layout(c, g, slab, 0, rank));
  i64 n = h->rows, pos = (i64)(range >> 32) + h->first;
  if (h->first + n > (range & 0xffffffffu) || !mw_fits(range >> 32, range & 0xffffffffu, g.rows_per_expert)) return; // see moewire_rows_receive
  mw_quad *rows = (mw_quad *)(slab + g.rows + pos * g.row_bytes);
  mw_stream((const mw_quad *)(msg + x.rows), threadIdx.x, n * g.row_bytes / 16, blockDim.x, [&](i64 i, const mw_quad &v) { rows[i] = v; });
  const u32 *scales = (const u32 *)(msg + x.scales);
  for (i64 i = threadIdx.x; i < n * g.scale_words; i += blockDim.x)
    *(u32 *)(slab + g.scales + (i % g.scale_words * g.rows_per_expert + pos + i / g.scale_words) * 4) = scales[i];
  mw_remote_store_columns(g, slab, h->topk, n, pos, msg + x.tokens, msg + x.columns);
}

MW_INLINE void mw_remote_take_rows(const mw_common &c, int rank, const u8 *msg, mw_remote_turn *t) {
  const mw_slot *s = &c.state->slot[t->slot];
  const mw_remote_head *h = &t->head;
  u8 *slab = mw_slab_at(c, c.rank, t->slot);
  bool fits = mw_remote_agrees(s, h), counted = s->ordered && mw_remote_counted(c, t->slot, rank);
  if (fits && !mw_remote_fits(c, s, h, t->bytes)) {
    mw_remote_blames(c, rank, t, MW_WILD_HEAD, h->rows);
    return;
  }
  if (h->first == 0 && !counted) mw_remote_reserve(c, s, slab, rank, msg, fits && !s->ordered, t);
  __syncthreads();
  bool placed = fits && !t->wild && (!s->ordered || (counted && mw_has(mw_load_relaxed_sys(&s->placed), rank)));
  bool flat = mw_remote_is_flat(s);
  if (placed && flat) mw_remote_store_flat(c, s, slab, rank, h, msg);
  for (i64 i = 0; placed && !flat && i < (i64)h->rows; i++) {
    for (int k = threadIdx.x; k < (int)h->topk; k += blockDim.x) mw_remote_find(c, s, slab, rank, h, msg, i, k, &t->p);
    __syncthreads();
    mw_remote_store_row(c, s, h, msg, i, &t->p);
    __syncthreads();
  }
  __syncthreads();
  if (mw_remote_speaks(rank) && !t->wild && (!fits || h->first + h->rows == h->total))
    mw_store_release_sys(mw_line_at(slab, s->slab.arrive, rank), mw_word(s->op - 1, 0));
}

// Outputs of a remote owner go to its shadow, in order of expert. An owner that has
// nothing of this rank contributes nothing.
MW_INLINE void mw_remote_take_outputs(const mw_common &c, int rank, const u8 *msg, mw_remote_turn *t) {
  mw_slot *s = &c.state->slot[t->slot];
  const mw_remote_head *h = &t->head;
  const mw_slab &g = s->slab;
  u8 *slab = mw_slab_at(c, rank, s->slab_of[rank]);
  bool whole = h->rows <= t->bytes && sizeof(mw_remote_head) + h->rows * g.output_bytes <= t->bytes;
  if (!whole || h->rows > h->total || h->first > h->total - h->rows || h->number > MW_COUNT) {
    mw_remote_blames(c, rank, t, MW_WILD_HEAD, h->rows);
    return;
  }
  i64 before = 0;
  for (i64 l = 0; l < mw_remote_experts(c, s); l++) {
    i64 n = mw_load_relaxed_sys(mw_remote_layout(c, g, slab, l, c.rank)) & 0xffffffffu;
    mw_remote_range r = mw_remote_overlap(before, n, h->first, h->rows);
    const mw_quad *from = (const mw_quad *)(msg + sizeof(mw_remote_head) + r.at * g.output_bytes);
    mw_quad *to = (mw_quad *)(slab + g.y + (l * g.rows_per_expert + r.from) * g.output_bytes);
    mw_stream(from, threadIdx.x, r.rows * g.output_bytes / 16, blockDim.x, [&](i64 i, const mw_quad &v) { to[i] = v; });
    before += n;
  }
  __syncthreads();
  if (!mw_remote_speaks(rank)) return;
  if (h->total == 0) mw_and_gpu(&s->sent, ~(1ull << rank));
  if (h->first + h->rows == h->total)
    mw_store_release_sys(mw_remote_ready(c, s, rank), mw_word(s->op - 1, h->number));
}

// Takes the message in front, after its head was read, and releases its memory. Of a rank
// that has sent what cannot be, nothing counts any more.
MW_INLINE void mw_remote_take(const mw_common &c, const mw_remote_common &f, int rank, mw_remote_turn *t) {
  const mw_remote_head *h = &t->head;
  const u8 *msg = (const u8 *)f.ranks[rank].from + t->at;
  if (mw_remote_speaks(rank)) {
    bool known = h->epoch == c.state->epoch && !mw_has(mw_peek_gpu(&c.state->wild), rank);
    t->slot = known ? mw_remote_slot_of(c, h->op) : -1;
    t->wild = 0;
  }
  __syncthreads();
  if (t->slot >= 0 && h->kind == MW_REMOTE_COUNTS) mw_remote_take_counts(c, rank, msg, t);
  if (t->slot >= 0 && h->kind == MW_REMOTE_ROWS) mw_remote_take_rows(c, rank, msg, t);
  if (t->slot >= 0 && h->kind == MW_REMOTE_OUTPUTS) mw_remote_take_outputs(c, rank, msg, t);
  if (t->slot >= 0 && mw_remote_speaks(rank) && (h->kind < MW_REMOTE_ROWS || h->kind > MW_REMOTE_RELEASED || h->number > MW_COUNT))
    mw_remote_blames(c, rank, t, MW_WILD_HEAD, h->kind);
  else if (t->slot >= 0 && h->kind == MW_REMOTE_RELEASED && mw_remote_speaks(rank))
    mw_remote_mark_released(c, t->slot, rank, mw_word(h->op - 1, h->number));
  __syncthreads();
  if (mw_remote_speaks(rank)) mw_remote_release(c, f, rank);
}

// Takes messages until done(), which one thread asks, or until there is room for
// one to send. MW_REMOTE_OUT: neither will be.
template <class Done>
MW_INLINE int mw_remote_until(const mw_common &c, const mw_remote_common &f, int rank, bool room, mw_remote_turn *t, Done done) {
  for (;;) {
    __syncthreads();
    if (mw_remote_speaks(rank)) t->state = mw_remote_await(c, f, rank, room, t, done);
    __syncthreads();
    if (t->state != MW_REMOTE_MAIL) return t->state;
    mw_remote_take(c, f, rank, t);
  }
}

// Whether the host has looked, and there is no room for a message. One thread.
MW_INLINE bool mw_remote_is_full(const mw_remote_common &f, int rank) {
  const mw_mail *m = &f.mail[rank];
  u64 want = mw_remote_number(f, f.ranks[rank].sent + 1);
  return mw_load_acquire_sys(&m->full) == want && mw_load_acquire_sys(&m->lease) != want;
}

// Where the next message to a rank is put together, of what is left of slot j, unless
// that is negative. Null: there will be no room; or (MW_REMOTE_DONE) there is none and it is
// not waited for, or nothing is left there any more.
MW_INLINE u8 *mw_remote_lease(const mw_common &c, const mw_remote_common &f, int rank, bool wait, int j, mw_remote_turn *t) {
  int state = mw_remote_until(c, f, rank, true, t, [&] {
    return (j >= 0 && !c.state->rest[j][rank].turn) || (!wait && mw_remote_is_full(f, rank));
  });
  return state == MW_REMOTE_CAPACITY ? (u8 *)f.ranks[rank].to + t->at : 0;
}

// Sends what all threads have written there, unless the buffer has ended meanwhile.
MW_INLINE void mw_remote_post(const mw_common &c, const mw_remote_common &f, int rank, i64 bytes) {
  __syncthreads();
  if (mw_remote_speaks(rank) && !mw_failed(c)) mw_remote_send(c, f, rank, bytes);
}

// How a block begins: one thread.
MW_INLINE void mw_remote_begin(const mw_common &c, mw_remote_turn *t) {
  t->state = MW_REMOTE_DONE;
  t->read = 0;
  t->all = (mw_peek_gpu(&c.state->remote_done) / c.num_ranks + 1) * c.num_ranks;
}
