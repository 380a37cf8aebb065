// What a first phase has to send and finds no room for. Only a running launch of the
// receiver makes room, and a receiver that has launched its own first phase may have
// anything in front of the second one. So where the second phase is launched apart,
// the first one does not wait for room: what is left stays here, and the second
// phase sends it, while it takes messages.
//
// Rows are kept as the messages that they will be sent in, since the caller may
// overwrite them after the first phase. They lie in the slab of the owner's shadow, of
// which nothing else is used until the outputs of these rows come. Outputs stay
// where they are.
//
// What is sent to one rank keeps its order: what is left of one operation goes
// before anything of the next one. Every function here is for one block, which
// serves one remote rank; no other block looks at what is left for that rank.
#pragma once

#include "remote_take.cuh"

// Where rows are kept.
struct mw_remote_shelf {
  u8 *at;
  i64 bytes;
};

MW_INLINE mw_remote_shelf mw_remote_shelf_of(const mw_common &c, int rank) {
  const mw_slot *s = &c.state->slot[c.slot];
  const mw_slab &g = s->slab;
  i64 end = g.y + mw_remote_experts(c, s) * g.rows_per_expert * g.output_bytes;
  return {mw_slab_at(c, rank, c.slot) + g.src_info, end - g.src_info};
}

// The slot of which something is left for a rank and goes first; -1: there is none.
MW_INLINE int mw_remote_first_left(const mw_common &c, int rank) {
  int first = -1;
  u64 turn = ~0ull;
  for (int j = 0; j < c.num_slots; j++) {
    u64 at = c.state->rest[j][rank].turn;
    if (!at || at > turn) continue;
    first = j;
    turn = at;
  }
  return first;
}

// Whether something is left of the own slot.
MW_INLINE bool mw_remote_has_left(const mw_common &c, int rank) { return c.state->rest[c.slot][rank].turn != 0; }

// Puts something at the end of what is left for a rank. One thread.
MW_INLINE void mw_remote_leave(const mw_common &c, int rank, u64 kind) {
  const mw_slot *s = &c.state->slot[c.slot];
  u64 turn = 0;
  for (int j = 0; j < c.num_slots; j++) turn = max(turn, c.state->rest[j][rank].turn);
  u64 next = kind == MW_REMOTE_ROWS ? s->slab.src_info : 0;
  c.state->rest[c.slot][rank] = {turn + 1, kind, next, s->op, s->combines};
}

// Sends the next of the messages with rows that are kept; whether there are more.
MW_INLINE bool mw_remote_send_kept(const mw_common &c, const mw_remote_common &f, int j, int rank, u8 *msg, const mw_remote_turn *t) {
  mw_remote_rest *rest = &c.state->rest[j][rank];
  const mw_remote_head *h = (const mw_remote_head *)(mw_slab_at(c, rank, j) + rest->next);
  u64 bytes = h->bytes, next = rest->next + mw_remote_align(bytes, 64);
  bool more = h->first + h->rows < h->total;
  if (bytes > t->bytes) { // leases are not that short
    if (mw_remote_speaks(rank)) mw_fail(c, MW_ERROR_MESSAGE, rank, t->bytes);
    return false;
  }
  mw_stream((const mw_quad *)h, threadIdx.x, (bytes + 15) / 16, blockDim.x, [&](i64 i, const mw_quad &v) { ((mw_quad *)msg)[i] = v; });
  mw_remote_post(c, f, rank, bytes);
  if (mw_remote_speaks(rank)) {
    rest->next = next;
    if (!more) rest->turn = 0;
  }
  return more;
}

// The rows of a remote source that count.
MW_INLINE u64 mw_remote_rows_of(const mw_common &c, const mw_slot *s, u8 *slab, int rank) {
  u64 total = 0;
  for (i64 l = 0; l < mw_remote_experts(c, s); l++) total += mw_load_relaxed_sys(mw_remote_layout(c, s->slab, slab, l, rank)) & 0xffffffffu;
  return total;
}

