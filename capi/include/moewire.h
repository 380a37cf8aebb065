/*
 * moewire.h - expert-parallel dispatch and combine for Mixture-of-Experts
 * models. This file is the document of record of the C ABI. C11 and C++.
 *
 * Notation: R ranks, E experts, L = E/R experts per rank (expert e lives on rank e / L),
 * T tokens on this rank, K selections per token (num_topk), H values per token (hidden),
 * M = num_max_tokens_per_rank >= T on every rank.
 *
 * Contract, for every function unless it says otherwise:
 *  - The function returns mw_status_t: 0 means done, a positive value in progress, a
 *    negative value an error. On an error no output parameter is written, and
 *    mw_last_error() names the argument, the value that was given and the values that are
 *    allowed.
 *  - A struct starts with `size`, which the caller sets to sizeof(the struct), a multiple
 *    of 8. The library reads the fields that `size` covers. It takes every other field as
 *    zero, and zero means the default. Non-zero bytes beyond the fields that this library
 *    knows are refused.
 *  - Objects are 64-bit ids in a struct; 0 is never valid, and an id is never reused. A
 *    closed or made-up id gives an error, never a crash.
 *  - Any thread may call any function. Calls that start work on one buffer are
 *    serialised. A wait in one thread does not block another thread.
 *  - Memory that is passed in stays the caller's. The library borrows it during the call
 *    and, where the text says so, until the operation has ended. Addresses are passed as
 *    uint64_t so that any runtime can fill the structs.
 *  - After fork(), every call in the child returns MW_ERR_FORKED.
 *  - Moewire writes nothing to file descriptors 1 and 2. It reads three environment variables,
 *    which say where code for a GPU comes from: MOEWIRE_NVRTC, MOEWIRE_CUDA_CACHE and
 *    MOEWIRE_CUDA_CODE. (The Go runtime inside reads its own variables, such as GOMAXPROCS, and
 *    reports its own fatal errors.) Loading the library starts the threads of that runtime;
 *    mw_buffer_connect adds one watcher thread per process. The first buffer or fabric raises the
 *    process's soft RLIMIT_NOFILE to the hard one, at most 2^20.
 */
#ifndef MOEWIRE_H
#define MOEWIRE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this ABI. It grows whenever a struct or a function changes in a way that
   callers see. */
#define MW_ABI_VERSION 14u

/* The most ranks of a group: member set (48 bits) and epoch (16 bits) share one word. */
#define MW_MAX_RANKS 48
/* The most selections per token. */
#define MW_MAX_TOPK 64
/* The most extra tensors that a flat dispatch sends along, and the most bytes per token
   of one of them. */
#define MW_MAX_EXTRAS 4
#define MW_MAX_EXTRA_BYTES 65535

typedef int32_t mw_status_t;
#define MW_OK 0
#define MW_IN_PROGRESS 1            /* call mw_op_wait again */
#define MW_ERR_INVALID_ARGUMENT -1  /* the caller's mistake; nothing has happened */
#define MW_ERR_HANDLE -2            /* the id was never given out, or it was closed */
#define MW_ERR_STALE_HANDLE -3      /* the handle was released, or its slot was reused */
#define MW_ERR_CLOSED -4            /* the buffer is closed */
#define MW_ERR_TIMEOUT -5           /* a rank did not come to a rendezvous in time; the message
                                       names it */
#define MW_ERR_PEER_LOST -6         /* a peer died during a rendezvous, or a collective of
                                       moewire_routing.h lacks it; the message names it */
#define MW_ERR_PEER_MISMATCH -7     /* ranks disagree on a parameter; the message names both values */
#define MW_ERR_FENCED -8            /* the group went on without this rank, or may have; an update lets
                                       it rejoin */
#define MW_ERR_NO_MEMORY -9
#define MW_ERR_SYSTEM -10           /* a system call failed; the message names it */
#define MW_ERR_FORKED -11           /* the library was used in a forked child; start processes by
                                       spawn instead */
#define MW_ERR_PANIC -12            /* a defect in the library; the buffer is unusable */
#define MW_ERR_CANCELLED -13        /* the operation was cancelled */
#define MW_ERR_NOT_COMBINED -14     /* a peer released the operation without combining */
#define MW_ERR_METADATA -15         /* the metadata bytes are truncated, altered or of another
                                       program */
#define MW_ERR_UPDATING -16         /* the buffer is between mw_buffer_update and mw_buffer_install */
/* Errors of moewire_fabric.h. MW_ERR_BUSY also comes from MW_DISPATCH_KEEP_HELD,
   MW_ERR_NO_RESOURCE from any call: */
#define MW_ERR_WOULD_BLOCK -17      /* a bound is reached; nothing has happened: call again later */
#define MW_ERR_CONNECTING -18       /* a connection is being made; nothing has happened: call again
                                       later */
#define MW_ERR_UNREACHABLE -19      /* a connection could not be made, or it ended */
#define MW_ERR_REFUSED -20          /* the peer's side refused the transfer, for its region, bounds
                                       or access */
#define MW_ERR_NO_RESOURCE -21      /* there are no more descriptors, connections, lockable memory
                                       or the like */
#define MW_ERR_BUSY -22             /* a part of the object is still in use; nothing has happened */
#define MW_ERR_NOT_SUPPORTED -23    /* this carrier or this mode cannot do it */
/* Errors of CUDA: */
#define MW_ERR_NO_DEVICE -24        /* there is no suitable driver; the message says what was tried */
#define MW_ERR_DEVICE -25           /* a driver call failed; the message has its name and the driver's
                                       own text */

typedef struct { uint64_t id; } mw_buffer_t;
typedef struct { uint64_t id; } mw_handle_t; /* one dispatch, which combines can take */
typedef struct { uint64_t id; } mw_op_t;     /* one operation in flight */
typedef struct { uint64_t id; } mw_memory_t; /* one mapping of a buffer */

/* ------------------------------------------------------------- library -- */

