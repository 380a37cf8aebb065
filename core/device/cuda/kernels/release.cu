// Gives an operation back that is not combined (again). One block.
#include "slots.cuh"

MW_KERNEL void moewire_rows_release(const mw_wait_args a) {
  const mw_common &c = a.c;
  mw_slot *s = &c.state->slot[c.slot];
  int r = threadIdx.x;
  if (s->ticket != c.ticket) return; // it was replaced, and so released
  if (r < c.num_ranks && s->op && !s->released && !mw_failed(c)) {
    mw_settle(c, r);
    mw_release(c, s, c.slot, r);
  }
  __syncthreads();
  if (r != 0 || !s->op) return;
  s->released = 1;
  mw_record_hide(c, s->op - 1);
}
