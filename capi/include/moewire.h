/*
 * moewire.h - expert-parallel dispatch and combine for Mixture-of-Experts
 * models. This file is the document of record of the C ABI. C11 and C++.
 *
 * Notation: R ranks, E experts, L = E/R experts per rank (expert e lives on
 * rank e / L), T tokens on this rank, K selections per token, H values per
 * token, M = num_max_tokens_per_rank >= T on every rank.
 *
 * Contract, for every function unless it says otherwise:
 *  - Returns mw_status_t: 0 done, positive in progress, negative an error.
 *    On an error no output parameter is written, and mw_last_error() names
 *    the argument, what was given and what is allowed.
 *  - Structs start with `size` = sizeof(the struct), set by the caller: a
 *    multiple of 8. The library reads the fields that `size` covers; fields it
 *    does not cover are zero, and zero means the default. Non-zero bytes beyond
 *    what this library knows are refused.
 *  - Objects are 64-bit ids in a struct; 0 is never valid and ids are never
 *    reused. A closed or made-up id gives an error, never a crash.
 *  - Any thread may call any function. Calls that start work on one buffer
 *    are serialised; a wait in one thread does not block another thread.
 *  - Memory passed in stays the caller's: borrowed during the call, and until
 *    the operation has ended where the text says so. Addresses are passed as
 *    uint64_t so that any runtime can fill the structs.
 *  - After fork() every call in the child returns MW_ERR_FORKED.
 *  - Moewire writes nothing to file descriptors 1 and 2 and is configured by
 *    no environment variable but MOEWIRE_NVRTC, MOEWIRE_CUDA_CACHE and
 *    MOEWIRE_CUDA_CODE: where code for a GPU comes from. (The Go runtime in it
 *    reads its own, such as GOMAXPROCS, and reports its own fatal errors.) Loading the library starts
 *    that runtime's threads; mw_buffer_connect adds one watcher per process. The
 *    first buffer or fabric raises the process's soft RLIMIT_NOFILE to the hard one.
 */
#ifndef MOEWIRE_H
#define MOEWIRE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows whenever a struct or a function changes in a way that callers see. */
#define MW_ABI_VERSION 10u

/* Ranks in one shared-memory domain: member set and epoch share one word. */
#define MW_MAX_RANKS 48
/* Selections per token. */
#define MW_MAX_TOPK 64
/* Tensors that a flat dispatch takes along, and the bytes per token of one. */
#define MW_MAX_EXTRAS 4
#define MW_MAX_EXTRA_BYTES 65535

typedef int32_t mw_status_t;
#define MW_OK 0
#define MW_IN_PROGRESS 1            /* call mw_op_wait again */
#define MW_ERR_INVALID_ARGUMENT -1  /* the caller's mistake; nothing happened */
#define MW_ERR_HANDLE -2            /* the id never was, or was closed */
#define MW_ERR_STALE_HANDLE -3      /* the handle was released or its slot reused */
#define MW_ERR_CLOSED -4            /* the buffer is closed */
#define MW_ERR_TIMEOUT -5           /* a rank did not come to a rendezvous in time; names it */
#define MW_ERR_PEER_LOST -6         /* a peer died during a rendezvous; names it */
#define MW_ERR_PEER_MISMATCH -7     /* ranks disagree on a parameter; names both values */
#define MW_ERR_FENCED -8            /* the group went on without this rank, or may have: update to rejoin */
#define MW_ERR_NO_MEMORY -9
#define MW_ERR_SYSTEM -10           /* a system call failed; named in the message */
#define MW_ERR_FORKED -11           /* used in a forked child; use spawn instead */
#define MW_ERR_PANIC -12            /* a defect in the library; the buffer is unusable */
#define MW_ERR_CANCELLED -13        /* the operation was cancelled */
#define MW_ERR_NOT_COMBINED -14     /* a peer released the operation without combining */
#define MW_ERR_METADATA -15         /* metadata bytes are truncated, altered or foreign */
#define MW_ERR_UPDATING -16         /* between mw_buffer_update and mw_buffer_install */
/* Of moewire_fabric.h, and MW_ERR_BUSY of MW_DISPATCH_KEEP_HELD, too: */
#define MW_ERR_WOULD_BLOCK -17      /* a bound is reached; nothing happened: later again */
#define MW_ERR_CONNECTING -18       /* a connection is being made; nothing happened: later again */
#define MW_ERR_UNREACHABLE -19      /* a connection could not be made, or it ended */
#define MW_ERR_REFUSED -20          /* the peer's side refused: region, bounds or access */
#define MW_ERR_NO_RESOURCE -21      /* no more descriptors, connections, memory to lock, ... */
#define MW_ERR_BUSY -22             /* something of it is still in use; nothing happened */
#define MW_ERR_NOT_SUPPORTED -23    /* not with this carrier, or not in this mode */
/* Of CUDA: */
#define MW_ERR_NO_DEVICE -24        /* no driver, or none that will do; says what was tried */
#define MW_ERR_DEVICE -25           /* a call of the driver failed; named, with the driver's own text */

typedef struct { uint64_t id; } mw_buffer_t;
typedef struct { uint64_t id; } mw_handle_t; /* one dispatch, to be combined */
typedef struct { uint64_t id; } mw_op_t;     /* one operation in flight */
typedef struct { uint64_t id; } mw_memory_t; /* one mapping of a buffer */

/* ------------------------------------------------------------- library -- */

/* The value of MW_ABI_VERSION that the library was built with. */
uint32_t mw_abi_version(void);