/* The value of MW_ABI_VERSION that the library was built with. */
uint32_t mw_abi_version(void);

/* The library's version, such as "0.1.0". The text is static: do not free it. */
const char *mw_version(void);

/*
 * The text of this thread's last error, as UTF-8; "" if no call has failed. It is valid
 * until the next failing call of this thread. The library owns it: do not free it.
 */
const char *mw_last_error(void);

/*
 * Writes facts about this machine as JSON, for diagnostics: vector widths, the chosen
 * width, and transports and devices, each with the reason where it is absent. The call
 * writes at most `cap` bytes to `buf`, without a terminator, and the full length to *len.
 * With buf == NULL it writes only *len. It returns MW_ERR_INVALID_ARGUMENT if `cap` is
 * too small, and writes *len even then.
 */
mw_status_t mw_system_report(char *buf, uint64_t cap, uint64_t *len);

/* Bytes that the caller owns. */
typedef struct {
	uint64_t address;
	uint64_t num_bytes;
} mw_bytes_t;

/*
 * Describes the CUDA driver and its devices as JSON; buf, cap and len work as in
 * mw_system_report. The text includes the code that each device would run, and the NVRTC
 * that would compile code that was not prebuilt. The call initialises the driver in this
 * process. It makes no context and compiles nothing. `driver` is the path of the driver's
 * library; NULL or empty means libcuda.so.1. `nvrtc` names places of NVRTC, as
 * mw_config_t.cuda_nvrtc does; NULL or empty means only the usual places. Without a
 * driver the call returns MW_ERR_NO_DEVICE.
 */
mw_status_t mw_cuda_report(const mw_bytes_t *driver, const mw_bytes_t *nvrtc, char *buf, uint64_t cap, uint64_t *len);

/* -------------------------------------------------------------- buffer -- */

#define MW_CONFIG_DEBUG_FILL 1u /* fill released memory with NaN bytes (0xff). On CUDA the dispatch
                                   that takes the memory next fills all the room for its rows */
/*
 * The rows of one expert lie in order of their source ranks. All ranks must set this
 * flag, or none. It costs one more exchange of control words. A dispatch is sent only
 * once all ranks have begun it, so one thread cannot drive several ranks.
 */
#define MW_CONFIG_DETERMINISTIC 4u
#define MW_CONFIG_NO_RECORD 2u  /* keep no statistics and no trace, and raise no events of slow
                                   ranks */
/* Use dynamically connected (DC) queue pairs for RDMA where both ports have them. Each
   rank chooses for itself. This code has never run on a device. */
#define MW_CONFIG_RDMA_DC 8u
/*
 * With MW_DEVICE_CUDA, this rank kills (SIGKILL) ranks of this host that the group has
 * taken out. It does so if such a rank, 0.5 s later, has neither ended nor stopped using
 * its device. Without this flag, a call that needs memory to which such a rank may still
 * write waits for that rank. The wait ends 2 s beyond the call's timeout, and the buffer
 * ends with an error; with no timeout the call waits on. Each rank chooses for itself:
 * the flag says what this rank does to others.
 *
 * Three exceptions: a rank that left by a close or an update is not killed; a rank that
 * is itself out of the group kills no other; and a process is not killed while it has
 * another rank that was not taken out.
 */
#define MW_CONFIG_KILL_FENCED 16u

typedef struct {
	uint32_t size;
	uint32_t flags;       /* MW_CONFIG_* */
	uint32_t rank;        /* 0 <= rank < num_ranks */
	uint32_t num_ranks;   /* R, at most MW_MAX_RANKS */
	uint64_t num_bytes;   /* bytes for all slots; 0: the first dispatch sets the size */
	uint32_t num_slots;   /* the most operations between dispatch and release; 0: 2; at most 64; see
	                         MW_DISPATCH_KEEP_HELD */
	int32_t vector_width; /* bytes: 16, 32 or 64; 0: the widest; -1: plain Go kernels; each rank
	                         chooses for itself */
	/* Each rank chooses the following values for itself. They change times and no result. */
	uint32_t stores;      /* MW_STORES_*: how a dispatch stores rows */
	uint32_t huge_pages;  /* MW_HUGE_PAGES_*: huge pages for this rank's memory */
	uint32_t numa;        /* MW_NUMA_*: where this rank's memory lies */
	uint32_t num_threads; /* threads that place and reduce rows, the caller's included; 0: 1; at
	                         most 64 */
	int32_t prefetch;     /* how many rows (dispatch) or tokens (combine) are prefetched ahead of
	                         use, at most 64; 0: the default; -1: none */
	int32_t spin_us;      /* how long a wait polls before it sleeps, at most 1000000; 0: the
	                         default; -1: it sleeps at once */
	int64_t slow_after_us; /* a wait this long becomes an event (mw_buffer_events); 0: 1 s; -1: no
	                          wait does */
	/* How ranks reach one another. A field that is not marked `own` must be equal on all
	   ranks. Leave all of them zero for a group on one host. Text is UTF-8 without a zero
	   byte; the library copies it. */
	uint32_t transport;   /* MW_TRANSPORT_* */
	uint32_t protection;  /* MW_PROTECTION_*: protection of the bytes that TCP carries */
	mw_bytes_t listen;    /* own: where ranks of other hosts reach this one. It is an address,
	                         "ADDRESS:PORT", or the name of an interface. IPv6 is written
	                         "[ADDRESS]:PORT"; the brackets are also allowed without a port */
	mw_bytes_t keys;      /* the keys that all ranks share, one per line: "ID HEX", 64 digits, the
	                         current one first (docs/wire.md). Ranks of several hosts need this or
	                         key_file. No text ever shows a key */
	mw_bytes_t host;      /* own, for tests: a host name. Ranks with different names treat each other
	                         as ranks of other hosts. Empty: this machine */
	uint64_t ring_bytes;  /* each remote rank has two rings of this size per direction; a power of two;
	                         0: 16 MiB */
	int64_t unresponsive_after_us; /* a remote rank that is silent for this long is suspected; 0: 1 s */
	mw_bytes_t key_file;  /* path of a file with the keys, in place of `keys`. Every
	                         mw_buffer_update reads it again. Its mode must let no other user read
	                         it; the group may read a file of root's */
	/* own: the RDMA devices that this rank may use, and how. Empty: the library chooses. */
	mw_bytes_t rdma_devices; /* names, separated by commas, each with or without a port:
	                            "mlx5_0,mlx5_1:2", "mlx5_*" */
	mw_bytes_t rdma_gid;     /* on Ethernet, the address of the port (GID) to send from: an index, "v1"
	                            or "v2", an address or a network ("10.0.0.0/16"), or a version and a
	                            network ("v2,10.0.0.0/16") */
	mw_bytes_t rdma_near;    /* what the device should be near to: the PCI address of a GPU
	                            ("0000:41:00.0"), or "node:N". Empty: the NUMA node that this process
	                            may run on, if it is a single one */
	uint32_t tcp_zero_copy;  /* own: MW_ZERO_COPY_*: for the bytes that TCP carries */
	uint32_t reserved;       /* 0 */
	/* Where rows lie: see "CUDA" below. */
	uint32_t device;         /* MW_DEVICE_*: the same on all ranks */
	uint32_t device_ordinal; /* own: which CUDA device, as the driver counts them */
	mw_bytes_t cuda_driver;  /* own: path of the driver's library; empty: libcuda.so.1 */
	mw_bytes_t cuda_code;    /* own, for tests: code of the kernels, in place of the library's code */
	mw_bytes_t cuda_nvrtc;   /* own: where NVRTC may be: files or folders, separated by ':' */
} mw_config_t;

