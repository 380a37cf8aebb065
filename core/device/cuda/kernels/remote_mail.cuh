// What has come of remote ranks: which message can be taken, and how it begins. A message
// lies where its sender can still write, so its head is copied before anything of it is
// compared. Every function here but mw_remote_blames is for the thread that speaks for the rank.
#pragma once

#include "columns.cuh"
#include "remote_message.cuh"

// What the threads of a block share while it serves a rank.
struct mw_remote_turn {
  u64 at, bytes; // of the message, or of the room
  u64 all;       // of remote_done, once every block has done its part
  i32 state;
  i32 slot; // of the message's operation; -1: there is none
  u32 wild; // something in the message cannot be
  u64 read; // the number of the message that this head belongs to
  mw_remote_head head;
  mw_places p;
};

enum { MW_REMOTE_OUT, MW_REMOTE_DONE, MW_REMOTE_CAPACITY, MW_REMOTE_MAIL };

MW_INLINE bool mw_remote_speaks(int rank) { return (int)threadIdx.x == rank; }

MW_INLINE int mw_remote_slot_of(const mw_common &c, u64 op) {
  for (int j = 0; j < c.num_slots; j++)
    if (op && c.state->slot[j].op == op) return j;
  return -1;
}

// Whether a remote rank has told how many rows it has for a slot's operation.
MW_INLINE bool mw_remote_counted(const mw_common &c, int j, int rank) {
  const mw_slot *s = &c.state->slot[j];
  return mw_load_relaxed_sys(mw_line_at(mw_slab_at(c, c.rank, j), s->slab.counted, rank)) == mw_word(s->op - 1, 0);
}

// Whether rows of a slot's operation have somewhere to go: in order, only when it
// is made. (A rank that sends rows and has told no counts makes no order, and gets an error.)
MW_INLINE bool mw_remote_has_order(const mw_common &c, int j, int rank) {
  if (!c.state->slot[j].ordered || !mw_remote_counted(c, j, rank)) return true;
  u64 word = mw_load_acquire_sys(&mw_inbox_from(c, c.rank)->row_order[j]);
  return word >> MW_OP_SHIFT == c.state->slot[j].op;
}

// Whether a message can be taken now. Rows of an operation that has not begun
// have no slab; outputs of a combine come when the sums of the one before it are
// made. What no operation asks for any more, or what cannot be, is taken, and dropped.
MW_INLINE bool mw_remote_takes(const mw_common &c, int rank, const mw_remote_head *h) {
  if (h->epoch != c.state->epoch) return true;
  int j = mw_remote_slot_of(c, h->op);
  if (h->kind == MW_REMOTE_OUTPUTS) return j < 0 || c.state->slot[j].released || h->number <= c.state->slot[j].reduced + 1 || h->number > MW_COUNT;
  return h->op <= c.state->next_op && (j < 0 || h->kind != MW_REMOTE_ROWS || mw_remote_has_order(c, j, rank));
}

MW_INLINE u64 mw_remote_came(const mw_remote_common &f, int rank) { return mw_remote_number(f, f.ranks[rank].released + 1); }

// The word of a remote owner that says which outputs of a slot's operation are here.
MW_INLINE u64 *mw_remote_ready(const mw_common &c, const mw_slot *s, int rank) {
  return (u64 *)&mw_inbox_from(c, rank)->y_ready[s->slab_of[rank]];
}

// The owner has released: a combine gets an error and does not hang, as with a local owner.
// The word says how many outputs there were. What is left of this rank's own for that
// one is of no use to it, and room for it may not come. One thread.
MW_INLINE void mw_remote_mark_released(const mw_common &c, int j, int rank, u64 word) {
  mw_slot *s = &c.state->slot[j];
  mw_remote_rest *rest = &c.state->rest[j][rank];
  mw_store_release_sys(mw_remote_ready(c, s, rank), word | MW_FINAL);
  if (rest->kind == MW_REMOTE_OUTPUTS && rest->op == s->op) rest->turn = 0;
}

