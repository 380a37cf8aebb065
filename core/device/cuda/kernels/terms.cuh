// What a token's sum is made of, in which order: docs/numerics.md, "Reduce".
#pragma once

#include "numbers.cuh"
#include "owners.cuh"
#include "streams.cuh"

// In the order of the sum. There are as many as selections; behind the last one
// are empty ones, so that they can be taken MW_MOST_LOADS at a time.
struct mw_terms {
  const u8 *row[MW_MAX_TOPK]; // null: contributes nothing
  float weight[MW_MAX_TOPK];
  u8 ends[MW_MAX_TOPK]; // with runs: the last one of its rank
};

// Where a selection's term stands if those of one rank stand together: ranks in
// the order in which they are named first, rows of one in order of k, selections
// without a row last.
MW_INLINE int mw_place_in_runs(const i64 *where, int topk, int k, bool *ends) {
  int rank = mw_went_to(where, k), place = 0;
  u64 before = 0; // ranks that are named before this one
  for (int i = 0; rank >= 0 && mw_went_to(where, i) != rank; i++)
    if (where[i] >= 0) before |= 1ull << mw_went_to(where, i);
  *ends = rank >= 0;
  for (int i = 0; i < topk; i++) {
    int other = mw_went_to(where, i);
    if (other == rank) {
      place += i < k;
      if (i > k) *ends = false;
    } else if (other >= 0) {
      place += rank < 0 || mw_has(before, other);
    }
  }
  return place;
}

// The same for flat rows: one for each rank, in order of rank. Selections that
// are not the first of their rank, or have no row, come last.
MW_INLINE int mw_place_in_ranks(const i64 *where, int topk, int k, bool *first) {
  int rank = mw_went_to(where, k), rest = 0;
  u64 ranks = 0;
  *first = rank >= 0;
  for (int i = 0; i < topk; i++) {
    int other = mw_went_to(where, i);
    bool fresh = other >= 0 && !mw_has(ranks, other);
    if (fresh) ranks |= 1ull << other;
    if (i >= k) continue;
    rest += !fresh;
    if (other == rank) *first = false;
  }
  return *first ? __popcll(ranks & ((1ull << rank) - 1)) : __popcll(ranks) + rest;
}

// Whether a selection that has a row is the dispatch's, and not left out. Sums
// by rank may be made elsewhere, by what was dispatched: nothing is left out.
MW_INLINE bool mw_selects(const mw_reduce_args &a, i64 at, int owner, i64 row) {
  const mw_common &c = a.c;
  if (c.flags & MW_FLAG_FLAT) return true; // the owner has selected when it made the sums
  i64 e = c.topk_idx[at];
  bool pre_reduce = c.flags & MW_FLAG_PRE_REDUCE;
  if (e == -1 && !pre_reduce) return false;
  i64 sent = (i64)owner * c.local_experts + row / c.slab.rows_per_expert;
  if (e != sent) mw_fail(c, MW_ERROR_ROUTING, at, e, sent, c.topk);
  if (pre_reduce && mw_bits_of(a.weights[at]) != mw_bits_of(a.kept[at]))
    mw_fail(c, MW_ERROR_WEIGHTS, at, mw_bits_of(a.weights[at]), mw_bits_of(a.kept[at]), c.topk);
  return true;
}

// One thread per selection of a token: its term, and whether there is one.
template <bool runs> MW_INLINE bool mw_gather_one(const mw_reduce_args &a, int t, int k, mw_terms *p) {
  const mw_common &c = a.c;
  const i64 *where = a.where + (i64)t * c.topk;
  i64 at = (i64)t * c.topk + k;
  bool ends = false, first = true, flat = c.flags & MW_FLAG_FLAT;
  int to = runs ? mw_place_in_runs(where, c.topk, k, &ends) : k;
  if (!runs && flat) to = mw_place_in_ranks(where, c.topk, k, &first);
  p->row[to] = 0;
  if (runs) p->ends[to] = ends;
  if (where[k] < 0 || !first) return false;
  int owner = mw_went_to(where, k);
  i64 row = where[k] & 0xffffffffffffll;
  if (!mw_selects(a, at, owner, row) || !mw_has(*a.use, owner)) return false;
  p->row[to] = mw_slab_at(c, owner, c.state->slot[c.slot].slab_of[owner]) + c.slab.y + row * c.slab.output_bytes;
  p->weight[to] = flat ? 1.0f : a.weights[at];
  return true;
}

// All terms of a token; how many the thread has made.
template <bool runs> MW_INLINE u32 mw_gather(const mw_reduce_args &a, int t, mw_terms *p) {
  int topk = a.c.topk, all = (topk + MW_MOST_LOADS - 1) / MW_MOST_LOADS * MW_MOST_LOADS;
  u32 made = 0;
  for (int k = threadIdx.x; k < all; k += blockDim.x) {
    if (k < topk) {
      made += mw_gather_one<runs>(a, t, k, p);
      continue;
    }
    p->row[k] = 0;
    p->ends[k] = 0;
  }
  return made;
}