/* Whether TCP sends long payloads without a copy into the kernel. Encrypted payloads are
   copies in any case. */
#define MW_ZERO_COPY_AUTO 0u /* to other hosts, until the kernel reports that it copies anyway */
#define MW_ZERO_COPY_ON 1u   /* wherever the kernel can */
#define MW_ZERO_COPY_OFF 2u  /* never */

#define MW_DEVICE_CPU 0u
#define MW_DEVICE_CUDA 1u

/* AUTO takes shared memory between ranks of one host, and otherwise a carrier that both
   ranks have. mw_buffer_paths says which one it chose. */
#define MW_TRANSPORT_AUTO 0u
#define MW_TRANSPORT_SHM 1u  /* only shared memory: ranks of other hosts are an error */
#define MW_TRANSPORT_TCP 2u  /* only TCP, even between ranks of one host */
#define MW_TRANSPORT_RDMA 3u /* RDMA between hosts, or an error; shared memory within a host */

#define MW_PROTECTION_DIGEST 0u  /* forged or changed bytes are refused */
#define MW_PROTECTION_ENCRYPT 1u /* as DIGEST, and no third party can read the bytes on the way */

#define MW_STORES_AUTO 0u      /* streaming stores from 1 MiB of rows on */
#define MW_STORES_CACHED 1u    /* ordinary stores */
#define MW_STORES_STREAMING 2u /* stores that bypass the caches; x86-64 only */

#define MW_HUGE_PAGES_NEVER 0u   /* not requested */
#define MW_HUGE_PAGES_ADVISE 1u  /* requested; the kernel may refuse without an error */
/*
 * Huge pages of 2 MiB that the administrator has reserved, or else an error. They must
 * cover num_bytes and one page more. To go on after a rank was frozen they must cover
 * num_bytes once again.
 */
#define MW_HUGE_PAGES_REQUIRE 2u

#define MW_NUMA_NONE 0u
#define MW_NUMA_LOCAL 1u /* memory near the thread that calls mw_buffer_create, if there is room */

#define MW_SHAPE_FP32_OUTPUTS 1u /* with room for MW_DISPATCH_FP32_OUTPUTS; other dispatches fit as
                                    well */
#define MW_SHAPE_FLAT 2u         /* for MW_DISPATCH_FLAT: flat rows need a different amount of room than
                                    packed rows */

typedef struct {
	uint32_t size;
	uint32_t num_slots; /* 0: 2 */
	int64_t num_max_tokens_per_rank;
	int64_t hidden;
	int64_t num_ranks;
	int64_t num_experts;
	uint32_t flags;     /* MW_SHAPE_* */
	uint32_t reserved;  /* 0 */
	int64_t num_topk;   /* with FLAT: K, or 0 with MW_DISPATCH_NO_ROUTING. Without FLAT: 0 */
	uint32_t extra_row_bytes[MW_MAX_EXTRAS]; /* with FLAT: as in mw_dispatch_args_t. Without FLAT: 0 */
} mw_shape_t;

/*
 * Writes the bytes to pass as mw_config_t.num_bytes for operations up to this shape, in
 * bf16 or fp8. They are address space: memory becomes resident as rows arrive.
 */
mw_status_t mw_buffer_size_hint(const mw_shape_t *shape, uint64_t *num_bytes);

/* Makes this rank's part of a buffer. The call is not collective and needs no peer. */
mw_status_t mw_buffer_create(const mw_config_t *config, mw_buffer_t *buffer);

/*
 * Writes this rank's metadata: the bytes that every other rank must pass to
 * mw_buffer_connect, at most 1024. The call copies at most `cap` bytes to `buf` and
 * writes the length to *len, also if `cap` is too small. With buf == NULL it writes only
 * *len.
 */
mw_status_t mw_buffer_metadata(mw_buffer_t buffer, void *buf, uint64_t cap, uint64_t *len);

