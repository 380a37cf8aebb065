// What the kernels share with one another, with other ranks, and with the host:
// structs of fixed layout. Constants are those of core/ep/protocol, which also makes the
// mirrors of the structs in Go (make generate).
//
// The protocol is that of docs/protocol.md. What differs: words that a rank
// waits for are pushed into its own memory, numbers of operations live on the
// device (so a recorded graph of any length replays), and the slab that an
// operation uses is the owner's choice, told by `open`.
#pragma once

#include "memory_order.cuh"
#include "protocol.cuh"

MW_INLINE u64 mw_word(u64 op, u64 detail) { return (op + 1) << MW_OP_SHIFT | detail; }
MW_INLINE u64 mw_op_of(u64 word) { return (word >> MW_OP_SHIFT) - 1; }

// What one peer pushes into this rank's memory.
struct mw_inbox {
  u64 open[MW_OPEN_RING];      // by operation modulo the ring: its slot is open
  u64 y_ready[MW_MAX_SLOTS_CUDA];   // by the peer's slot: combines published, final bit
  u64 row_order[MW_MAX_SLOTS_CUDA]; // by the peer's slot: whether this rank's rows have places there
};

// Where the shared part of a rank's memory begins: inboxes, then slabs.
struct mw_arena {
  mw_inbox from[MW_MAX_RANKS];
};

// One rank's slab, by bytes; layout.Slab of core/ep/layout.
struct mw_slab {
  i64 params, arrive, done, counter; // of rank 0 or expert 0
  i64 layout, src_info, scales, rows, y;
  i64 rows_per_expert, row_bytes, output_bytes, scale_words;
  i64 counted; // of rank 0
  i64 topk_idx, topk_weights, extra[MW_NUM_EXTRAS]; // columns of flat rows
  i32 extra_bytes[MW_NUM_EXTRAS];                   // of a row; 0: no such column
};

// What is known of a slot's operation until its record is written: counters.cuh.
// Times are those of mw_now_ns; 0: not yet.
struct mw_inflight {
  u64 start, place, sent, resume, seen;
  u64 wait, alone; // ns: all waits, and the part of the latest for which one rank alone was missing
  u64 missing;     // ranks that were waited for
  u64 last;        // the one that came last in the latest wait, plus one; 0: there was no wait
  u64 copied;      // bytes, by a combine
  u32 num_received, num_pulled; // rows of the dispatch; rows read by a combine
  u32 rows_to[MW_MAX_RANKS], rows_from[MW_MAX_RANKS];
};

// What a rank keeps to itself of one slot.
struct mw_slot {
  u64 op;         // the operation that holds it, plus one; 0: none ever did
  u64 writers;    // ranks that may write into the own slab
  u64 owners;     // this rank writes to their slabs
  u64 unopened;       // of the owners: those that have not opened yet
  u64 sent;       // of the owners: those that have rows of this rank
  u64 counted;    // the rows of these ranks count
  u64 combines;   // published so far
  u64 released;   // 1: nothing of the operation is used any more
  u32 finished[8]; // blocks that have ended, by step
  u8 slab_of[MW_MAX_RANKS]; // which slab of an owner is written to
  u32 call[4]; // M, H, E and flags of its call
  u64 reduced;    // combines that have made their sums
  u64 ticket;     // of the call that began the operation
  u64 placed;     // ranks that may have rows in the own slab
  u64 ordered;    // 1: they have the places that the order gives them
  u64 topk;       // K of its call
  u64 extras;     // the widths of its extra columns
  u64 tokens;     // what is said of its tokens: mw_tokens
  u64 lacks;      // owners that had no room for this rank's rows, by their counters
  mw_slab slab;   // where things lie in it: a launch of another call may need it
  mw_inflight inflight;
};

// What is left to send to a remote rank of a slot's operation: remote_rest.cuh.
struct mw_remote_rest {
  u64 turn;   // orders those for one rank; 0: nothing is left
  u64 kind;   // of the messages
  u64 next;   // of rows: where the next message stands among those kept; of outputs: the first row
  u64 op;     // as in mw_slot
  u64 number; // as in mw_remote_head
};

// When a rank was waited for, until that is booked: counters.cuh.
struct mw_wait_times {
  u64 began, came; // came: 0 if it was not
};

// The device's side of one buffer.
struct mw_state {
  u64 next_op;
  u64 failed; // not 0: the error that ended the buffer
  u64 waits_ended; // waits that have ended, one per rank and wait
  u64 waited; // ranks that have wait times
  u64 num_records;
  u64 remote; // ranks that are reached by messages: remote.cuh; written by the host
  u64 remote_done; // blocks that have done their part, one per rank and launch of those for remote ranks
  u64 shown;  // what stands in mw_counters.current
  u64 epoch;  // that this rank has joined; written by the host
  u64 in;     // its members at the latest look (mw_look); all of them when the host has just joined the epoch
  u64 wild;   // ranks of which a wild word was found: mw_violates
  mw_slot slot[MW_MAX_SLOTS_CUDA];
  mw_wait_times wait_times[MW_MAX_RANKS];
  u64 rows_to[MW_MAX_RANKS], rows_from[MW_MAX_RANKS]; // totals, those of mw_counters
  u64 wait_for[2][MW_MAX_RANKS];
  mw_remote_rest rest[MW_MAX_SLOTS_CUDA][MW_MAX_RANKS];
};

// What the host says: written by it, in memory that both see.
struct mw_host_control {
  u64 members; // epoch from MW_EPOCH_SHIFT on, ranks below
  u64 quiesced;  // ranks that are known to write nothing more
  u64 pad[6];
};

