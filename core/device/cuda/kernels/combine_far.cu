// Combine between ranks that are reached by messages: one block for each rank,
// which does something for far ones only.
#include "far_take.cuh"

// The rows of a far source that count.
MW_INLINE u64 mw_far_rows_of(const mw_common &c, u8 *slab, int rank) {
  u64 total = 0;
  for (i64 l = 0; l < c.local_experts; l++) total += mw_load_relaxed_sys(mw_layout_at(c, slab, l, rank)) & 0xffffffffu;
  return total;
}

// Copies a piece of the outputs of a source's rows, in order of expert.
MW_INLINE void mw_far_copy_outputs(const mw_common &c, u8 *slab, int rank, const mw_far_head &h, u8 *msg) {
  i64 before = 0, bytes = c.slab.output_bytes;
  if (threadIdx.x == 0) *(mw_far_head *)msg = h;
  for (i64 l = 0; l < c.local_experts; l++) {
    u64 range = mw_load_relaxed_sys(mw_layout_at(c, slab, l, rank));
    i64 n = range & 0xffffffffu;
    mw_far_range r = mw_far_overlap(before, n, h.first, h.rows);
    const mw_quad *from = (const mw_quad *)(slab + c.slab.y + (l * c.slab.rows_per_expert + (i64)(range >> 32) + r.from) * bytes);
    mw_quad *to = (mw_quad *)(msg + sizeof(mw_far_head) + r.at * bytes);
    mw_stream(from, threadIdx.x, r.rows * bytes / 16, blockDim.x, [&](i64 i, const mw_quad &v) { to[i] = v; });
    before += n;
  }
}

// Sends a far source the outputs of its rows. To one whose rows the dispatch has not
// counted it says that there are none: also if they have come since, the caller
// has made no outputs of them.
MW_INLINE void mw_far_send_outputs(const mw_far_take_args &a, int rank, mw_far_turn *t) {
  const mw_common &c = a.c;
  const mw_slot *s = &c.state->slot[c.slot];
  u8 *slab = mw_slab_at(c, c.rank, c.slot);
  bool counted = mw_has(s->counted, rank);
  mw_far_head h = mw_far_head_of(c, s, MW_FAR_OUTPUTS);
  h.total = counted ? mw_far_rows_of(c, slab, rank) : 0;
  h.number = s->combines;
  if (counted && h.total == 0) return; // it waits for nothing
  do {
    u8 *msg = mw_far_lend(c, a.far, rank, t);
    if (!msg) return;
    h.rows = min(h.total - h.first, (t->bytes - sizeof(mw_far_head)) / c.slab.output_bytes);
    if (h.rows == 0 && h.total > 0) {
      if (mw_far_speaks(rank)) mw_fail(c, MW_ERROR_MESSAGE, rank, t->bytes);
      return;
    }
    mw_far_copy_outputs(c, slab, rank, h, msg);
    mw_far_post(c, a.far, rank, sizeof(mw_far_head) + h.rows * c.slab.output_bytes);
    h.first += h.rows;
  } while (h.first < h.total);
}

// Behind moewire_combine_publish.
MW_KERNEL void moewire_combine_far_send(const mw_far_take_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_far_turn, t);
  MW_SHARED(u32, skip);
  const mw_slot *s = &c.state->slot[c.slot];
  int rank = blockIdx.x;
  if (threadIdx.x == 0) {
    mw_far_begin(c, &t);
    skip = mw_failed(c) || !mw_is_far(c, rank) || s->ticket != c.ticket || !mw_has(s->writers, rank);
  }
  __syncthreads();
  if (!skip) mw_far_send_outputs(a, rank, &t);
  mw_far_end(c, a.far, rank, &t);
}

// Before moewire_combine_wait: takes messages until a far owner's outputs are here.
MW_KERNEL void moewire_combine_far_take(const mw_far_take_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_far_turn, t);
  MW_SHARED(u32, skip);
  const mw_slot *s = &c.state->slot[c.slot];
  int rank = blockIdx.x;
  if (threadIdx.x == 0) {
    if (rank == 0) mw_tally_resume(c, MW_TALLY_COMBINE);
    mw_far_begin(c, &t);
    skip = mw_failed(c) || !mw_is_far(c, rank) || s->ticket != c.ticket || (c.active && c.active[rank] == 0);
  }
  __syncthreads();
  if (!skip) {
    const u64 *ready = &mw_inbox_from(c, rank)->y_ready[s->slab_of[rank]];
    mw_far_until(c, a.far, rank, false, &t, [&] {
      return !mw_has(mw_peek_gpu(&s->sent), rank) || mw_load_acquire_sys(ready) >= mw_word(s->op - 1, s->combines);
    });
  }
  mw_far_end(c, a.far, rank, &t);
}