/*
 * Connects this rank with the others; collective over the ranks that take part. all[r] is
 * the metadata of rank r, for 0 <= r < num_ranks == R. A rank that does not take part has
 * num_bytes == 0: it is absent, and so are its experts. The call blocks until every rank
 * that takes part is connected, at most timeout_us (-1: 60 seconds). Closing the buffer
 * in another thread ends the call. If all ranks that take part are new, the buffer is
 * usable from here on; otherwise it is usable after mw_buffer_install.
 *
 * MW_ERR_PEER_MISMATCH names the first parameter on which ranks disagree, both values and
 * the rank; MW_ERR_TIMEOUT and MW_ERR_PEER_LOST name the rank. After an error, call
 * mw_buffer_update for another rendezvous, or mw_buffer_close.
 */
mw_status_t mw_buffer_connect(mw_buffer_t buffer, const mw_bytes_t *all, uint32_t num_ranks,
                              int64_t timeout_us);

/*
 * Begins an update of the membership, or another attempt at one: a lost rank is replaced,
 * or ranks leave or come. This rank leaves its epoch: operations in flight end with
 * MW_ERR_UPDATING, handles become stale, and mw_buffer_metadata gives new bytes. Exchange
 * these bytes among the ranks of the next epoch: survivors, a fenced rank that comes
 * back, new buffers. Then call mw_buffer_connect, and mw_buffer_install once every rank
 * is known to have connected. This rank's slabs keep their addresses, except slabs that a
 * lost rank may still write into: those are replaced.
 */
mw_status_t mw_buffer_update(mw_buffer_t buffer);

/*
 * Begins the epoch of the ranks that have connected. All of these ranks must call it, or
 * none: if one of them failed to connect, all call mw_buffer_update again instead. The
 * call does nothing if mw_buffer_connect has begun the epoch already, or if it was called
 * before for this epoch.
 */
mw_status_t mw_buffer_install(mw_buffer_t buffer);

typedef struct {
	uint32_t size;
	uint32_t epoch;     /* the group's epoch, 16 bits; every update raises it */
	uint64_t ranks;     /* one bit per member. If this rank's bit is 0, this rank is out of the
	                       group */
	/* How many ranks this rank has taken out since mw_buffer_create, between hosts also those that
	 * it has asked for and that all have agreed on. */
	uint64_t num_lost;
} mw_members_t;

/* Writes which ranks are in the group now, as every rank of this host sees it. */
mw_status_t mw_buffer_members(mw_buffer_t buffer, mw_members_t *members);

/*
 * Leaves the group and frees the buffer. Peers that wait for this rank learn it at once.
 * Waits of other threads on this buffer end with MW_ERR_CLOSED. Memory that is retained
 * by mw_memory_retain stays mapped, but its content is stale. Closing a second time
 * returns MW_ERR_HANDLE and does nothing.
 *
 * Closing may fail, on CUDA because the device is not done or another process has the
 * memory open. The rank is out of the group then, and operations return MW_ERR_CLOSED.
 * Memory that could not be freed stays. Call mw_buffer_close again until it returns
 * MW_OK.
 */
mw_status_t mw_buffer_close(mw_buffer_t buffer);

typedef struct {
	uint32_t size;
	uint32_t num_ranks;
	uint64_t num_dispatches;     /* completed */
	uint64_t num_combines;       /* completed */
	uint64_t num_rows_sent;      /* rows placed at any rank, this one included */
	uint64_t num_rows_received;  /* rows received from sources that the results count */
	uint64_t num_rows_reduced;   /* rows pulled by combines */
	uint64_t num_bytes_placed;   /* bytes stored by dispatches: rows, scales, src_info, and what
	                                comes with flat rows */
	uint64_t num_bytes_reduced;  /* bytes loaded by combines */
	uint64_t num_bytes_copied;   /* expert outputs copied because they were not in the combine
	                                buffer */
	uint64_t slab_bytes;         /* address space of this rank's slabs */
	uint64_t wait_ns;            /* time spent waiting for peers */
	uint64_t num_rows_sent_to[MW_MAX_RANKS];
	uint64_t wait_ns_for[MW_MAX_RANKS]; /* time spent waiting, by the rank waited for */
} mw_counters_t;

/* Writes totals since mw_buffer_create. */
mw_status_t mw_buffer_counters(mw_buffer_t buffer, mw_counters_t *counters);

/* --------------------------------------------------------- observation -- */

/*
 * These functions work until mw_buffer_close, also on a buffer that a defect has closed.
 * docs/observability.md describes the keys of the JSON texts.
 *
 * mw_buffer_stats writes totals, histograms and expert load since mw_buffer_connect as
 * JSON; buf, cap and len work as in mw_system_report. The text may be longer at the next
 * call.
 */
mw_status_t mw_buffer_stats(mw_buffer_t buffer, char *buf, uint64_t cap, uint64_t *len);

/*
 * Writes how this rank reaches every rank, as a JSON array of objects with "rank",
 * "carrier" ("self", "shm", "tcp", "verbs"; "" for an absent rank), "device", "why" and
 * "fell_back": whether one of the two ranks has, or had, a carrier that it prefers.
 * Call it after mw_buffer_connect. buf, cap and len work as in mw_buffer_stats.
 */
mw_status_t mw_buffer_paths(mw_buffer_t buffer, char *buf, uint64_t cap, uint64_t *len);

#define MW_LINK_TCP 1 /* mw_link_t.carrier */
#define MW_LINK_VERBS 2
#define MW_LINK_UP 1
#define MW_LINK_UNRESPONSIVE 2 /* silent for mw_config_t.unresponsive_after_us */
#define MW_LINK_BROKEN 3 /* carries nothing: it is being reconnected, or the group has not decided yet
                            which ranks go */
#define MW_LINK_ENDED 4  /* the rank's process has ended, or the rank is closing its buffer */
#define MW_LINK_OUT 5    /* the rank is no longer a member */

/*
 * What this rank knows of a rank whose memory it cannot map. Counts are since
 * mw_buffer_create, over all links to that rank number. The other fields describe the
 * latest link.
 */