/* The library's version, such as "0.1.0". Static; never freed. */
const char *mw_version(void);

/*
 * What the last failing call of this thread had to say, as UTF-8; "" if none
 * failed. Valid until the next failing call of this thread; never freed.
 */
const char *mw_last_error(void);

/*
 * Facts about this machine as JSON (vector widths, chosen width, transports
 * and devices with the reason where one is absent), for diagnostics. Writes
 * at most `cap` bytes to `buf` (no terminator) and the full length to *len;
 * with buf == NULL only *len is written. MW_ERR_INVALID_ARGUMENT if `cap` is
 * too small (*len is written even then).
 */
mw_status_t mw_system_report(char *buf, uint64_t cap, uint64_t *len);

/* Bytes of the caller's. */
typedef struct {
	uint64_t address;
	uint64_t num_bytes;
} mw_bytes_t;

/*
 * The CUDA driver and its devices as JSON, as mw_system_report, with the code that
 * each device would run and the NVRTC that would compile what was not prebuilt.
 * Initialises the driver in this process, and makes no context; compiles nothing.
 * `driver` is the path of the driver's library; NULL or empty: libcuda.so.1. `nvrtc`
 * are places of NVRTC as in mw_config_t.cuda_nvrtc; NULL or empty: none beside the
 * usual ones. MW_ERR_NO_DEVICE without a driver.
 */
mw_status_t mw_cuda_report(const mw_bytes_t *driver, const mw_bytes_t *nvrtc, char *buf, uint64_t cap, uint64_t *len);

/* -------------------------------------------------------------- buffer -- */

#define MW_CONFIG_DEBUG_FILL 1u /* fill released memory with NaN bytes (0xff); CUDA: by the
                                   dispatch that takes it, all that its rows have room for */
/*
 * Rows of one expert in order of their ranks; ranks must agree. Costs one more
 * exchange of words. A dispatch is sent only once all ranks have begun it, so
 * one thread cannot drive several ranks.
 */
#define MW_CONFIG_DETERMINISTIC 4u
#define MW_CONFIG_NO_RECORD 2u  /* no statistics, no trace, no events of slow ranks */
/* RDMA by DC queue pairs where both ports have them. It never ran on a device. A rank's own. */
#define MW_CONFIG_RDMA_DC 8u
/*
 * With MW_DEVICE_CUDA: a rank of this host that the group has taken out, and that 0.5 s
 * later has neither ended nor stopped using its device, is killed (SIGKILL). Without,
 * a call that needs memory that it may write to waits for it, and ends the buffer with
 * an error 2 s beyond its timeout (with none: it waits on). A rank's own: it is what
 * this rank does to others. Nobody is killed who left by a close or an update, nor by who is out, nor a process
 * with another rank that was not taken out.
 */
#define MW_CONFIG_KILL_FENCED 16u
/* For tests of tests: flips one bit in the first row of every combine. */
#define MW_CONFIG_TEST_CORRUPT_COMBINE 0x80000000u

typedef struct {
	uint32_t size;
	uint32_t flags;       /* MW_CONFIG_* */
	uint32_t rank;        /* 0 <= rank < num_ranks */
	uint32_t num_ranks;   /* R, at most MW_MAX_RANKS */
	uint64_t num_bytes;   /* bytes for all slots; 0: sized by the first dispatch */
	uint32_t num_slots;   /* operations between dispatch and release; 0: 2; at most 64; see
	                         MW_DISPATCH_KEEP_HELD */
	int32_t vector_width; /* bytes: 16, 32 or 64; 0: the widest; -1: plain Go kernels */
	/* Each rank's own choices, which change times and no result. */
	uint32_t stores;      /* MW_STORES_*: how a dispatch stores rows */
	uint32_t huge_pages;  /* MW_HUGE_PAGES_*: of this rank's memory */
	uint32_t numa;        /* MW_NUMA_*: where this rank's memory lies */
	uint32_t num_threads; /* that place and reduce rows, the caller's included; 0: 1; at most 64 */
	int32_t prefetch;     /* rows (dispatch) or tokens (combine) asked for ahead of use, at most 64;
	                         0: the default; -1: none */
	int32_t spin_us;      /* how long a wait is awake before it sleeps, at most 1000000;
	                         0: the default; -1: it sleeps at once */
	int64_t slow_after_us; /* waits this long become events (mw_buffer_events); 0: 1 s; -1: none do */
	/* How ranks reach one another. What is not said to be a rank's own is equal on all. Zeros
	   for a group on one host. Text is UTF-8 without a zero, and copied. */
	uint32_t transport;   /* MW_TRANSPORT_* */
	uint32_t protection;  /* MW_PROTECTION_*: of what TCP carries */
	mw_bytes_t listen;    /* own: where ranks of other hosts reach this one: an address, "ADDRESS:PORT"
	                         ("[ADDRESS]:PORT" for IPv6, which may have brackets without one), or the name of an interface */
	mw_bytes_t keys;      /* shared by all ranks: one per line, "ID HEX", 64 digits, the current one
	                         first (docs/wire.md). Between hosts these or key_file; never shown */
	mw_bytes_t host;      /* own, for tests: ranks with different names take one another for ranks of
	                         other hosts. Empty: this machine */
	uint64_t ring_bytes;  /* two rings of this size per direction and remote rank, a power of two; 0: 16 MiB */
	int64_t unresponsive_after_us; /* a remote rank that is not heard for so long is suspected; 0: 1 s */
	mw_bytes_t key_file;  /* path of a file with `keys`, in their place; read again by every
	                         mw_buffer_update. Nobody but its owner may read it */
	/* Own: which RDMA devices this rank may use, and how. Empty: the library chooses. */
	mw_bytes_t rdma_devices; /* names with commas, each with a port or without: "mlx5_0,mlx5_1:2", "mlx5_*" */
	mw_bytes_t rdma_gid;     /* Ethernet: the port's address (GID) to send from: an index, "v1" or "v2", an
	                            address or a network ("10.0.0.0/16"), or both ("v2,10.0.0.0/16") */
	mw_bytes_t rdma_near;    /* what the device should be near to: a GPU's PCI address ("0000:41:00.0"), or
	                            "node:N". Empty: the NUMA node that this process may run on, if it is one */
	uint32_t tcp_zero_copy;  /* own: MW_ZERO_COPY_*: of what TCP carries */
	uint32_t reserved;       /* 0 */
	/* Where rows lie: see "CUDA" below. */
	uint32_t device;         /* MW_DEVICE_*: the same on all ranks */
	uint32_t device_ordinal; /* own: which CUDA device, as the driver counts them */
	mw_bytes_t cuda_driver;  /* own: path of the driver's library; empty: libcuda.so.1 */
	mw_bytes_t cuda_code;    /* own, for tests: code of the kernels, in place of the library's */
	mw_bytes_t cuda_nvrtc;   /* own: where NVRTC may be, files or folders, with ':' between */
} mw_config_t;

