// What is counted of operations: few threads write it, to memory of the device
// and from there to memory that the host reads. Nothing here waits.
// Without counters (c.counters is null) nothing is counted.
#pragma once

#include "control_words.cuh"

MW_INLINE mw_inflight *mw_inflight_of(const mw_common &c) { return &c.state->slot[c.slot].inflight; }

// One thread: shows the host what the operation does now, for example that it waits.
MW_INLINE void mw_record_show(const mw_common &c, u64 op, u64 kind, u64 since) {
  if (!c.counters) return;
  c.state->shown = op << 8 | kind;
  mw_store_relaxed_sys(&c.counters->since, since);
  mw_store_relaxed_sys(&c.counters->current, c.state->shown);
}

// One thread: the operation does nothing any more. Another one may be shown.
MW_INLINE void mw_record_hide(const mw_common &c, u64 op) {
  if (!c.counters || !c.state->shown || c.state->shown >> 8 != op) return;
  c.state->shown = 0;
  mw_store_relaxed_sys(&c.counters->current, 0);
}

// One thread: an operation of the slot begins, or goes on with another kind.
MW_INLINE void mw_record_begin(const mw_common &c, u64 op, u64 kind) {
  if (!c.counters) return;
  mw_inflight *f = mw_inflight_of(c);
  f->start = mw_now_ns();
  f->place = f->sent = f->resume = f->seen = 0;
  f->wait = f->alone = f->missing = f->last = f->copied = 0;
  f->num_pulled = 0;
  mw_record_show(c, op, kind, f->start);
}

// One thread: the second phase of the slot's operation begins, in the kernel that
// takes messages of remote ranks, if there are any.
MW_INLINE void mw_record_resume(const mw_common &c, u64 kind) {
  const mw_slot *s = &c.state->slot[c.slot];
  mw_inflight *f = mw_inflight_of(c);
  if (!c.counters || s->ticket != c.ticket || f->resume) return;
  f->resume = mw_now_ns();
  mw_record_show(c, s->op - 1, kind, f->start);
}

// The thread of a rank, which was not there at the first look. (One thread of a
// launch. What messages of a remote rank are waited for counts until the last one.)
MW_INLINE void mw_record_wait(const mw_common &c, u64 began) {
  if ((int)threadIdx.x >= c.num_ranks) return;
  mw_wait_times *times = &c.state->wait_times[threadIdx.x];
  if (!times->came) times->began = began;
  times->came = mw_now_ns();
  mw_or_gpu(&c.state->waited, 1ull << threadIdx.x);
}

// One thread, after waits that began together: books them with the slot's operation,
// or with none (MW_RECORD_READERS). A rank that was missing at the end of a wait for
// messages counts as missing from its beginning.
MW_INLINE void mw_record_waits(const mw_common &c, u64 kind) {
  u64 waited = c.counters ? mw_load_relaxed_sys(&c.state->waited) : 0, first = ~0ull, latest = 0, before = 0, last = 0;
  if (!waited) return;
  for (int r = 0; r < c.num_ranks; r++)
    if (waited >> r & 1) first = min(first, c.state->wait_times[r].began);
  for (int r = 0; r < c.num_ranks; r++) {
    if (!(waited >> r & 1)) continue;
    u64 came = c.state->wait_times[r].came;
    c.state->wait_times[r].came = 0;
    if (came >= latest) {
      before = latest;
      latest = came;
      last = r;
    } else {
      before = max(before, came);
    }
    if (kind == MW_RECORD_READERS) continue;
    u64 *total = &c.state->wait_for[kind - 1][r];
    *total += came - first;
    mw_store_relaxed_sys(&c.counters->wait_for[kind - 1][r], *total);
    if (c.wait_ns) c.wait_ns[r] += (i64)(came - first);
  }
  c.state->waited = 0;
  if (kind == MW_RECORD_READERS) return;
  mw_inflight *f = mw_inflight_of(c);
  f->wait += latest - first;
  f->alone = latest - max(before, first);
  f->last = last + 1;
  f->missing |= waited;
}

// The thread of a rank: rows that it was sent, and sent, by a dispatch that is done.
MW_INLINE void mw_record_rows(const mw_common &c, int rank) {
  const mw_inflight *f = mw_inflight_of(c);
  u64 *to = &c.state->rows_to[rank], *from = &c.state->rows_from[rank];
  if (f->rows_to[rank]) mw_store_relaxed_sys(&c.counters->rows_to[rank], *to += f->rows_to[rank]);
  if (f->rows_from[rank]) mw_store_relaxed_sys(&c.counters->rows_from[rank], *from += f->rows_from[rank]);
}

// The bytes of a row that is placed: values, scales, src_info and columns.
MW_INLINE u64 mw_record_row_bytes(const mw_common &c) {
  u64 n = c.slab.row_bytes + 4 * c.slab.scale_words + 4;
  if (c.slab.topk_idx) n += 12 * c.topk;
  for (int i = 0; i < MW_NUM_EXTRAS; i++) n += c.slab.extra_bytes[i];
  return n;
}

// One thread: the operation has ended. What it wrote before is there when the
// host sees the new number of records.
MW_INLINE void mw_record_end(const mw_common &c, u64 kind, bool failed, u64 rows_out, u64 rows_in, u64 row_bytes) {
  const mw_slot *s = &c.state->slot[c.slot];
  const mw_inflight *f = &s->inflight;
  u64 number = c.state->num_records++;
  mw_record *to = &c.counters->ring[number % MW_RECORD_RING];
  const u64 words[] = {
      kind | (u64)failed << 16 | f->last << 32 | s->combines << 40, s->op - 1, f->start, f->place, f->sent, f->resume, f->seen, mw_now_ns(),
      f->wait, f->alone, f->missing, rows_out, rows_in, (u64)c.num_tokens, rows_out * row_bytes, f->copied};
  u64 *at = (u64 *)to;
  MW_UNROLL
  for (int i = 0; i < MW_RECORD_WORDS; i++) mw_store_relaxed_sys(&at[i], words[i]);
  mw_record_hide(c, s->op - 1);
  mw_store_release_sys(&c.counters->num_records, number + 1);
}