typedef struct {
	uint32_t size;
	uint32_t rank;
	uint32_t carrier;          /* MW_LINK_TCP, MW_LINK_VERBS */
	uint32_t state;            /* MW_LINK_UP to MW_LINK_OUT */
	uint64_t num_messages_sent;
	uint64_t num_bytes_sent;   /* bytes of messages, without the bytes that carriers add */
	uint64_t num_messages_received;
	uint64_t num_bytes_received;
	uint64_t num_blocked;      /* attempts to send that found no room: the rank had released too
	                              little */
	uint64_t num_dropped;      /* messages that were not sent because the link had failed */
	uint64_t num_ignored;      /* completions and grants that matched nothing */
	uint32_t num_credits;      /* messages that may be sent now */
	uint32_t num_max_credits;
	int64_t heard_ns;          /* when the rank was last heard, CLOCK_MONOTONIC; 0: never */
	uint64_t num_beats;        /* heartbeats received */
	int64_t clock_ahead_ns;    /* how far its host's wall clock is ahead of this host's, less the
	                              time that the fastest heartbeat of the last 5 to 10 s took; always
	                              odd if known; 0: not known */
	uint64_t num_reconnects;       /* connections that broke and were made again */
} mw_link_t;

/*
 * Writes one element for each rank that this rank reaches by messages, in order of rank
 * numbers; none if all ranks share memory. links[0].size says how large the caller's
 * elements are. The call writes at most `capacity` elements (MW_MAX_RANKS are enough) and
 * their number to *count. Connections that were refused, and why, are in the text of
 * mw_buffer_stats.
 */
mw_status_t mw_buffer_links(mw_buffer_t buffer, mw_link_t *links, uint32_t capacity,
                            uint32_t *count);

#define MW_RECORD_DISPATCH 1
#define MW_RECORD_COMBINE 2
#define MW_OUTCOME_DONE 0
#define MW_OUTCOME_FAILED 1
#define MW_OUTCOME_CANCELLED 2 /* 3 is not used */
/* The number of operations that a rank remembers. It is fixed, because other processes
   read records by their place. */
#define MW_MAX_RECORDS 1024

/*
 * One ended operation of one rank. Times are CLOCK_MONOTONIC in nanoseconds, comparable
 * among the ranks of a host. A time is 0 if the event did not happen.
 */
typedef struct {
	uint32_t size;
	uint32_t sequence;       /* 1 for the first operation of a buffer */
	uint16_t kind;           /* MW_RECORD_* */
	uint16_t outcome;        /* MW_OUTCOME_* */
	uint16_t epoch;
	int16_t last_rank;       /* the rank whose data came last; -1: the operation waited for no rank */
	uint32_t combine;        /* 1 for the first combine of a handle; 0: a dispatch */
	uint32_t num_tokens;     /* of this rank */
	uint64_t operation;      /* number of the dispatch, the same on every rank */
	int64_t start_ns;
	int64_t place_ns;        /* the first row was about to be stored */
	int64_t sent_ns;         /* all data of this rank was ready for the others */
	int64_t resume_ns;       /* the wait for the others began */
	int64_t seen_ns;         /* all data of the others was there */
	int64_t end_ns;
	int64_t wait_ns;         /* time blocked in total, also before sending */
	int64_t last_alone_ns;   /* the part of wait_ns in which only last_rank was missing */
	uint32_t num_rows;       /* sent by a dispatch, pulled by a combine */
	uint32_t num_rows_received;
	uint64_t num_bytes;      /* stored by a dispatch; loaded and copied by a combine */
	uint64_t prefault_bytes; /* memory made resident ahead of use */
	uint64_t waited_for;     /* the ranks that the operation waited for, one bit each */
} mw_record_t;

/*
 * Writes the latest operations of any rank of the group, the oldest first. The records of
 * another rank are read from its memory: that rank takes no part, and may be frozen or
 * dead. records[0].size says how large the caller's elements are. The call writes at most
 * `capacity` elements and their number to *count. Records that are being overwritten
 * during the call are left out.
 */
mw_status_t mw_buffer_trace(mw_buffer_t buffer, uint32_t rank, mw_record_t *records,
                            uint32_t capacity, uint32_t *count);

/*
 * Writes events that an operator should see, as JSON: ranks that were slow (waited for
 * longer than mw_config_t.slow_after_us), were lost, or left, or are reached over another
 * carrier than before. The events are those after number `since`, at most the latest 64.
 * buf, cap and len work as in mw_system_report.
 */
mw_status_t mw_buffer_events(mw_buffer_t buffer, uint64_t since, char *buf, uint64_t cap,
                             uint64_t *len);

/*
 * The address of a word that grows with every event of any buffer of this process. A
 * caller compares it to see whether a call of mw_buffer_events is worthwhile. The word
 * always exists: do not free it.
 */
const uint64_t *mw_event_count(void);

/* ------------------------------------------------------------ dispatch -- */

#define MW_DISPATCH_FP8 1u  /* cast rows to fp8 e4m3, with one scale per 128 values */
#define MW_DISPATCH_HAS_MORE 2u /* this rank will dispatch again for the same batch */
/* With FP8: scales are rounded up to powers of two. The flag is the same on every rank. */
#define MW_DISPATCH_ROUND_SCALE 4u
/* With ROUND_SCALE: scales are biased exponent bytes (UE8M0), four to a word. */
#define MW_DISPATCH_UE8M0 8u
/* Expert outputs are float32, not bf16: 4*H bytes per row. The flag is the same on every rank. */
#define MW_DISPATCH_FP32_OUTPUTS 16u
/* Flat rows: see mw_buffer_dispatch. The flag is the same on every rank. */
#define MW_DISPATCH_FLAT 32u
/* With FLAT: rows come without topk_idx and topk_weights. The flag is the same on every rank. */
#define MW_DISPATCH_NO_ROUTING 64u
/* Not with FLAT: the combine is pre-reduced, see mw_buffer_combine. Each rank chooses for
   itself. */
#define MW_DISPATCH_PRE_REDUCE 128u
/*
 * The dispatch returns MW_ERR_BUSY instead of taking the slot of a handle that was
 * neither combined nor released, because the caller may still read its rows. Each rank
 * chooses for itself. Without this flag the dispatch takes the slot: that handle becomes
 * stale, and its rows change.
 */