/* Whether TCP sends long payloads without a copy into the kernel. What is encrypted is a copy. */
#define MW_ZERO_COPY_AUTO 0u /* to other hosts, until the kernel says that it copies all the same */
#define MW_ZERO_COPY_ON 1u   /* wherever the kernel can */
#define MW_ZERO_COPY_OFF 2u  /* never */

#define MW_DEVICE_CPU 0u
#define MW_DEVICE_CUDA 1u

/* Shared memory between ranks of one host, else what both have; says what it chose (mw_buffer_paths). */
#define MW_TRANSPORT_AUTO 0u
#define MW_TRANSPORT_SHM 1u  /* shared memory alone: ranks of other hosts are an error */
#define MW_TRANSPORT_TCP 2u  /* TCP alone, between ranks of one host, too */
#define MW_TRANSPORT_RDMA 3u /* RDMA between hosts, or an error; shared memory inside */

#define MW_PROTECTION_DIGEST 0u  /* forged or changed bytes are refused */
#define MW_PROTECTION_ENCRYPT 1u /* and nobody reads them on the way */

#define MW_STORES_AUTO 0u      /* streaming from 1 MiB of rows on */
#define MW_STORES_CACHED 1u    /* ordinary stores */
#define MW_STORES_STREAMING 2u /* past the caches; x86-64 only */

#define MW_HUGE_PAGES_NEVER 0u   /* not asked for */
#define MW_HUGE_PAGES_ADVISE 1u  /* asked for; the kernel may refuse without a word */
/*
 * Of 2 MiB, reserved by the administrator: for all of num_bytes, one more, and,
 * to go on after a rank was frozen, num_bytes again. Else an error.
 */
#define MW_HUGE_PAGES_REQUIRE 2u

#define MW_NUMA_NONE 0u
#define MW_NUMA_LOCAL 1u /* near the thread that calls mw_buffer_create, if there is room */

#define MW_SHAPE_FP32_OUTPUTS 1u /* room for MW_DISPATCH_FP32_OUTPUTS; serves others too */
#define MW_SHAPE_FLAT 2u         /* for MW_DISPATCH_FLAT, whose rows need other room than packed ones */

typedef struct {
	uint32_t size;
	uint32_t num_slots; /* 0: 2 */
	int64_t num_max_tokens_per_rank;
	int64_t hidden;
	int64_t num_ranks;
	int64_t num_experts;
	uint32_t flags;     /* MW_SHAPE_* */
	uint32_t reserved;  /* 0 */
	int64_t num_topk;   /* with FLAT: K; 0 with MW_DISPATCH_NO_ROUTING. Else 0 */
	uint32_t extra_row_bytes[MW_MAX_EXTRAS]; /* with FLAT: as in mw_dispatch_args_t. Else 0 */
} mw_shape_t;

/*
 * Bytes to pass as mw_config_t.num_bytes for operations up to this shape, in
 * bf16 or fp8. This is address space: memory becomes resident as rows arrive.
 */
mw_status_t mw_buffer_size_hint(const mw_shape_t *shape, uint64_t *num_bytes);

/* Makes this rank's part of a buffer. Not collective, needs no peer. */
mw_status_t mw_buffer_create(const mw_config_t *config, mw_buffer_t *buffer);

/*
 * The bytes that every other rank must pass to mw_buffer_connect. Copies at
 * most `cap` bytes to `buf` and writes the length to *len (also if `cap` is
 * too small); with buf == NULL only *len is written. At most 1024 bytes.
 */
mw_status_t mw_buffer_metadata(mw_buffer_t buffer, void *buf, uint64_t cap, uint64_t *len);

/*
 * Collective over the ranks that take part: all[r] is the metadata of rank r,
 * for 0 <= r < num_ranks == R; a rank that does not take part is absent, with
 * num_bytes == 0, and its experts with it. Blocks until every rank that takes
 * part is connected, at most timeout_us (-1: 60 seconds). Closing the buffer
 * in another thread ends it. When all of them are new, calls are possible
 * from here on; else after mw_buffer_install.
 *
 * MW_ERR_PEER_MISMATCH names the first parameter on which ranks disagree,
 * both values and the rank; MW_ERR_TIMEOUT and MW_ERR_PEER_LOST name the rank.
 * After an error: mw_buffer_update for another rendezvous, or mw_buffer_close.
 */
