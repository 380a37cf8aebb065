// Dispatch, second part: reads every row once, casts it if asked to, and stores
// it at each of its places; then says so.
#include "columns.cuh"
#include "numbers.cuh"
#include "slots.cuh"
#include "streams.cuh"

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
  if (first != k) return;
  u8 *slab = mw_slab_at(c, owner, s->slab_of[owner]);
  i64 row = l * c.slab.rows_per_expert + pos;
  p->row[k] = slab + c.slab.rows + row * c.slab.row_bytes;
  p->scales[k] = slab + c.slab.scales + (l * c.slab.scale_words * c.slab.rows_per_expert + pos) * 4;
  *(i32 *)(slab + c.slab.src_info + row * 4) = t;
  p->slab[k] = slab;
  p->owner[k] = (u8)owner;
  p->pos[k] = (i32)pos;
}

MW_INLINE void mw_copy_row(const mw_place_args &a, int t, const mw_places *p) {
  const mw_common &c = a.c;
  const mw_quad *x = (const mw_quad *)(a.x + (i64)t * c.hidden * 2);
  mw_stream(x, threadIdx.x, c.hidden / 8, blockDim.x, [&](i64 i, const mw_quad &v) {
    for (int k = 0; k < c.topk; k++)
      if (p->row[k]) ((mw_quad *)p->row[k])[i] = v;
  });
}

// The largest magnitude, by bits, of what 16 neighbouring lanes hold.
MW_INLINE u32 mw_largest(const mw_quad &v) {
  u32 most = 0;
  for (int i = 0; i < 4; i++) {
    u32 low = v.v[i] & 0x7fffu, high = v.v[i] >> 16 & 0x7fffu;
    most = max(most, max(low, high));
  }
  u32 lanes = 0xffffu << (threadIdx.x & 16);
  for (int apart = 8; apart > 0; apart /= 2) most = max(most, __shfl_xor_sync(lanes, most, apart));
  return most;
}

MW_INLINE void mw_store_scale(const mw_place_args &a, const mw_places *p, int k, int block, u32 stored) {
  i64 column = a.c.slab.rows_per_expert * 4;
  if ((a.c.flags >> MW_FLAG_SCALES_SHIFT & 3) == MW_SCALES_UE8M0)
    p->scales[k][block / 4 * column + block % 4] = (u8)(stored >> 23);
  else
    *(u32 *)(p->scales[k] + block * column) = stored;
}

// Eight values per thread; a block of scales is 16 neighbouring threads. Hidden
// is a multiple of 128, so such a group works or rests together.
MW_INLINE void mw_cast_row(const mw_place_args &a, int t, const mw_places *p) {
  const mw_common &c = a.c;
  const mw_quad *x = (const mw_quad *)(a.x + (i64)t * c.hidden * 2);
  for (int i = threadIdx.x; i < c.hidden / 8; i += blockDim.x) {
    mw_quad v = x[i];
    mw_cast cast = mw_cast_of(mw_largest(v), c.flags >> MW_FLAG_SCALES_SHIFT & 3);
    u32 q[4];
    for (int j = 0; j < 4; j++)
      q[j] = mw_to_e4m3_pair(__fmul_rn(mw_from_bf16(v.v[j] & 0xffffu), cast.scale),
                             __fmul_rn(mw_from_bf16(v.v[j] >> 16), cast.scale));
    mw_pair out = {{q[0] | q[1] << 16, q[2] | q[3] << 16}};
    for (int k = 0; k < c.topk; k++) {
      if (!p->row[k]) continue;
      ((mw_pair *)p->row[k])[i] = out;
      if (i % 16 == 0) mw_store_scale(a, p, k, i / 16, cast.stored);
    }
  }
}

// One thread per rank, once all rows are there.
MW_INLINE void mw_tell_arrived(const mw_common &c, int rank) {
  const mw_slot *s = &c.state->slot[c.slot];
  if (!mw_has(s->owners & ~mw_owed(s), rank)) return;
  mw_store_release_sys(mw_line_at(mw_slab_at(c, rank, s->slab_of[rank]), c.slab.arrive, c.rank), mw_word(s->op - 1, 0));
}

MW_KERNEL void moewire_dispatch_place(const mw_place_args a) {
  const mw_common &c = a.c;
  MW_SHARED(mw_places, p);
  MW_SHARED(u32, skip);
  if (threadIdx.x == 0) skip = mw_failed(c);
  __syncthreads();
  for (int t = blockIdx.x; t < c.num_tokens && !skip; t += gridDim.x) {
    for (int k = threadIdx.x; k < c.topk; k += blockDim.x) mw_find(a, t, k, &p);
    __syncthreads();
    if (c.flags & MW_FLAG_FP8)
      mw_cast_row(a, t, &p);
    else
      mw_copy_row(a, t, &p);
    if (c.flags & MW_FLAG_FLAT) mw_place_columns(a, t, &p);
    __syncthreads();
  }
  if (!mw_is_last(c, MW_STEP_PLACE)) return;
  if (c.tally && threadIdx.x == 0) mw_flight_of(c)->sent = mw_now_ns();
  for (int i = threadIdx.x; i < c.num_ranks * c.local_experts; i += blockDim.x) a.count[i] = 0;
  if ((int)threadIdx.x < c.num_ranks && !skip) mw_tell_arrived(c, threadIdx.x);
}