#define MW_DISPATCH_KEEP_HELD 256u

/*
 * Flags of a dispatch and of a combine, on the CPU: the types of topk_idx and
 * topk_weights. Without these flags the types are int64 and float32. The library widens
 * the values, exactly, in memory that it reuses; received rows always come with int64 and
 * float32. Each rank chooses for itself.
 */
#define MW_TOPK_IDX_INT32 512u
#define MW_TOPK_WEIGHTS_BF16 1024u
#define MW_TOPK_WEIGHTS_FP16 2048u

/*
 * The results of a dispatch. Each call that returns at or after MW_PHASE_SENT writes this
 * struct. The first call that finds the operation done writes it for the last time; only
 * then is `peers_have_more` valid.
 */
typedef struct {
	uint32_t size;
	uint32_t peers_have_more;  /* 1 if any counted rank set MW_DISPATCH_HAS_MORE. On CUDA it is 0:
	                              the device writes the value where the arguments say */
	mw_handle_t handle;        /* for the combine; valid until it is released */
	mw_memory_t memory;        /* the mapping that the addresses below lie in */
	uint64_t recv_x;           /* bf16 [L, R*M, H], or fp8 e4m3 [L, R*M, H] */
	uint64_t recv_scales;      /* fp8: float32 [L, H/128, R*M], or, with MW_DISPATCH_UE8M0,
	                              uint32 [L, H/512, R*M], block 4w+i in bits 8i of word w; else 0 */
	uint64_t src_info;         /* int32 [L, R*M]: token index on the source rank */
	uint64_t combine_x;        /* the combine buffer, where expert outputs go: bf16 [L, R*M, H], or
	                              float32 [L, R*M, H] with MW_DISPATCH_FP32_OUTPUTS */
	uint64_t memory_address;   /* start of the mapping */
	uint64_t memory_bytes;     /* its length */
	/* With FLAT there is one block of rows, so L is 1 in the shapes above. FLAT also has: */
	uint64_t recv_topk_idx;     /* int64 [R*M, K]: local expert ids, 0 to L-1 with L = E/R; -1: not on
	                               this rank */
	uint64_t recv_topk_weights; /* float32 [R*M, K]: 0 where the id is -1 */
	uint64_t recv_extra[MW_MAX_EXTRAS]; /* [R*M, extra_row_bytes] each; 0: not there */
} mw_dispatch_result_t;

typedef struct {
	uint32_t size;
	uint32_t flags;                  /* MW_DISPATCH_*, MW_TOPK_* */
	uint64_t x;                      /* bf16 [T, H], contiguous; the address may be 0 if T == 0 */
	uint64_t topk_idx;               /* int64 [T, K]; -1 selects nothing; the address may be 0 if T
	                                    == 0 */
	int64_t num_tokens;              /* T, 0 <= T <= M */
	int64_t hidden;                  /* H, a multiple of 8; of 128 with FP8, of 512 with UE8M0 */
	int64_t num_topk;                /* K, 1 <= K <= MW_MAX_TOPK */
	int64_t num_max_tokens_per_rank; /* M, the same on every rank */
	int64_t num_experts;             /* E, a multiple of R, the same on every rank */
	uint64_t active_ranks;           /* in and out, int32 [num_active_ranks]; 0: all ranks are
	                                    active */
	int64_t num_active_ranks;        /* at least R; entries beyond R are ignored */
	int64_t timeout_us;              /* a bound for each phase: the call, and the wait after it; -1:
	                                    none */
	int64_t slice_us;                /* how long the call blocks at most; -1: until the end */
	int32_t phase;                   /* MW_PHASE_SENT or MW_PHASE_DONE (0: done) */
	int32_t reserved;                /* 0 */
	uint64_t recv_count;             /* out int32 [L]: rows per local expert; FLAT: int32 [1] */
	uint64_t layout_range;           /* out int64 [L, R]: first row << 32 | rows of that source;
	                                    FLAT: int64 [1, R] */
	mw_dispatch_result_t *result;    /* out */
	/* Fields for FLAT, otherwise 0; PRE_REDUCE needs topk_weights, too. They are borrowed
	   as x is: */
	uint64_t topk_weights;           /* float32 [T, K]; 0 with NO_ROUTING; the address may be 0 if T
	                                    == 0 */
	uint64_t extra[MW_MAX_EXTRAS];   /* any bytes [T, extra_row_bytes]; the address may be 0 if T ==
	                                    0 */
	uint32_t extra_row_bytes[MW_MAX_EXTRAS]; /* 0: no tensor; at most MW_MAX_EXTRA_BYTES; the same
	                                            on every rank */
	uint64_t stream;                 /* on CUDA, a CUstream; 0: the legacy default stream. On the
	                                    CPU: 0 */
	uint64_t peers_have_more;        /* on CUDA, out int32 [1]: the value that the result has on the
	                                    CPU; 0: not wanted. On the CPU: 0 */
	uint64_t wait_ns;                /* on CUDA, int64 [R]: the device adds the ns that the dispatch
	                                    waited for each rank; 0: not wanted. On the CPU: 0 */
} mw_dispatch_args_t;

#define MW_PHASE_SENT 1 /* inputs are no longer needed */
#define MW_PHASE_DONE 2 /* results are complete */