mw_status_t mw_buffer_connect(mw_buffer_t buffer, const mw_bytes_t *all, uint32_t num_ranks,
                              int64_t timeout_us);

/*
 * Begins a change of the membership (a lost rank is replaced, ranks leave or
 * come), or another attempt at one. This rank leaves its epoch: operations in
 * flight end with MW_ERR_UPDATING, handles are stale, mw_buffer_metadata gives
 * new bytes. Exchange them among the ranks of the next epoch (survivors, a
 * fenced rank that comes back, new buffers), then call mw_buffer_connect, and
 * mw_buffer_install once every rank is known to have connected. Addresses of
 * this rank's slabs stay what they were, except of slabs that a lost rank may
 * still write into: those are replaced.
 */
mw_status_t mw_buffer_update(mw_buffer_t buffer);

/*
 * Begins the epoch of the ranks that have connected. All of them call it, or
 * none: if one failed to connect, call mw_buffer_update again instead. Does
 * nothing where mw_buffer_connect has begun the epoch, or after itself.
 */
mw_status_t mw_buffer_install(mw_buffer_t buffer);

typedef struct {
	uint32_t size;
	uint32_t epoch;     /* of the group; raised by every update; 16 bits */
	uint64_t ranks;     /* one bit per member; without this rank's: it is out */
	uint64_t num_lost;  /* ranks that this one has taken out since mw_buffer_create */
} mw_members_t;

/* Who is in the group now, as every rank of this host sees it. */
mw_status_t mw_buffer_members(mw_buffer_t buffer, mw_members_t *members);

/*
 * Leaves the group and frees the buffer; peers that wait for this rank are
 * told at once. Waits of other threads on this buffer end with MW_ERR_CLOSED.
 * Memory retained with mw_memory_retain stays mapped, its content stale.
 * Closing twice gives MW_ERR_HANDLE and does nothing. On CUDA closing may fail:
 * the device is not done, or another process has the memory open. The rank is out
 * of the group then, operations give MW_ERR_CLOSED, what could not be freed
 * stays, and mw_buffer_close may be called again, until it gives MW_OK.
 */
mw_status_t mw_buffer_close(mw_buffer_t buffer);

typedef struct {
	uint32_t size;
	uint32_t num_ranks;
	uint64_t num_dispatches;     /* completed */
	uint64_t num_combines;       /* completed */
	uint64_t num_rows_sent;      /* rows placed at any rank, this one included */
	uint64_t num_rows_received;  /* rows of counted sources */
	uint64_t num_rows_reduced;   /* rows pulled by combines */
	uint64_t num_bytes_placed;   /* bytes stored by dispatches: rows, scales, src_info, and
	                                what flat rows bring along */
	uint64_t num_bytes_reduced;  /* bytes loaded by combines */
	uint64_t num_bytes_copied;   /* expert outputs copied because they lay elsewhere */
	uint64_t slab_bytes;         /* address space of this rank's slabs */
	uint64_t wait_ns;            /* time spent waiting for peers */
	uint64_t num_rows_sent_to[MW_MAX_RANKS];
	uint64_t wait_ns_for[MW_MAX_RANKS]; /* waiting, by the rank waited for */
} mw_counters_t;

/* Totals since mw_buffer_create. */
mw_status_t mw_buffer_counters(mw_buffer_t buffer, mw_counters_t *counters);

/* --------------------------------------------------------- observation -- */

/*
 * These work until mw_buffer_close, on one that a defect has closed as
 * well. docs/observability.md describes the keys of the JSON texts.
 *
 * Totals, histograms and expert load since mw_buffer_connect, as JSON: as
 * mw_system_report. The text may be longer at the next call.
 */
mw_status_t mw_buffer_stats(mw_buffer_t buffer, char *buf, uint64_t cap, uint64_t *len);

/*
 * How this rank reaches every other one, as a JSON array of objects with "rank",
 * "carrier" ("self", "shm", "tcp", "verbs"; "" for an absent rank), "device" and "why". After
 * mw_buffer_connect. Text as for mw_buffer_stats.
 */
mw_status_t mw_buffer_paths(mw_buffer_t buffer, char *buf, uint64_t cap, uint64_t *len);

#define MW_LINK_TCP 1 /* mw_link_t.carrier */
#define MW_LINK_VERBS 2
#define MW_LINK_UP 1
#define MW_LINK_UNRESPONSIVE 2 /* not heard for mw_config_t.unresponsive_after_us */
#define MW_LINK_BROKEN 3 /* carries nothing: it is reconnected, or the group has not decided who goes */
#define MW_LINK_ENDED 4  /* the rank's process has ended, or it closes its buffer */
#define MW_LINK_OUT 5    /* the rank is no member any more */

/*
 * What this rank sees of one whose memory it cannot map. Counts are since
 * mw_buffer_create, over all links to that rank number; the rest is of the latest.
 */