// Copies a piece of the outputs of a source's rows, in order of expert.
MW_INLINE void mw_remote_copy_outputs(const mw_common &c, const mw_slot *s, u8 *slab, int rank, const mw_remote_head &h, u8 *msg) {
  i64 before = 0, bytes = s->slab.output_bytes;
  if (threadIdx.x == 0) *(mw_remote_head *)msg = h;
  for (i64 l = 0; l < mw_remote_experts(c, s); l++) {
    u64 range = mw_load_relaxed_sys(mw_remote_layout(c, s->slab, slab, l, rank));
    i64 n = range & 0xffffffffu;
    if (!mw_fits(range >> 32, n, s->slab.rows_per_expert)) { // then the message does not go
      mw_fail(c, MW_ERROR_WILD, MW_WILD_LAYOUT, l, range, s->slab.rows_per_expert);
      return;
    }
    mw_remote_range r = mw_remote_overlap(before, n, h.first, h.rows);
    const mw_quad *from = (const mw_quad *)(slab + s->slab.y + (l * s->slab.rows_per_expert + (i64)(range >> 32) + r.from) * bytes);
    mw_quad *to = (mw_quad *)(msg + sizeof(mw_remote_head) + r.at * bytes);
    mw_stream(from, threadIdx.x, r.rows * bytes / 16, blockDim.x, [&](i64 i, const mw_quad &v) { to[i] = v; });
    before += n;
  }
}

// The slot of outputs that are left has something else. The second phase did not
// send them: it does not wait for a rank that was taken out, which may make room
// later, or it is a graph without a second phase. One thread.
MW_INLINE void mw_remote_forget(const mw_common &c, int j, int rank) {
  if (mw_has(mw_look(c), rank)) mw_fail(c, MW_ERROR_STALE, j);
  c.state->rest[j][rank].turn = 0;
}

// Sends a piece of the outputs of a remote source's rows; whether there are more. If the
// dispatch has not counted the source's rows, it says that there are none: also if they
// have come since, the caller has made no outputs of them.
MW_INLINE bool mw_remote_send_outputs(const mw_common &c, const mw_remote_common &f, int j, int rank, u8 *msg, const mw_remote_turn *t) {
  mw_remote_rest *rest = &c.state->rest[j][rank];
  const mw_slot *s = &c.state->slot[j];
  if (s->op != rest->op || s->combines != rest->number) {
    if (mw_remote_speaks(rank)) mw_remote_forget(c, j, rank);
    return false;
  }
  u8 *slab = mw_slab_at(c, c.rank, j);
  mw_remote_head h = mw_remote_head_of(c, s, MW_REMOTE_OUTPUTS);
  h.total = mw_has(s->counted, rank) ? mw_remote_rows_of(c, s, slab, rank) : 0;
  h.number = rest->number;
  h.first = rest->next;
  h.rows = min(h.total - h.first, (t->bytes - sizeof(mw_remote_head)) / s->slab.output_bytes);
  if (h.rows == 0 && h.total > 0) {
    if (mw_remote_speaks(rank)) mw_fail(c, MW_ERROR_MESSAGE, rank, t->bytes);
    return false;
  }
  mw_remote_copy_outputs(c, s, slab, rank, h, msg);
  mw_remote_post(c, f, rank, sizeof(mw_remote_head) + h.rows * s->slab.output_bytes);
  bool more = h.first + h.rows < h.total;
  if (mw_remote_speaks(rank)) {
    rest->next = h.first + h.rows;
    if (!more) rest->turn = 0;
  }
  return more;
}

// Says that an operation was released. Another one may have its slot by now.
MW_INLINE void mw_remote_send_released(const mw_common &c, const mw_remote_common &f, int j, int rank, u8 *msg) {
  mw_remote_rest *rest = &c.state->rest[j][rank];
  if (mw_remote_speaks(rank)) {
    mw_remote_head h = {};
    h.kind = MW_REMOTE_RELEASED;
    h.epoch = c.state->epoch;
    h.op = rest->op;
    h.number = rest->number;
    mw_remote_put_held(c, &h);
    *(mw_remote_head *)msg = h;
  }
  mw_remote_post(c, f, rank, sizeof(mw_remote_head));
  if (mw_remote_speaks(rank)) rest->turn = 0;
}

// Sends the next message of what is left of a slot; whether there are more.
MW_INLINE bool mw_remote_send_next(const mw_common &c, const mw_remote_common &f, int j, int rank, u8 *msg, const mw_remote_turn *t) {
  u64 kind = c.state->rest[j][rank].kind;
  if (kind == MW_REMOTE_ROWS) return mw_remote_send_kept(c, f, j, rank, msg, t);
  if (kind == MW_REMOTE_OUTPUTS) return mw_remote_send_outputs(c, f, j, rank, msg, t);
  mw_remote_send_released(c, f, j, rank, msg);
  return false;
}

// Whether a remote source waits for outputs of the own slot: the dispatch has not
// counted its rows, or there are some, and it has not let go.
MW_INLINE bool mw_remote_awaits_outputs(const mw_common &c, const mw_slot *s, int rank) {
  if (!mw_has(s->writers, rank) || mw_remote_has_let_go(c, s, rank)) return false;
  return !mw_has(s->counted, rank) || mw_remote_rows_of(c, s, mw_slab_at(c, c.rank, c.slot), rank) > 0;
}