/*
 * Collective: sends each token's row to the ranks that own its experts, once per distinct
 * expert, straight into the final packed position. Then it waits for the rows of every
 * rank. Within an expert's block the rows of one source are contiguous, in token order.
 * The sources come in order of arrival, or in order of rank with MW_CONFIG_DETERMINISTIC.
 * Rows at and beyond recv_count[l] are undefined.
 *
 * Returns MW_OK when args->phase is reached, or MW_IN_PROGRESS when slice_us passed
 * first. Both write *op: an operation that the caller must wait for and close, or 0.
 * MW_OK with 0 means that nothing is left to do. MW_IN_PROGRESS with 0 means that nothing
 * has begun, because an earlier combine that was left at MW_PHASE_SENT has to end first:
 * make the same call again. x and topk_idx are borrowed until MW_PHASE_SENT.
 * active_ranks, recv_count, layout_range and result are borrowed until a call has found
 * the operation done, or until mw_op_close. An operation that is left at MW_PHASE_SENT
 * goes on in the background.
 *
 * Faults: a rank is taken out of the group if its process ends. It is also taken out if
 * it is later than timeout_us, unless it is late only because it waits for another rank.
 * It is out for every rank at once. The call goes on without that rank and returns MW_OK.
 * The rank's entry in active_ranks is cleared, in place, exactly when its rows are not in
 * this result; its layout_range counts are 0 then. Rows that it had reserved but not
 * finished stay counted in recv_count. Their content is undefined, and no combine reads
 * them. The rank that was taken out gets MW_ERR_FENCED from every call until
 * mw_buffer_update.
 *
 * Repeated routing: if topk_idx equals that of one of the latest num_slots operations
 * among the same ranks, the call reuses that operation's plan. The library compares the
 * ids. Results have the same bits either way.
 *
 * Slots: at most num_slots operations are between dispatch and release. The next dispatch
 * takes the slot of an operation that was never combined, and overwrites its rows. With
 * MW_DISPATCH_KEEP_HELD it returns MW_ERR_BUSY instead, before anything is sent.
 *
 * A call with bad arguments, or one that returns MW_ERR_BUSY, consumes nothing: it may be
 * repeated. A disagreement with a peer (MW_ERR_PEER_MISMATCH) consumes the operation on
 * every rank and leaves the buffer usable.
 */
mw_status_t mw_buffer_dispatch(mw_buffer_t buffer, const mw_dispatch_args_t *args, mw_op_t *op);

/*
 * With MW_DISPATCH_FLAT, a token's row goes once to every rank that owns some of the
 * token's experts. Each rank has one block of rows, not one per expert. The rows are in
 * order of their source ranks and, within a rank, of their tokens. Each row comes with
 * the token's local expert ids and weights, and with up to MW_MAX_EXTRAS more tensors of
 * the caller's. The caller runs the experts of its rank, applies the weights and adds up
 * the outputs, which gives one output row per row. The combine adds the output rows of a
 * token's ranks.
 *
 * A flat dispatch is sent only once all ranks have begun it, as with
 * MW_CONFIG_DETERMINISTIC. K and extra_row_bytes are the same on every rank; with
 * NO_ROUTING, K may differ. Rows that a lost rank had reserved but not finished have ids
 * -1 and weights 0. Flat and packed operations may follow one another on one buffer.
 */

/* ------------------------------------------------------------- combine -- */

#define MW_COMBINE_ZERO_COPY 1u /* x is the handle's combine buffer; the library checks this */
#define MW_COMBINE_FLAT 2u      /* combine a dispatch with MW_DISPATCH_FLAT, once that dispatch has
                                   ended */

typedef struct {
	uint32_t size;
	uint32_t flags;           /* MW_COMBINE_*, MW_TOPK_* */
	mw_handle_t handle;
	uint64_t x;               /* [L, R*M, H] expert outputs, contiguous: bf16, or float32 if the
	                             dispatch had MW_DISPATCH_FP32_OUTPUTS. FLAT: [recv_count[0], H]; on
	                             the CPU the address may be 0 if there are no rows */
	uint64_t topk_idx;        /* int64 [T, K], the ids of the dispatch; -1 leaves a selection out,
	                             but not after PRE_REDUCE; FLAT: 0 */
	uint64_t topk_weights;    /* float32 [T, K]; after PRE_REDUCE the weights of the dispatch; FLAT:
	                             0 */
	uint64_t out;             /* out bf16 [T, H], contiguous */
	int64_t num_tokens;       /* T of the dispatch */
	int64_t num_topk;         /* K of the dispatch; FLAT: 0 */
	uint64_t active_ranks;    /* as for the dispatch; the experts of a lost rank contribute nothing */
	int64_t num_active_ranks;
	int64_t timeout_us;
	int64_t slice_us;
	int32_t phase;            /* MW_PHASE_SENT: of the memory passed in, only out is still needed;
	                             MW_PHASE_DONE; 0: done */
	int32_t reserved;         /* 0 */
	uint64_t stream;          /* as for dispatch */
	uint64_t wait_ns;         /* as for the dispatch: the ns that the combine waited for each rank */
} mw_combine_args_t;

/*
 * Collective over the ranks that have rows: out[t] = sum over k, in order of k, of
 * topk_weights[t,k] * (output row of expert topk_idx[t,k] for token t). The products and
 * sums are float32, and the result is rounded once to bf16 (nearest even). A token
 * without a live selection gives zeros. The bits depend on the inputs alone. With
 * MW_COMBINE_FLAT: out[t] = sum over the ranks that token t went to, in order of rank, of
 * their output rows for the token, added and rounded likewise.
 *
 * After a dispatch with MW_DISPATCH_PRE_REDUCE, every rank that token t went to first
 * makes its own sum: over the selections of t on that rank, in order of k, of weight *
 * output row. It multiplies and adds in float32 and rounds the sum to the type of the
 * output rows. out[t] is the sum of these sums, added in float32 and rounded once to
 * bf16. The ranks come in the order in which the selections of t first name them. A rank
 * of another host then sends one row per token, not one per token and expert. The bits do
 * not depend on where ranks are. topk_idx and topk_weights must be those of the dispatch,
 * which has copied them; MW_ERR_INVALID_ARGUMENT names the first that differs.
 *
 * A handle may be combined again until it is released. mw_handle_release releases it.
 * Once it is combined, the next call on the buffer that is not a combine of the same
 * handle also releases it. A handle that was never combined is released by the dispatch
 * that needs its slot; with MW_DISPATCH_KEEP_HELD that dispatch returns MW_ERR_BUSY
 * instead. On the CPU it is the num_slots-th dispatch after the handle's own. On CUDA a
 * dispatch looks for a slot that no such handle holds.
 *
 * If x is the handle's combine buffer, nothing is copied. Return values and *op are as
 * for mw_buffer_dispatch; here an unfinished dispatch or combine of the same handle has
 * to end first. out is borrowed until the operation has ended, or until mw_op_close.
 */