typedef struct {
	uint32_t size;
	uint32_t rank;
	uint32_t carrier;          /* MW_LINK_TCP, MW_LINK_VERBS */
	uint32_t state;            /* MW_LINK_UP to MW_LINK_OUT */
	uint64_t num_messages_sent;
	uint64_t num_bytes_sent;   /* of messages, without what carriers add */
	uint64_t num_messages_received;
	uint64_t num_bytes_received;
	uint64_t num_blocked;      /* attempts that found no room: the rank had released too little */
	uint64_t num_dropped;      /* messages not sent because the link had failed */
	uint64_t num_ignored;      /* completions and grants that meant nothing */
	uint32_t num_credits;      /* messages that may be sent now */
	uint32_t num_max_credits;
	int64_t heard_ns;          /* when it was last heard, CLOCK_MONOTONIC; 0: never */
	uint64_t num_beats;        /* heartbeats that came */
	int64_t clock_ahead_ns;    /* of its host's wall clock, less the time of the fastest heartbeat
	                              of the last 5 to 10 s; odd; 0: not known */
	uint64_t num_reconnects;       /* connections that broke and were reconnected */
} mw_link_t;

/*
 * The ranks that this one reaches by messages, by number: none where all share
 * memory. links[0].size says how large the caller's elements are; at most
 * `capacity` of them (MW_MAX_RANKS are enough) are written, and their number to
 * *count. What was refused, and why, is in the text of mw_buffer_stats.
 */
mw_status_t mw_buffer_links(mw_buffer_t buffer, mw_link_t *links, uint32_t capacity,
                            uint32_t *count);

#define MW_RECORD_DISPATCH 1
#define MW_RECORD_COMBINE 2
#define MW_OUTCOME_DONE 0
#define MW_OUTCOME_FAILED 1
#define MW_OUTCOME_CANCELLED 2 /* 3 is not used */
/* Operations that a rank remembers. Fixed: other processes read them by their place. */
#define MW_MAX_RECORDS 1024

/*
 * One ended operation of one rank. Times are CLOCK_MONOTONIC in nanoseconds,
 * comparable among the ranks of a host; 0 where that did not happen.
 */
typedef struct {
	uint32_t size;
	uint32_t sequence;       /* 1 for the first operation of a buffer */
	uint16_t kind;           /* MW_RECORD_* */
	uint16_t outcome;        /* MW_OUTCOME_* */
	uint16_t epoch;
	int16_t last_rank;       /* whose data came last; -1: nobody was waited for */
	uint32_t combine;        /* 1 for the first combine of a handle; 0: a dispatch */
	uint32_t num_tokens;     /* of this rank */
	uint64_t operation;      /* number of the dispatch, the same on every rank */
	int64_t start_ns;
	int64_t place_ns;        /* the first row was about to be stored */
	int64_t sent_ns;         /* everything of this rank's was there for the others */
	int64_t resume_ns;       /* the wait for the others began */
	int64_t seen_ns;         /* everything of theirs was there */
	int64_t end_ns;
	int64_t wait_ns;         /* blocked in all, before sending as well */
	int64_t last_alone_ns;   /* part of it in which only last_rank was missing */
	uint32_t num_rows;       /* sent by a dispatch, pulled by a combine */
	uint32_t num_rows_received;
	uint64_t num_bytes;      /* stored by a dispatch; loaded and copied by a combine */
	uint64_t prefault_bytes; /* memory made present ahead of use */
	uint64_t waited_for;     /* ranks that had to be waited for, one bit each */
} mw_record_t;

/*
 * The latest operations of any rank of the group, the oldest first. Another
 * rank's are read from its memory: it takes no part, and may be frozen or
 * dead. records[0].size says how large the caller's elements are; at most
 * `capacity` of them are written, and their number to *count. Records that
 * are overwritten at this moment are left out.
 */
mw_status_t mw_buffer_trace(mw_buffer_t buffer, uint32_t rank, mw_record_t *records,
                            uint32_t capacity, uint32_t *count);

/*
 * What a person should hear of, as JSON: ranks that were slow (waited for
 * longer than mw_config_t.slow_after_us) or lost, after event number `since`, at most the
 * latest 64. As mw_system_report.
 */
mw_status_t mw_buffer_events(mw_buffer_t buffer, uint64_t since, char *buf, uint64_t cap,
                             uint64_t *len);

/*
 * A word that grows with every event of any buffer of this process, so that a
 * caller need not ask each time. Always there; never freed.
 */
const uint64_t *mw_event_count(void);

/* ------------------------------------------------------------ dispatch -- */

#define MW_DISPATCH_FP8 1u  /* cast rows to fp8 e4m3 with one scale per 128 values */
#define MW_DISPATCH_HAS_MORE 2u /* this rank will dispatch again for the same batch */
/* With FP8: scales are rounded up to powers of two. The same on every rank. */
#define MW_DISPATCH_ROUND_SCALE 4u
/* With ROUND_SCALE: scales are biased exponent bytes (UE8M0), four to a word. */
#define MW_DISPATCH_UE8M0 8u
/* Expert outputs are float32, not bf16: 4*H bytes per row. The same on every rank. */
#define MW_DISPATCH_FP32_OUTPUTS 16u
/* Flat rows: see mw_buffer_dispatch. The same on every rank. */
#define MW_DISPATCH_FLAT 32u
/* With FLAT: rows come without topk_idx and topk_weights. The same on every rank. */
#define MW_DISPATCH_NO_ROUTING 64u
/* Not with FLAT: the combine is pre-reduced, see mw_buffer_combine. Each rank's own choice. */
#define MW_DISPATCH_PRE_REDUCE 128u
/*
 * This dispatch overwrites no rows that somebody may still read: MW_ERR_BUSY where it would
 * take the slot of an operation whose handle was neither combined nor released. Each rank's
 * own choice. Without it such a handle becomes stale, and its rows change.
 */
