/*
 * moewire_routing.h - routings, and the two collectives over one: scatter brings rows to
 * the ranks of their tokens, gather brings rows back and adds them up. The contract of
 * moewire.h holds here: statuses, sized structs, ids, threads, borrowed memory, fork. C11
 * and C++.
 *
 * A routing is ordinary memory. It holds no slot of the buffer. It may be used as often as
 * the group's epoch lasts, in any order, and many routings may be kept.
 *
 * Notation as in moewire.h: R ranks, E experts, L = E/R experts per rank, T tokens on this
 * rank, K selections per token. N: the rows that this rank receives. T may differ from
 * rank to rank, and is not bounded by the size of the buffer: rows go in rounds.
 *
 * Rows lie in one of two layouts:
 *  - compact: one row per token and source rank, in order of source rank and token; N rows.
 *  - expanded: one row per selection of an expert of this rank; an expert's rows lie
 *    together, in order of source rank, token and k. The first row of each expert, and the
 *    number of all rows (mw_routing_num_rows), are a multiple of expert_alignment.
 *
 * mw_routing_create, mw_buffer_scatter and mw_buffer_gather are collective: every rank of
 * the group makes the same calls in the same order. On one buffer they run one at a time,
 * in that order: a call whose earlier ones have not ended waits for them, or is in progress.
 * They return MW_OK when they are done, or MW_IN_PROGRESS and an operation when slice_us
 * passed first. The operation goes on while a thread waits for it (mw_op_wait, which has
 * one phase here) or makes another of these calls on the buffer. All memory that is passed
 * in is borrowed until the operation has ended, or until mw_op_close.
 *
 * Faults: none of the three goes on without a rank. If a rank is lost, or is later than
 * timeout_us, they return MW_ERR_PEER_LOST, which names the rank. So does a routing of which
 * more comes to this rank than a routing holds. An operation that is cancelled, or closed
 * before its end, once it has begun (this rank has sent something) fails on the other ranks
 * likewise. MW_ERR_FENCED of a routing may also mean that rows came which no rank sends; the
 * text says which. In each of these cases, this rank leaves its epoch: later calls on the buffer
 * return an error until mw_buffer_update. If it has not begun, nothing has happened: the
 * others still wait for this call. MW_ERR_PEER_MISMATCH says which argument ranks disagree
 * on.
 * A call with bad arguments (MW_ERR_INVALID_ARGUMENT) has not begun: it may be repeated. So
 * may one that returns MW_ERR_BUSY, because a handle of a dispatch on the buffer was
 * neither combined nor released: rows go through all slots. MW_ERR_WOULD_BLOCK: 1024 of
 * these operations have not ended; nothing has happened.
 *
 * On CUDA the memory of a scatter and a gather is the device's: x, out and biases are 16-byte
 * aligned, weights 4-byte aligned. What mw_routing_create is given, and what mw_routing_read
 * writes, is memory of the host. A call launches on `stream`, a CUstream or cudaStream_t as a
 * number (0: the legacy default stream), behind what is there, and waits on the host for what it
 * has launched, round by round. So it also waits for what the caller has put on the stream before.
 * At its end the results are in place. A stream that is captured is refused, before anything has
 * happened. The caller orders calls on different streams. A call needs one slot that no handle
 * holds, or it returns MW_ERR_BUSY. A slot must have room for a row of each rank. Ranks that
 * disagree leave their epoch after MW_ERR_PEER_MISMATCH. The first routing allocates 16 MiB of
 * pinned memory and 48 MiB on the device, which mw_buffer_close frees. No GPU has run these calls
 * yet: docs/cuda.md says what was shown instead.
 */
#ifndef MOEWIRE_ROUTING_H
#define MOEWIRE_ROUTING_H

#include "moewire.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { uint64_t id; } mw_routing_t;

/* ------------------------------------------------------------- routing -- */

