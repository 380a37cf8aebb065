// Dispatch, second part: reads every row once, casts it if asked to, and stores
// it at each of its places; then says so.
#include "cast.cuh"
#include "columns.cuh"
#include "slots.cuh"

// One thread per selection: where it goes.
MW_INLINE void mw_find(const mw_place_args &a, int t, int k, mw_places *p) {
  const mw_common &c = a.c;
  i64 at = (i64)t * c.topk + k;
  i32 index = a.index[at];
  p->row[k] = 0;
  a.where[at] = -1;
  if (c.flags & MW_FLAG_PRE_REDUCE) a.kept[at] = a.weights[at];
  if (index == MW_NO_ROW) return;
  int first = index <= MW_SAME_AS ? MW_SAME_AS - index : k;
  int block = mw_block_of(c, c.topk_idx[at]), owner = block / c.local_experts;
  i64 l = block % c.local_experts, pos = (i64)a.base[block] + a.index[(i64)t * c.topk + first];
  const mw_slot *s = &c.state->slot[c.slot];
  if (!mw_has(s->sent, owner)) return; // it was lost meanwhile, or gives no place
  a.where[at] = (i64)owner << 48 | (l * c.slab.rows_per_expert + pos);
  if (first != k || mw_is_remote(c, owner)) return; // see dispatch_remote.cu
  u8 *slab = mw_slab_at(c, owner, s->slab_of[owner]);
  i64 row = l * c.slab.rows_per_expert + pos;
  p->row[k] = slab + c.slab.rows + row * c.slab.row_bytes;
  p->scales[k] = slab + c.slab.scales + (l * c.slab.scale_words * c.slab.rows_per_expert + pos) * 4;
  *(i32 *)(slab + c.slab.src_info + row * 4) = t;
  p->slab[k] = slab;
  p->owner[k] = (u8)owner;
  p->pos[k] = (i32)pos;
}

// One thread per rank, once all rows are there.
MW_INLINE void mw_publish_arrived(const mw_common &c, int rank) {
  const mw_slot *s = &c.state->slot[c.slot];
  if (!mw_has(s->owners & ~mw_unopened(s), rank)) return;
  mw_store_release_sys(mw_line_at(mw_slab_at(c, rank, s->slab_of[rank]), c.slab.arrive, c.rank), mw_word(s->op - 1, 0));
}

template <int loads> MW_INLINE void mw_place(const mw_place_args &a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_places, p);
  MW_SHARED(u32, skip);
  if (threadIdx.x == 0) skip = mw_failed(c);
  __syncthreads();
  for (int t = blockIdx.x; t < c.num_tokens && !skip; t += gridDim.x) {
    for (int k = threadIdx.x; k < c.topk; k += blockDim.x) mw_find(a, t, k, &p);
    __syncthreads();
    if (c.flags & MW_FLAG_FP8)
      mw_cast_row<loads>(c, a.x, t, &p, c.slab.rows_per_expert * 4);
    else
      mw_copy_row<loads>(c, a.x, t, &p);
    if (c.flags & MW_FLAG_FLAT) mw_place_columns(a, t, &p);
    __syncthreads();
  }
  if (!mw_is_last(c, MW_STEP_PLACE)) return;
  if (c.counters && threadIdx.x == 0) mw_inflight_of(c)->sent = mw_now_ns();
  for (int i = threadIdx.x; i < c.num_ranks * c.local_experts; i += blockDim.x) a.count[i] = 0;
  if ((int)threadIdx.x < c.num_ranks && !skip) mw_publish_arrived(c, threadIdx.x);
}

// One for each number of loads that a thread has under way.
MW_KERNEL void moewire_dispatch_place(const mw_place_args a) { mw_place<MW_LOADS>(a); }
MW_KERNEL void moewire_dispatch_place_narrow(const mw_place_args a) { mw_place<1>(a); }
MW_KERNEL void moewire_dispatch_place_deep(const mw_place_args a) { mw_place<MW_MOST_LOADS>(a); }