#define MW_DISPATCH_KEEP_HELD 256u

/*
 * Of a dispatch and of a combine, on the CPU: how topk_idx and topk_weights are stored. Without,
 * int64 and float32, which is what rows bring along in any case. They are widened, exactly, in
 * memory that the library uses again. Each rank's own choice.
 */
#define MW_TOPK_IDX_INT32 512u
#define MW_TOPK_WEIGHTS_BF16 1024u
#define MW_TOPK_WEIGHTS_FP16 2048u

/*
 * Written when a call returns at or after MW_PHASE_SENT, for the last time by
 * the first call that finds the operation done; `peers_have_more` then.
 */
typedef struct {
	uint32_t size;
	uint32_t peers_have_more;  /* 1 if any counted rank set MW_DISPATCH_HAS_MORE; CUDA: 0, the device
	                              writes it where the arguments say */
	mw_handle_t handle;        /* for the combine; valid until released */
	mw_memory_t memory;        /* the mapping that the addresses below lie in */
	uint64_t recv_x;           /* bf16 [L, R*M, H], or fp8 e4m3 [L, R*M, H] */
	uint64_t recv_scales;      /* fp8: float32 [L, H/128, R*M], or, with MW_DISPATCH_UE8M0,
	                              uint32 [L, H/512, R*M], block 4w+i in bits 8i of word w; else 0 */
	uint64_t src_info;         /* int32 [L, R*M]: token index on the source rank */
	uint64_t combine_x;        /* where expert outputs go: bf16 [L, R*M, H], or, with
	                              MW_DISPATCH_FP32_OUTPUTS, float32 [L, R*M, H] */
	uint64_t memory_address;   /* start of the mapping */
	uint64_t memory_bytes;     /* its length */
	/* With FLAT, which has one block of rows, so that L is 1 in the shapes above: */
	uint64_t recv_topk_idx;     /* int64 [R*M, K]: local expert ids, 0 to L-1; -1: not on this rank */
	uint64_t recv_topk_weights; /* float32 [R*M, K]: 0 where the id is -1 */
	uint64_t recv_extra[MW_MAX_EXTRAS]; /* [R*M, extra_row_bytes] each; 0: not there */
} mw_dispatch_result_t;

typedef struct {
	uint32_t size;
	uint32_t flags;                  /* MW_DISPATCH_*, MW_TOPK_* */
	uint64_t x;                      /* bf16 [T, H], contiguous; may be 0 if T == 0 */
	uint64_t topk_idx;               /* int64 [T, K]; -1 selects nothing; may be 0 if T == 0 */
	int64_t num_tokens;              /* T, 0 <= T <= M */
	int64_t hidden;                  /* H, a multiple of 8; of 128 with FP8, of 512 with UE8M0 */
	int64_t num_topk;                /* K, 1 <= K <= MW_MAX_TOPK */
	int64_t num_max_tokens_per_rank; /* M, the same on every rank */
	int64_t num_experts;             /* E, a multiple of R, the same on every rank */
	uint64_t active_ranks;           /* in, out int32 [num_active_ranks] or 0: all active */
	int64_t num_active_ranks;        /* at least R; entries beyond R are ignored */
	int64_t timeout_us;              /* for each phase, the call and the wait after it; -1: none */
	int64_t slice_us;                /* block at most this long; -1: until the end */
	int32_t phase;                   /* MW_PHASE_SENT or MW_PHASE_DONE (0: done) */
	int32_t reserved;                /* 0 */
	uint64_t recv_count;             /* out int32 [L]: rows per local expert; FLAT: int32 [1] */
	uint64_t layout_range;           /* out int64 [L, R]: first row << 32 | rows of that source;
	                                    FLAT: int64 [1, R] */
	mw_dispatch_result_t *result;    /* out */
	/* With FLAT, else 0, but topk_weights also with PRE_REDUCE; borrowed as x is: */
	uint64_t topk_weights;           /* float32 [T, K]; 0 with NO_ROUTING; may be 0 if T == 0 */
	uint64_t extra[MW_MAX_EXTRAS];   /* any bytes [T, extra_row_bytes]; may be 0 if T == 0 */
	uint32_t extra_row_bytes[MW_MAX_EXTRAS]; /* 0: none; at most MW_MAX_EXTRA_BYTES; the same on
	                                            every rank */
	uint64_t stream;                 /* CUDA: a CUstream; 0: the legacy default stream. Else 0 */
	uint64_t peers_have_more;        /* CUDA: out int32 [1], what the result has on the CPU; 0: not
	                                    asked for. Else 0 */
	uint64_t wait_ns;                /* CUDA: int64 [R], to which the ns are added for which the
	                                    dispatch waited for each rank; 0: not asked for. Else 0 */
} mw_dispatch_args_t;

#define MW_PHASE_SENT 1 /* inputs are no longer needed */
#define MW_PHASE_DONE 2 /* results are complete */