typedef struct {
	uint32_t size;
	uint32_t reserved;              /* 0 */
	int64_t num_tokens;             /* T */
	int64_t num_topk;               /* K, the same on every rank; 0: no expert ids */
	int64_t num_experts;            /* E, a multiple of R, the same on every rank */
	uint64_t topk_idx;              /* int64 [T, K]; -1 selects nothing; an expert may come twice in
	                                   a token */
	uint64_t is_token_in_rank;      /* uint8 [T, R]: which ranks a token goes to; 0: to those of its
	                                   experts. Needed if K == 0 and T > 0 */
	uint64_t num_tokens_per_expert; /* int32 [E]: what the counts are made of; 0: of topk_idx */
	int64_t timeout_us;             /* a bound for each wait for other ranks; -1: none */
	int64_t slice_us;               /* how long the call blocks at most; -1: until the end */
	uint64_t stream;                /* on CUDA: what the call launches on; else 0 */
} mw_routing_args_t;

/*
 * Makes a routing. MW_OK and MW_IN_PROGRESS write *routing and *op, an operation that the
 * caller must wait for and close, or 0. The routing may be used once the operation has
 * ended well. Until then, calls with it return MW_ERR_INVALID_ARGUMENT; if the operation
 * fails, they return its error. In any case the caller closes the routing.
 */
mw_status_t mw_routing_create(mw_buffer_t buffer, const mw_routing_args_t *args, mw_routing_t *routing,
                              mw_op_t *op);

/*
 * Frees the id, and the memory once no operation uses it. A routing outlives its buffer:
 * it is still to be closed, and may be read until then. Closing a second time returns
 * MW_ERR_HANDLE and does nothing.
 */
mw_status_t mw_routing_close(mw_routing_t routing);

typedef struct {
	uint32_t size;
	uint32_t num_ranks;        /* R */
	int64_t num_tokens;        /* T of this rank */
	int64_t num_rows;          /* N */
	int64_t num_topk;          /* K; 0: the routing has no expert ids */
	int64_t num_experts;       /* E */
	int64_t num_local_experts; /* L */
	uint64_t num_bytes;        /* memory of the routing */
} mw_routing_info_t;

/* Writes what a routing is. */
mw_status_t mw_routing_info(mw_routing_t routing, mw_routing_info_t *info);

#define MW_ROUTING_COUNTS 1u        /* int32 [L]: selections of each local expert, by all ranks */
#define MW_ROUTING_LOCAL_IDS 2u     /* int64 [N, K]: local experts of each row, 0 to L-1; -1: not here */
#define MW_ROUTING_SOURCE_TOKENS 3u /* int32 [N]: the token of each row on its source rank */
#define MW_ROUTING_ROWS_FROM 4u     /* int64 [R+1]: the first row of each source rank, and N */
#define MW_ROUTING_TOKENS_FOR 5u    /* int32 [R]: how many of this rank's tokens go to each rank */
#define MW_ROUTING_EXPANDED_ROWS 6u /* int32 [N, K]: the expanded row of each selection; -1: not here */

/*
 * Copies one of a routing's tables to `buf`, with any alignment of the address, and writes
 * its bytes to *len. With buf == NULL it writes only *len. It returns
 * MW_ERR_INVALID_ARGUMENT if `cap` is too small, and writes *len even then.
 * expert_alignment, 1 to 65536, is for MW_ROUTING_EXPANDED_ROWS, else 0.
 */
mw_status_t mw_routing_read(mw_routing_t routing, uint32_t what, int64_t expert_alignment, void *buf,
                            uint64_t cap, uint64_t *len);

/* Writes how many rows an expanded layout has. expert_alignment is 1 to 65536. */
mw_status_t mw_routing_num_rows(mw_routing_t routing, int64_t expert_alignment, int64_t *num_rows);

/* ------------------------------------------------------------- scatter -- */

#define MW_SCATTER_WEIGHTS 1u   /* weights travel with the rows. The flag is the same on every rank */
#define MW_SCATTER_EXPANDED 2u  /* rows come in the expanded layout; each rank chooses for itself */
#define MW_SCATTER_ZERO_GAPS 4u /* with EXPANDED: rows between experts are cleared; each rank chooses
                                   for itself */