// Whether it has.
MW_INLINE bool mw_remote_has_let_go(const mw_common &c, const mw_slot *s, int rank) {
  u64 word = mw_load_relaxed_sys(mw_remote_ready(c, s, rank));
  return word >> MW_OP_SHIFT == s->op && word & MW_FINAL;
}

// Ends the buffer if it has without the outputs of the latest combine, as moewire_outputs_wait
// does, which comes when every remote rank has been waited for. One thread.
MW_INLINE void mw_remote_check_outputs(const mw_common &c, const mw_slot *s, int rank) {
  u64 made = mw_load_acquire_sys(mw_remote_ready(c, s, rank)) & MW_COUNT;
  if (mw_remote_has_let_go(c, s, rank) && made < s->combines) mw_fail(c, MW_ERROR_RELEASED, rank);
}

// Hears from a message which operations its sender has released. The outputs
// that it has made of them are in front of the message. One thread.
MW_INLINE void mw_remote_observe_held(const mw_common &c, int rank, const mw_remote_head *h) {
  if (h->epoch != c.state->epoch) return;
  for (int j = 0; j < c.num_slots; j++) {
    const mw_slot *s = &c.state->slot[j];
    if (!s->op || s->op > h->begun || s->released || !mw_has(s->owners, rank)) continue;
    if (mw_remote_has_let_go(c, s, rank) || mw_remote_holds(h, s->op)) continue;
    u64 word = mw_load_relaxed_sys(mw_remote_ready(c, s, rank));
    mw_remote_mark_released(c, j, rank, word >> MW_OP_SHIFT == s->op ? word : mw_word(s->op - 1, 0));
  }
}

// A message of a rank has what no rank sends. Nothing of it counts.
MW_INLINE void mw_remote_blames(const mw_common &c, int rank, mw_remote_turn *t, u64 word, u64 held) {
  t->wild = 1;
  mw_violates(c, rank, word, held);
}

// Reads how message number `came` begins: once, for its sender can still write there.
// What is compared and what is used is this copy alone. One thread.
MW_INLINE void mw_remote_read_head(const mw_common &c, const mw_remote_common &f, int rank, u64 came, mw_remote_turn *t) {
  const mw_mail *m = &f.mail[rank];
  u64 bytes = mw_load_relaxed_sys(&m->came_bytes);
  t->read = came;
  if (bytes < sizeof(mw_remote_head)) {
    t->head.epoch = ~0ull; // of no epoch: it is dropped
    mw_violates(c, rank, MW_WILD_HEAD, bytes);
    return;
  }
  const u8 *from = (const u8 *)(f.ranks[rank].from + mw_load_relaxed_sys(&m->came_at));
  mw_quad head[sizeof(mw_remote_head) / 16];
  MW_UNROLL
  for (int i = 0; i < (int)(sizeof(mw_remote_head) / 16); i++) head[i] = mw_read_quad(from + i * 16); // all are under way together
  MW_UNROLL
  for (int i = 0; i < (int)(sizeof(mw_remote_head) / 16); i++) ((mw_quad *)&t->head)[i] = head[i];
}

// Whether message number `came` is there and can be taken. It is heard before that: a
// rank that has released what is waited for may be far ahead, and its message of a
// later operation than any of this rank's stays where it is.
MW_INLINE bool mw_remote_has_mail(const mw_common &c, const mw_remote_common &f, int rank, u64 came, mw_remote_turn *t) {
  if (mw_load_acquire_sys(&f.mail[rank].came) != came) return false;
  if (t->read != came) mw_remote_read_head(c, f, rank, came, t);
  mw_remote_observe_held(c, rank, &t->head);
  return mw_remote_takes(c, rank, &t->head);
}

MW_INLINE void mw_remote_show(const mw_remote_common &f, int rank, bool mail, mw_remote_turn *t) {
  const mw_mail *m = &f.mail[rank];
  t->at = mw_load_relaxed_sys(mail ? &m->came_at : &m->lease_at);
  t->bytes = mw_load_relaxed_sys(mail ? &m->came_bytes : &m->lease_bytes);
}