/*
 * Collective: sends each token's row to the ranks that own its experts, once
 * per distinct expert, straight into the final packed position, and waits for
 * everybody's rows. Rows of one source are contiguous within an expert, in
 * token order; the order of sources is arrival order, or that of the ranks with
 * MW_CONFIG_DETERMINISTIC. Rows at and beyond
 * recv_count[l] are undefined.
 *
 * Returns MW_OK when args->phase is reached, or MW_IN_PROGRESS when slice_us
 * passed first. *op is written in both cases: an operation to be waited for
 * and closed, or 0. MW_OK with 0: nothing is left to do. MW_IN_PROGRESS with
 * 0: nothing has begun, because an earlier combine that was left at
 * MW_PHASE_SENT has to end first; make the same call again. x and topk_idx
 * are borrowed until MW_PHASE_SENT; active_ranks, recv_count, layout_range and
 * result until a call has found the operation done, or mw_op_close. What is
 * left at MW_PHASE_SENT goes on in the background.
 *
 * Faults: a rank whose process ends, or that is later than timeout_us (and
 * does not itself only wait for another one), is taken out of the group, for
 * everybody at once. The call goes on without it and returns MW_OK: its entry
 * in active_ranks is cleared, in place, exactly when its rows are not in this
 * result; its layout_range counts are 0. Rows that it had reserved and not
 * finished stay counted in recv_count; their content is undefined, and no
 * combine reads them. A rank that was taken out itself gets MW_ERR_FENCED from
 * every call until mw_buffer_update.
 *
 * Routing that repeats: with the topk_idx of one of the latest num_slots
 * operations, among the same ranks, the call takes over their plan. The ids are
 * compared; results have the same bits either way.
 *
 * Slots: num_slots operations at most are between dispatch and release. The next
 * one takes a slot from one that was never combined, whose rows it overwrites, or,
 * with MW_DISPATCH_KEEP_HELD, returns MW_ERR_BUSY before anything is sent.
 *
 * Bad arguments and MW_ERR_BUSY consume nothing: the call may be repeated. Disagreement with
 * a peer (MW_ERR_PEER_MISMATCH) consumes the operation on every rank and
 * leaves the buffer usable.
 */
mw_status_t mw_buffer_dispatch(mw_buffer_t buffer, const mw_dispatch_args_t *args, mw_op_t *op);

/*
 * Flat rows (MW_DISPATCH_FLAT) go once to every rank that owns some of the
 * token's experts. There is one block of rows, not one per expert: in order of
 * their ranks and, within one, of their tokens. Each comes with the token's
 * local expert ids and weights and up to MW_MAX_EXTRAS more tensors of the
 * caller's. The rank runs its experts, weights and adds up their outputs, and
 * leaves one output row per row; the combine adds those of a token's ranks.
 *
 * It is sent only once all ranks have begun it, as with MW_CONFIG_DETERMINISTIC.
 * K and extra_row_bytes are the same on every rank (K with NO_ROUTING need not be).
 * Rows that a lost rank had reserved and not finished have ids -1 and weights 0.
 * Flat and packed operations may follow one another on one buffer.
 */

/* ------------------------------------------------------------- combine -- */

#define MW_COMBINE_ZERO_COPY 1u /* x is the handle's combine buffer (checked) */
#define MW_COMBINE_FLAT 2u      /* of a dispatch with MW_DISPATCH_FLAT, once that has ended */

typedef struct {
	uint32_t size;
	uint32_t flags;           /* MW_COMBINE_*, MW_TOPK_* */
	mw_handle_t handle;
	uint64_t x;               /* [L, R*M, H] expert outputs, contiguous: bf16, or float32 if the
	                             dispatch had MW_DISPATCH_FP32_OUTPUTS; FLAT: [recv_count[0], H],
	                             and on the CPU may be 0 if there are no rows */
	uint64_t topk_idx;        /* int64 [T, K], as dispatched; -1 leaves a selection out (not after
	                             PRE_REDUCE); FLAT: 0 */
	uint64_t topk_weights;    /* float32 [T, K]; after PRE_REDUCE as dispatched; FLAT: 0 */
	uint64_t out;             /* out bf16 [T, H], contiguous */
	int64_t num_tokens;       /* T of the dispatch */
	int64_t num_topk;         /* K of the dispatch; FLAT: 0 */
	uint64_t active_ranks;    /* as for dispatch; a lost rank's experts contribute nothing */
	int64_t num_active_ranks;
	int64_t timeout_us;
	int64_t slice_us;
	int32_t phase;            /* MW_PHASE_SENT: only out is still needed; MW_PHASE_DONE */
	int32_t reserved;         /* 0 */
	uint64_t stream;          /* as for dispatch */
	uint64_t wait_ns;         /* as for dispatch, of the combine */
} mw_combine_args_t;

/*
 * Collective over the ranks that have rows: out[t] = sum over k, in order of
 * k, of topk_weights[t,k] * (output row of expert topk_idx[t,k] for token t),
 * multiplied and added in float32, rounded once to bf16 (nearest even). Tokens
 * without a live selection give zeros. The bits depend on the inputs alone.
 * With MW_COMBINE_FLAT: out[t] = sum over the ranks that token t went to, in
 * order of rank, of their output rows for it, added and rounded likewise.
 *
 * After a dispatch with MW_DISPATCH_PRE_REDUCE: out[t] = sum over the ranks that
 * token t went to, in the order in which its selections name them first, of
 * each one's sum: over its selections, in order of k, of weight * output row,
 * multiplied and added in float32 and rounded to the type of the output rows.
 * These are added in float32 and rounded once to bf16. A rank of another host
 * then sends one row per token, not one per token and expert; the bits do not
 * depend on where ranks are. topk_idx and topk_weights are those of the dispatch
 * (MW_ERR_INVALID_ARGUMENT names the first that differs), which has copied them.
 *
 * A handle may be combined again until it is released. It is released by
 * mw_handle_release, or, once combined, by the next call on the buffer that is
 * not a combine of the same handle, or, never combined, by the dispatch that
 * needs its slot (which MW_DISPATCH_KEEP_HELD refuses instead). On the CPU that is the
 * num_slots-th dispatch after its own; on CUDA a dispatch looks for a slot that no such
 * handle holds. If x is the handle's combine buffer nothing is copied.
 * Return values and *op as for mw_buffer_dispatch (here an unfinished dispatch
 * or combine of the same handle has to end first); out is borrowed until the
 * operation ended or mw_op_close.
 */