typedef struct {
	uint32_t size;
	uint32_t flags;             /* MW_SCATTER_* */
	mw_routing_t routing;       /* of this buffer */
	uint64_t x;                 /* [T, row_bytes], any bytes */
	int64_t row_bytes;          /* a multiple of 16, the same on every rank */
	uint64_t out;               /* out [rows, row_bytes] */
	uint64_t topk_weights;      /* WEIGHTS: float32 [T, K]; else 0 */
	uint64_t out_weights;       /* WEIGHTS: out float32 [N, K], 0 where a selection is not here;
	                               EXPANDED: [rows]; else 0 */
	uint64_t extra;             /* [T, extra_row_bytes], any bytes */
	uint64_t out_extra;         /* out [rows, extra_row_bytes] */
	uint32_t extra_row_bytes;   /* 0: no extra tensor; at most MW_MAX_EXTRA_BYTES; the same on every
	                               rank */
	uint32_t reserved;          /* 0 */
	int64_t expert_alignment;   /* EXPANDED: at least 1, at most 65536; else 0 */
	int64_t timeout_us;         /* as for mw_routing_create */
	int64_t slice_us;
	uint64_t stream;            /* as for mw_routing_create */
} mw_scatter_args_t;

/*
 * Brings each token's row to its ranks, once per rank, and there to `out`. An address may
 * be 0 if its tensor has no rows.
 */
mw_status_t mw_buffer_scatter(mw_buffer_t buffer, const mw_scatter_args_t *args, mw_op_t *op);

/* -------------------------------------------------------------- gather -- */

#define MW_GATHER_WEIGHTS 1u     /* weights travel home with the rows. The flag is the same on every
                                    rank */
#define MW_GATHER_OWNERS_ONLY 2u /* with WEIGHTS: a weight counts only where its selection is on the
                                    rank that sends it. EXPANDED rows have no others */
#define MW_GATHER_EXPANDED 4u    /* x is in the expanded layout, as after a scatter with the same
                                    expert_alignment; each rank chooses for itself */
#define MW_GATHER_FP32_ROWS 8u   /* x and bias are float32, and travel so. Not with EXPANDED. The flag is
                                    the same on every rank */
#define MW_GATHER_FP32_OUT 16u   /* with FP32_ROWS: out is float32; each rank chooses for itself */
#define MW_MAX_BIASES 2

typedef struct {
	uint32_t size;
	uint32_t flags;               /* MW_GATHER_* */
	mw_routing_t routing;         /* of this buffer */
	uint64_t x;                   /* bf16 (FP32_ROWS: float32) [N, H]; EXPANDED: [rows, H] */
	int64_t hidden;               /* H, a multiple of 8, the same on every rank */
	uint64_t out;                 /* out bf16 (FP32_OUT: float32) [T, H] */
	uint64_t topk_weights;        /* WEIGHTS: float32 [N, K]; EXPANDED: [rows]; else 0 */
	uint64_t out_weights;         /* WEIGHTS: out float32 [T, K]; else 0 */
	uint64_t bias[MW_MAX_BIASES]; /* the type of x [T, H]; 0: none */
	int64_t expert_alignment;     /* EXPANDED: at least 1, at most 65536; else 0 */
	int64_t timeout_us;           /* as for mw_routing_create */
	int64_t slice_us;
	uint64_t stream;              /* as for mw_routing_create */
} mw_gather_args_t;

/*
 * out[t] = bias[0][t] + bias[1][t] + the rows of token t, in order of rank: added in
 * float32, rounded once (nearest even). With EXPANDED, the rows of a token on one rank are
 * first added there, in order of k, and rounded to bf16. A token that no rank got has the
 * biases, or 0. out_weights[t, k] is the sum of the weights that came with the rows of t.
 */
mw_status_t mw_buffer_gather(mw_buffer_t buffer, const mw_gather_args_t *args, mw_op_t *op);

#ifdef __cplusplus
}
#endif
#endif