// What the device says to the host.
struct mw_report {
  u64 timed_out[MW_MAX_RANKS]; // not 0: the wait of this name for this rank is past its deadline; the host takes it, and decides
  u64 error;              // MW_ERROR_*, the first that happened
  u64 detail[4];          // its numbers
  u64 ops;                // operations begun
  u64 pad[2];
  u64 waits[MW_MAX_RANKS]; // not 0: something waits for this rank, and not for the first moment: when it began, which names it
  u64 wild[MW_MAX_RANKS];  // not 0: MW_WILD_*, a word of this rank that it cannot have stored; the host takes the rank out
  u64 held[MW_MAX_RANKS];  // the value of that word
};

// More than any ranks reserve of an expert, whatever shapes they call with.
const u64 MW_MAX_RESERVED = (u64)MW_MAX_RANKS << 31;

// An operation that has ended.
struct mw_record {
  u64 kind; // MW_RECORD_*, whether it failed << 16, the rank that came last plus one << 32,
            // 1 for the first combine of a handle << 40
  u64 op, start, place, sent, resume, seen, end;
  u64 wait, alone, missing;
  u64 rows_out; // sent by a dispatch; read by a combine
  u64 rows_in, tokens;
  u64 bytes, copied; // placed, or read; copied by a combine
};

// What the device has counted, in memory that the host reads. Behind it are the
// rows that each local expert was sent.
struct mw_counters {
  u64 num_records; // written so far; the latest MW_RECORD_RING are in the ring
  u64 current;     // MW_RECORD_* and, 8 bits higher, the operation that is under way; 0: none
  u64 since;       // when that began
  u64 num_experts; // local ones of the latest dispatch with rows per expert
  u64 pad[4];
  u64 rows_to[MW_MAX_RANKS], rows_from[MW_MAX_RANKS];
  u64 wait_for[2][MW_MAX_RANKS]; // ns; of dispatches, of combines
  mw_record ring[MW_RECORD_RING];
};

// What every kernel is given.
struct mw_common {
  mw_state *state;
  u64 *bases; // by rank: where its arena stands in this address space
  mw_host_control *host_control;
  mw_report *report;
  mw_counters *counters; // null: nothing is counted
  i64 timeout_ns; // of a wait; negative: none
  i64 slab_off, slab_bytes; // slabs in an arena
  mw_slab slab;
  i32 rank, num_ranks, num_experts, local_experts;
  i32 num_tokens, max_tokens, hidden, topk;
  i32 slot, num_slots;
  u32 flags;
  i32 num_blocks; // of this launch
  i32 block_experts; // experts that have their rows together: 1; with flat rows, all of a rank
  u64 ticket; // the same in all launches of one operation
  i32 *active; // the caller's active_ranks, int32 [num_ranks], or null
  const i64 *topk_idx; // [T, K]
  i64 *wait_ns; // [R] or null: for how long the operation waited for each rank is added
};

struct mw_plan_args {
  mw_common c;
  u32 *count; // [E], zeros: rows for each expert
  u32 *base;  // [E]: the first of this rank's
  i32 *index; // [T, K]: within this rank's rows; negative: see mw_index_of
};

struct mw_place_args {
  mw_common c;
  const u8 *x; // bf16 [T, H]
  u32 *count;
  const u32 *base;
  const i32 *index;
  i64 *where; // [T, K]: owner << 48 | row of its outputs; negative: none
  const float *weights; // [T, K] with MW_FLAG_PRE_REDUCE, which go to kept, or of flat rows
  float *kept;
  const u8 *extra[MW_NUM_EXTRAS]; // [T, bytes]
};

struct mw_receive_args {
  mw_common c;
  i32 *recv_count; // [L]
  i64 *layout;     // [L, R]
  i64 *stats;      // [R] or null: rows of each source are added
  i32 *peers_have_more; // [1] or null: whether a rank that counts has more
  u32 *rows;       // [L]: recv_count, kept from the caller
  u64 *experts;    // [L]: rows of all dispatches
};

struct mw_publish_args {
  mw_common c;
  const u8 *outputs; // [L, C, H]; null: they are in place
  const u32 *rows;
};

// Of the waits: of dispatch for readers of earlier outputs, of combine.
struct mw_wait_args {
  mw_common c;
  u64 *use;         // the outputs of these ranks count
  const i64 *where; // of the slot: mw_place_args
};

struct mw_reduce_args {
  mw_common c;
  const i64 *where;
  const float *weights; // [T, K]
  u8 *out;              // bf16 [T, H]
  const u64 *use;
  const float *kept; // weights of the dispatch, with MW_FLAG_PRE_REDUCE
};

// Rows between places in the memory of this rank's device: routed.cu.
struct mw_move_args {
  mw_common c;
  const u8 *from;   // rows of `bytes`
  u8 *to;           // the same
  const i32 *moves; // [num, 2]: which row goes where; the first negative: zeros
  i64 num, bytes;
  i64 lanes; // threads that move one row together; they divide a block
};

// Sums of rows in the memory of this rank's device: routed.cu.
struct mw_sum_args {
  mw_common c;
  const u8 *rows; // [.., H]
  const u8 *bias[MW_NUM_BIASES]; // [num, H], added first; or null
  const i32 *terms; // [num, width]: the rows of each sum, in order; negative: none
  u8 *out; // [num, H]
  const float *weights; // [.., K], of each row, or null: no weights are added up
  float *out_weights;   // [num, K]
  i64 num, width;
};

// Values of index that are no position.
enum { MW_NO_ROW = -1, MW_SAME_AS = -2 }; // MW_SAME_AS - k: the row of selection k