mw_status_t mw_buffer_combine(mw_buffer_t buffer, const mw_combine_args_t *args, mw_op_t *op);

/*
 * Waits until nobody reads the handle's combine buffer any more (only after
 * an earlier combine can somebody do so) and writes its address: the combine_x
 * of the dispatch's result. Write expert outputs
 * there, then combine with MW_COMBINE_ZERO_COPY. MW_IN_PROGRESS when
 * timeout_us (-1: none) passed first: call again.
 */
mw_status_t mw_buffer_combine_buffer(mw_buffer_t buffer, mw_handle_t handle, int64_t timeout_us,
                                     uint64_t *address);

/*
 * The same for a buffer on CUDA: after a combine of the handle `stream` waits for
 * who reads there, and not the host; work behind it may write. mw_buffer_combine_buffer
 * takes the stream of the handle's latest dispatch or combine, and no notice of
 * timeout_us. The wait has the deadline of that combine, whose second phase comes
 * first if it was not launched.
 */
mw_status_t mw_buffer_combine_buffer_on(mw_buffer_t buffer, mw_handle_t handle, uint64_t stream,
                                        uint64_t *address);

/*
 * Tells every rank that this rank is done with the operation. Its rows may be
 * overwritten from now on. Releasing a stale handle gives MW_ERR_STALE_HANDLE
 * and does nothing.
 */
mw_status_t mw_handle_release(mw_handle_t handle);

/*
 * The same for the handle of a CUDA buffer, when `stream` comes to it.
 * mw_handle_release takes the stream of the handle's latest dispatch or combine.
 * The library does not know what else reads the handle's rows: work on other
 * streams that does so has to come before that point, by an event, or they hold
 * other rows by then.
 *
 * MW_STREAM_NONE launches nothing: for the handle of a dispatch that was recorded into
 * a graph, once the recording has ended and nobody holds it any more. The graph takes its
 * slot and releases it at each replay; MW_DISPATCH_KEEP_HELD no longer counts it.
 */
#define MW_STREAM_NONE UINT64_MAX
mw_status_t mw_handle_release_on(mw_handle_t handle, uint64_t stream);

/*
 * CUDA. With mw_config_t.device == MW_DEVICE_CUDA, x, topk_idx, topk_weights,
 * active_ranks, recv_count, layout_range, peers_have_more, wait_ns, out and all
 * addresses of a result are the device's. Calls launch kernels on args->stream
 * and return: nothing waits on the host, timeout_us bounds each wait on the
 * device, and slice_us has no meaning. MW_PHASE_SENT launches what needs the inputs, mw_op_wait the rest, on
 * the same stream. Memory passed in is borrowed until the stream has come past
 * what was launched; for a recorded graph, as long as it is replayed. `result`
 * is complete when a call returns; its addresses depend on the shape and the
 * slot alone. memory_address and memory_bytes are 0. Calls on different streams
 * are ordered by the caller, and so is a later mw_op_wait, which is on the stream
 * of its call. A call that needs the rest of an earlier one (a combine that of
 * its handle's dispatch or latest combine, a dispatch that of the combine whose
 * slot it takes) launches that first, on its own stream; out, recv_count and what
 * else the rest writes are there once that stream has passed it. Only where one
 * of the two streams is being captured and the other is not does it go to the
 * earlier call's stream.
 *
 * Errors of the device come with a later call (MW_ERR_DEVICE and others). Not
 * on CUDA: num_bytes 0. How many flat rows were received the device alone knows
 * (recv_count): x of a flat combine has at least so many. Statistics, traces and
 * counters are of operations that the device has ended; with MW_CONFIG_NO_RECORD
 * the counters are 0, and nothing is added to wait_ns.
 */

/* ----------------------------------------------------------- operation -- */

/*
 * Drives the operation until `phase` (0: done) is reached, at most timeout_us
 * (-1: until its own deadline). MW_OK, MW_IN_PROGRESS, or the operation's
 * error, which is the same at every later call.
 */
mw_status_t mw_op_wait(mw_op_t op, int32_t phase, int64_t timeout_us);

/* As mw_op_wait for MW_PHASE_DONE without blocking. */
mw_status_t mw_op_test(mw_op_t op);

/*
 * Gives the operation up: it ends with MW_ERR_CANCELLED, and its handle is
 * released. What peers need from it is still sent, by later calls on the
 * buffer. Cancelling an ended operation changes nothing. MW_OK either way.
 */
mw_status_t mw_op_cancel(mw_op_t op);

/*
 * Frees the id. An operation that has not ended is cancelled first. No memory
 * passed to the operation is touched after this.
 */
mw_status_t mw_op_close(mw_op_t op);

/* -------------------------------------------------------------- memory -- */

/*
 * Keeps a mapping in place, beyond mw_buffer_close if need be, until
 * mw_memory_release. Each retain needs one release. On CUDA the last release
 * frees the memory of a closed buffer; if the device cannot do so it fails, and
 * the memory is retained as before: release it again.
 */
mw_status_t mw_memory_retain(mw_memory_t memory);
mw_status_t mw_memory_release(mw_memory_t memory);

#ifdef __cplusplus
}
#endif
#endif
