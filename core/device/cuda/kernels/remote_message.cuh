// What messages between the devices of remote ranks hold. An operation's rows, and
// its outputs, go in as many messages as they need: pieces. Both ends are
// kernels of one build, so nothing of this is a format for others.
#pragma once

#include "remote.cuh"

// Of the operations that a rank has begun it holds one per slot at most. The others it
// has released: there will be no more outputs of them. Every message says which it
// holds, each by its age, which is 1 for the latest one; 0: none. All that are older
// than ages go have the same, so of one of these nothing is said as long as any is held.

// How every message begins.
struct alignas(64) mw_remote_head {
  u64 kind;
  u64 epoch;
  u64 op;      // the operation's number plus one
  u64 number;  // of outputs: which combine; of a release: how many there were
  u64 total;   // rows of all pieces
  u64 first;   // of this piece, among them
  u64 rows;    // in this piece
  u64 tokens;  // of the source's call: mw_tokens
  u32 call[4]; // as in mw_slot
  u64 topk, extras;
  u64 bytes;   // of a message with rows
  u64 begun;   // operations that the sender has begun
  u64 held[MW_MAX_SLOTS_CUDA / MW_REMOTE_AGES]; // the ages of those that it holds
};

struct mw_remote_send_args {
  mw_common c;
  mw_remote_common remote;
  const u8 *x;      // bf16 [T, H]
  const i32 *index; // of the plan
  i32 *tokens;      // [R, list_tokens]: room for a list of tokens for each rank
  i64 list_tokens;
  const float *weights; // of flat rows: [T, K]
  const u8 *extra[MW_NUM_EXTRAS]; // [T, bytes]
};

struct mw_remote_take_args {
  mw_common c;
  mw_remote_common remote;
  const i64 *where; // of the slot: mw_place_args
};

struct mw_remote_order_args {
  mw_plan_args plan;
  mw_remote_common remote;
};

// Where one row goes: an expert of the owner's, and which of the source's rows
// for it this one is.
struct mw_remote_place {
  i32 expert; // negative: none
  u32 index;
};

// Where the parts of a piece of rows begin; outputs, and counts that come alone,
// follow the head at once. `counts` has the source's rows for each of the owner's
// experts. Flat rows lie one after another, so they have no places; their columns
// stand one behind the other.
struct mw_remote_parts {
  i64 counts, tokens, places, scales, columns, rows, size;
};

// The bytes of a message of counts alone.
MW_INLINE u64 mw_remote_counts_bytes(i64 experts) { return sizeof(mw_remote_head) + 4 * (u64)experts; }

MW_INLINE i64 mw_remote_align(i64 n, i64 to) { return (n + to - 1) / to * to; }

// The bytes of an extra column, or of all, for so many rows.
MW_INLINE i64 mw_remote_extra_bytes(const mw_slab &g, int i, i64 rows) { return mw_remote_align(g.extra_bytes[i] * rows, 16); }

MW_INLINE i64 mw_remote_column_bytes(const mw_slab &g, i64 topk, i64 rows) {
  i64 n = g.topk_idx ? mw_remote_align(8 * topk * rows, 16) + mw_remote_align(4 * topk * rows, 16) : 0;
  MW_UNROLL
  for (int i = 0; i < MW_NUM_EXTRAS; i++) n += mw_remote_extra_bytes(g, i, rows);
  return n;
}

MW_INLINE mw_remote_parts mw_remote_parts_of(const mw_slab &g, bool flat, i64 experts, i64 topk, i64 rows) {
  mw_remote_parts p;
  p.counts = sizeof(mw_remote_head);
  p.tokens = p.counts + mw_remote_align(4 * experts, 16);
  p.places = p.tokens + mw_remote_align(4 * rows, 16);
  p.scales = p.places + (flat ? 0 : mw_remote_align(rows * topk * (i64)sizeof(mw_remote_place), 16));
  p.columns = p.scales + mw_remote_align(rows * g.scale_words * 4, 16);
  p.rows = mw_remote_align(p.columns + (flat ? mw_remote_column_bytes(g, topk, rows) : 0), 64);
  p.size = p.rows + rows * g.row_bytes;
  return p;
}

// How many rows a piece of so many bytes holds.
MW_INLINE i64 mw_remote_capacity_for(const mw_slab &g, bool flat, i64 experts, i64 topk, i64 bytes) {
  i64 rest = bytes - mw_remote_parts_of(g, flat, experts, topk, 0).columns - MW_REMOTE_SLACK;
  i64 one = g.row_bytes + g.scale_words * 4 + 4;
  one += flat ? (g.topk_idx ? 12 * topk : 0) : topk * (i64)sizeof(mw_remote_place);
  MW_UNROLL
  for (int i = 0; i < MW_NUM_EXTRAS; i++) one += g.extra_bytes[i];
  return rest < one ? 0 : rest / one;
}

// The age of an operation, given its number plus one.
MW_INLINE u64 mw_remote_age(u64 begun, u64 op) { return min(begun + 1 - op, (u64)MW_REMOTE_OLDEST); }

MW_INLINE void mw_remote_put_held(const mw_common &c, mw_remote_head *h) {
  h->begun = c.state->next_op;
  MW_UNROLL
  for (int j = 0; j < MW_MAX_SLOTS_CUDA; j++) {
    const mw_slot *s = &c.state->slot[j];
    if (j < c.num_slots && s->op && !s->released)
      h->held[j / MW_REMOTE_AGES] |= mw_remote_age(h->begun, s->op) << j % MW_REMOTE_AGES * MW_REMOTE_AGE_BITS;
  }
}

// Whether the sender of a message holds an operation that it has begun.
MW_INLINE bool mw_remote_holds(const mw_remote_head *h, u64 op) {
  u64 age = mw_remote_age(h->begun, op);
  for (int j = 0; j < MW_MAX_SLOTS_CUDA; j++)
    if ((h->held[j / MW_REMOTE_AGES] >> j % MW_REMOTE_AGES * MW_REMOTE_AGE_BITS & MW_REMOTE_OLDEST) == age) return true;
  return false;
}

MW_INLINE mw_remote_head mw_remote_head_of(const mw_common &c, const mw_slot *s, u64 kind) {
  mw_remote_head h = {};
  h.kind = kind;
  h.epoch = c.state->epoch;
  h.op = s->op;
  h.topk = s->topk;
  h.extras = s->extras;
  MW_UNROLL
  for (int i = 0; i < 4; i++) h.call[i] = s->call[i];
  mw_remote_put_held(c, &h);
  return h;
}

// Which of the rows [first, first + rows) are a given expert's, of those that lie
// by expert, each with `n` rows behind `before` others.
struct mw_remote_range {
  i64 at, from, rows; // in the piece, among the expert's, how many
};

MW_INLINE mw_remote_range mw_remote_overlap(i64 before, i64 n, i64 first, i64 rows) {
  i64 begin = max(before, first), end = min(before + n, first + rows);
  return {begin - first, begin - before, max(end - begin, (i64)0)};
}