// Sends something of the own slot behind what is left from before, unless the rank has
// let go meanwhile. Where it does not wait, what finds no room stays.
MW_INLINE void mw_remote_give(const mw_common &c, const mw_remote_common &f, int rank, u64 kind, bool wait, mw_remote_turn *t) {
  for (bool left = false;;) {
    __syncthreads(); // what the thread that speaks has noted
    if (!left && !mw_remote_has_left(c, rank)) {
      left = true;
      __syncthreads();
      if (mw_remote_speaks(rank) && mw_remote_awaits_outputs(c, &c.state->slot[c.slot], rank)) mw_remote_leave(c, rank, kind);
      __syncthreads();
    }
    int j = mw_remote_first_left(c, rank);
    u8 *msg = j < 0 ? 0 : mw_remote_lease(c, f, rank, wait || !left, j, t);
    if (msg)
      mw_remote_send_next(c, f, j, rank, msg, t);
    else if (j < 0 || t->state != MW_REMOTE_DONE || mw_remote_first_left(c, rank) == j)
      return;
  }
}

// What a second phase does: it takes messages until done(), which one thread asks,
// and until what its first phase has left is sent. Meanwhile it sends what is left
// of later operations, as far as there is room: the rank may be in their second
// phase.
template <class Done>
MW_INLINE void mw_remote_finish(const mw_common &c, const mw_remote_common &f, int rank, mw_remote_turn *t, Done done) {
  for (;;) {
    __syncthreads(); // what the thread that speaks has noted
    int j = mw_remote_first_left(c, rank);
    int state = mw_remote_until(c, f, rank, j >= 0, t, [&] { return !mw_remote_has_left(c, rank) && done(); });
    if (state != MW_REMOTE_CAPACITY) return;
    mw_remote_send_next(c, f, j, rank, (u8 *)f.ranks[rank].to + t->at, t);
  }
}

// Waits for a message, for room if something is left, or until every block has done
// its part. It blames no rank: the other blocks' waits have an end. One thread.
MW_INLINE int mw_remote_stay(const mw_common &c, const mw_remote_common &f, int rank, bool left, mw_remote_turn *t) {
  u64 lease = mw_remote_number(f, f.ranks[rank].sent + 1), came = mw_remote_came(f, rank);
  for (u32 turn = 0; mw_peek_gpu(&c.state->remote_done) < t->all; turn++) {
    bool looks = turn % MW_LOOK_EVERY == MW_LOOK_EVERY - 1;
    u64 in = looks ? mw_look(c) : mw_known(c);
    if (mw_failed(c) || !mw_has(in, rank) || !mw_has(in, c.rank) || (looks && mw_fifo_ended(c, f.fifo))) return MW_REMOTE_OUT;
    if (looks) mw_settle(c, rank);
    bool mail = mw_remote_has_mail(c, f, rank, came, t);
    if (mail || (left && mw_load_acquire_sys(&f.mail[rank].lease) == lease)) {
      mw_remote_show(f, rank, mail, t);
      return mail ? MW_REMOTE_MAIL : MW_REMOTE_CAPACITY;
    }
    mw_pause();
  }
  return MW_REMOTE_DONE;
}

// How a block ends: it goes on to serve its rank until all blocks have done their
// part. If it did not, three ranks could wait in a circle: each for room, of one
// that has no messages for it to send any more, or for what is left of another
// operation, of one that has done its part of this one.
MW_INLINE void mw_remote_end(const mw_common &c, const mw_remote_common &f, int rank, mw_remote_turn *t) {
  __syncthreads();
  if (mw_remote_speaks(rank)) mw_count_gpu(&c.state->remote_done);
  if (!mw_is_remote(c, rank)) {
    while (mw_remote_speaks(rank) && rank != c.rank && mw_peek_gpu(&c.state->remote_done) < t->all && !mw_failed(c)) {
      mw_settle(c, rank);
      mw_pause();
    }
    return;
  }
  while (t->state != MW_REMOTE_OUT) {
    __syncthreads();
    int j = mw_remote_first_left(c, rank);
    __syncthreads();
    if (mw_remote_speaks(rank)) t->state = mw_remote_stay(c, f, rank, j >= 0, t);
    __syncthreads();
    if (t->state == MW_REMOTE_CAPACITY)
      mw_remote_send_next(c, f, j, rank, (u8 *)f.ranks[rank].to + t->at, t);
    else if (t->state == MW_REMOTE_MAIL)
      mw_remote_take(c, f, rank, t);
    else
      return;
  }
}