mw_status_t mw_buffer_combine(mw_buffer_t buffer, const mw_combine_args_t *args, mw_op_t *op);

/*
 * Waits until no rank reads the handle's combine buffer any more, and writes the buffer's
 * address: the combine_x of the dispatch's result. Ranks read there only after an earlier
 * combine of the handle. Write expert outputs there, then combine with
 * MW_COMBINE_ZERO_COPY. The call returns MW_IN_PROGRESS if timeout_us (-1: no bound)
 * passed first: call again.
 */
mw_status_t mw_buffer_combine_buffer(mw_buffer_t buffer, mw_handle_t handle, int64_t timeout_us,
                                     uint64_t *address);

/*
 * The same for a buffer on CUDA. After a combine of the handle, `stream` waits for the
 * ranks that read there, and the host does not wait. Later work on that stream may write.
 * mw_buffer_combine_buffer uses the stream of the handle's latest dispatch or combine,
 * and ignores timeout_us. The wait has the deadline of the latest combine. If the second
 * phase of that combine was not launched yet, the call launches it first.
 */
mw_status_t mw_buffer_combine_buffer_on(mw_buffer_t buffer, mw_handle_t handle, uint64_t stream,
                                        uint64_t *address);

/*
 * Tells every rank that this rank is done with the operation. The operation's rows may be
 * overwritten from now on. Releasing a stale handle returns MW_ERR_STALE_HANDLE and does
 * nothing.
 */
mw_status_t mw_handle_release(mw_handle_t handle);

/*
 * The same for the handle of a CUDA buffer: the release takes place when `stream` reaches
 * it. mw_handle_release uses the stream of the handle's latest dispatch or combine. The
 * library does not know which other work reads the handle's rows. Work on other streams
 * that reads them must be ordered before the release by an event; otherwise the memory
 * may hold other rows by then.
 *
 * MW_STREAM_NONE launches nothing. Use it for the handle of a dispatch that was recorded
 * into a graph. Call it when the recording has ended and the program no longer uses the
 * handle. The graph takes the handle's slot and releases it at each replay.
 * MW_DISPATCH_KEEP_HELD no longer counts the handle.
 */
#define MW_STREAM_NONE UINT64_MAX
mw_status_t mw_handle_release_on(mw_handle_t handle, uint64_t stream);

/*
 * CUDA. With mw_config_t.device == MW_DEVICE_CUDA, x, topk_idx, topk_weights,
 * active_ranks, recv_count, layout_range, peers_have_more, wait_ns, out and all addresses
 * of a result are addresses of the device. A call launches kernels on args->stream and
 * returns. The host does not wait; timeout_us bounds each wait on the device, and
 * slice_us has no meaning. With MW_PHASE_SENT a call launches the part that needs the
 * inputs, and mw_op_wait launches the rest on the same stream.
 *
 * Memory that is passed in is borrowed until the stream has passed the launched work; for
 * a recorded graph, as long as the graph is replayed. `result` is complete when a call
 * returns. Its addresses depend on the shape and the slot alone; memory_address and
 * memory_bytes are 0.
 *
 * The caller orders calls on different streams. A later mw_op_wait works on the stream of
 * its call, and the caller orders that, too. Some calls need the rest of an earlier call:
 * a combine needs the rest of its handle's dispatch or latest combine, and a dispatch
 * that takes a combine's slot needs the rest of that combine. Such a call launches that
 * rest first, on its own stream. out, recv_count and the other memory that the rest
 * writes are complete once that stream has passed it. There is one exception: if exactly
 * one of the two streams is being captured, the rest goes to the stream of the earlier
 * call.
 *
 * A later call returns errors of the device (MW_ERR_DEVICE and others). num_bytes must
 * not be 0 on CUDA. Only the device knows how many flat rows were received (recv_count):
 * x of a flat combine must have at least that many rows. Statistics, traces and counters
 * cover operations that the device has ended. With MW_CONFIG_NO_RECORD the counters are
 * 0, and nothing is added to wait_ns.
 */

/* ----------------------------------------------------------- operation -- */

/*
 * Drives the operation until `phase` (0: done) is reached, at most timeout_us (-1: until
 * the operation's own deadline). Returns MW_OK, MW_IN_PROGRESS, or the operation's error,
 * which is the same at every later call.
 */
mw_status_t mw_op_wait(mw_op_t op, int32_t phase, int64_t timeout_us);

/* Like mw_op_wait for MW_PHASE_DONE, but without blocking. */
mw_status_t mw_op_test(mw_op_t op);

/*
 * Cancels the operation: it ends with MW_ERR_CANCELLED, and its handle is released. Later
 * calls on the buffer still send what peers need from the operation. Cancelling an ended
 * operation changes nothing. Returns MW_OK either way.
 */
mw_status_t mw_op_cancel(mw_op_t op);

/*
 * Frees the id. An operation that has not ended is cancelled first. After this call the
 * library does not touch memory that was passed to the operation.
 */
mw_status_t mw_op_close(mw_op_t op);

/* -------------------------------------------------------------- memory -- */

/*
 * Keeps a mapping in place until mw_memory_release, even beyond mw_buffer_close. Each
 * retain needs one release. On CUDA the last release frees the memory of a closed buffer.
 * If the device cannot free it, the release fails, and the memory stays retained: release
 * it again.
 */
mw_status_t mw_memory_retain(mw_memory_t memory);
mw_status_t mw_memory_release(mw_memory_t memory);

#ifdef __cplusplus
}
#endif
#endif
