/*
 * moewire_store.h - the block store: blocks of bytes under keys of a namespace, kept by
 * servers. A client and a server are each made here; `moewire store serve` runs the latter.
 * The contract of moewire.h holds here: statuses, sized structs, ids, threads, borrowed
 * memory, fork. C11 and C++.
 *
 * A miss is no error. Neither is a server that is dead, hung or full: its share of the
 * keys is a miss at once, after one timeout, until it is back. Errors are bad arguments, a
 * closed client, a client that a server refuses, and a bound that is reached.
 *
 * Any thread may make any call. Clients and servers have threads of their own.
 */
#ifndef MOEWIRE_STORE_H
#define MOEWIRE_STORE_H

#include "moewire_fabric.h" /* MW_KEYS_* */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { uint64_t id; } mw_store_t;        /* a client */
typedef struct { uint64_t id; } mw_store_lease_t;  /* a block that a server keeps for a client */
typedef struct { uint64_t id; } mw_store_server_t;

/* -------------------------------------------------------------- client -- */

#define MW_STORE_MAX_KEYS 512      /* of one request */
#define MW_STORE_MAX_KEY_BYTES 512 /* of one key; it has a byte at least */

/*
 * The names of a namespace are texts. Namespaces that differ in any one of them share
 * nothing. The whole is at most 4096 bytes.
 */
typedef struct {
	uint32_t size;
	uint32_t key_source;     /* MW_KEYS_* */
	mw_bytes_t keys;
	mw_bytes_t servers;      /* "host:port", several with commas; keys are spread over them */
	mw_bytes_t model;
	mw_bytes_t weights;      /* a fingerprint of the weights */
	mw_bytes_t dtype;
	mw_bytes_t layout;       /* of keys and values in a block */
	mw_bytes_t chunk;        /* tokens per block */
	mw_bytes_t parallel;     /* the parallel geometry, and the rank's place in it */
	mw_bytes_t salt;
	int64_t timeout_us;      /* without progress, for requests that do not say; 0: 250 ms */
	int64_t connect_timeout_us; /* 0: 2 s */
	uint32_t num_requests;   /* the most at a time; 0: 1024; at most 65535 */
	uint32_t protection;     /* MW_PROTECTION_*: the same at the servers */
	uint32_t transport;      /* MW_TRANSPORT_AUTO, _SHM or _TCP: what brings blocks */
	uint32_t reserved;       /* 0 */
} mw_store_config_t;

/*
 * MW_TRANSPORT_SHM reads blocks where they lie at a server of the same host, which copies
 * those of puts from this process's memory, and a server where that cannot be refuses the client. MW_TRANSPORT_AUTO does so where it can, and has
 * other servers send blocks by TCP. A server where shared memory itself has failed stays
 * with TCP for as long as the client lives, and a warning says so once.
 */

/*
 * Connects to all servers. One that cannot be reached is no error. MW_ERR_REFUSED: a
 * server does not take this client.
 */
mw_status_t mw_store_open(const mw_store_config_t *config, mw_store_t *store);

/*
 * Takes the warnings since the last call, each a line with its end, as many as have room;
 * `cap` is at least 4096. A warning is new if *len is not 0.
 */
mw_status_t mw_store_warnings(mw_store_t store, char *buf, uint64_t cap, uint64_t *len);

/* Ends what runs, as misses. Afterwards all memory is the caller's, and the ids of the
   client and of its leases are invalid. */
mw_status_t mw_store_close(mw_store_t store);

#define MW_STORE_PUT 32u    /* true: the block is there; false: another one, no room, no server */
#define MW_STORE_GET 33u    /* into `pieces` */
#define MW_STORE_DELETE 34u
#define MW_STORE_EXISTS 35u
#define MW_STORE_TOUCH 36u  /* the block will be wanted */
#define MW_STORE_PIN 37u    /* keep the block for hold_us */

/*
 * One request for several keys, which are a chain in order: the beginning of a prompt
 * first. Keys are copied. The memory of `pieces` stays in place until the request has
 * completed, and until then a get writes there and a put's must not change.
 */
typedef struct {
	uint32_t size;
	uint32_t op;             /* MW_STORE_* */
	uint32_t num_keys;       /* 1 to MW_STORE_MAX_KEYS */
	uint32_t num_pieces;     /* all together; put, get */
	uint64_t keys;           /* the address of mw_bytes_t[num_keys]; with key_bytes, of the keys themselves */
	uint64_t pieces;         /* of mw_bytes_t[num_pieces]: the memory of the blocks, key by key */
	uint64_t pieces_per_key; /* of uint32_t[num_keys]; 0: one piece for each key */
	mw_bytes_t parent;       /* put: the key before the first one, if any */
	int64_t hold_us;         /* pin */
	int64_t timeout_us;      /* how long no byte may come or go; 0: that of the client */
	uint32_t key_bytes;      /* not 0: all keys have this length, and lie one behind the other */
	uint32_t reserved;       /* 0 */
} mw_store_request_t;

/*
 * A block that is larger than a segment of its server is not stored, which a warning says for each power of two of bytes
 * once, with both numbers; so does the completion of a request that was submitted.
 *
 * How each key of a request fared, by position: `ok` has 1 or 0, `lengths` the length of
 * a block that a get has found or a put has stored, else -1. A block for which `pieces` have no room has its
 * length and a 0. Each of the two has room for all keys of the request.
 */
mw_status_t mw_store_do(mw_store_t store, const mw_store_request_t *request, uint8_t *ok, int64_t *lengths);

/* Begins a request. MW_ERR_WOULD_BLOCK: num_requests run, or were not drained;
   nothing has happened. */
mw_status_t mw_store_submit(mw_store_t store, const mw_store_request_t *request, uint64_t *id);

typedef struct {
	uint32_t size;
	uint32_t num_keys;
	uint64_t id;             /* as mw_store_submit has given it */
	int32_t status;          /* MW_OK; MW_ERR_CLOSED: the client was closed */
	uint32_t reserved;       /* 0 */
	char too_large[512];     /* of a put: the server, the bytes of the first block that none of its segments holds, and the
	                            most that one does; with a 0 at its end, which is all if there is no such block */
} mw_store_completion_t;

/*
 * Takes one completion; `ok` and `lengths` have room for MW_STORE_MAX_KEYS. MW_IN_PROGRESS:
 * there is none, and nothing is written. Never blocks.
 */
mw_status_t mw_store_drain(mw_store_t store, mw_store_completion_t *done, uint8_t *ok, int64_t *lengths);

/*
 * The same for one request, for which it waits at most timeout_us (-1: no bound).
 * MW_IN_PROGRESS: it has not completed.
 */
mw_status_t mw_store_wait(mw_store_t store, uint64_t id, int64_t timeout_us, mw_store_completion_t *done,
                          uint8_t *ok, int64_t *lengths);

/* A descriptor that becomes readable when there are completions. Then drain until
   MW_IN_PROGRESS. It is the client's: it must not be read or closed. */
mw_status_t mw_store_event_fd(mw_store_t store, int32_t *fd);

/*
 * Leases the blocks of `keys` for hold_us (0: as the server likes, which may shorten it).
 * By position: the id of a lease, 0 for a miss, and the length, -1 for a miss. Each lease has
 * to be closed. leases may be NULL: no lease is left then, and only lengths are written. Of the request only keys, hold_us, timeout_us and size are used; timeout_us holds
 * for what is asked of the leases later, too.
 */
mw_status_t mw_store_lookup(mw_store_t store, const mw_store_request_t *request, uint64_t *leases,
                            int64_t *lengths);

/* Reads the whole block. *ok is 0 if the lease is over, or if the bytes are wrong. */
mw_status_t mw_store_lease_read(mw_store_lease_t lease, uint64_t address, uint64_t num_bytes, uint8_t *ok);

typedef struct {
	uint32_t size;
	int32_t fd;              /* a file that can be mapped for reading; the caller closes it */
	uint64_t offset;         /* of the block there: any number */
	int64_t left_us;         /* until the server may end the lease by itself */
} mw_store_place_t;

/*
 * Says where the block lies, so that it can be read without a copy: in memory of a server
 * of this host. Its bytes were compared there. They stay what they are until the lease is
 * closed, for left_us at most, and as long as the connection is there; mw_store_lease_end
 * says whether they have. A mapping stays readable as long as the caller has it.
 * MW_IN_PROGRESS: the block is not to be had so, and nothing is written: read it.
 */
mw_status_t mw_store_lease_place(mw_store_lease_t lease, mw_store_place_t *place);

/* Closes a lease. *kept is 1 if the server has kept the block until now: what was read at its
   place are its bytes. Else they may be another block's. */
mw_status_t mw_store_lease_end(mw_store_lease_t lease, uint8_t *kept);

/* Ends a lease; its id is invalid. */
mw_status_t mw_store_lease_close(mw_store_lease_t lease);

/* `cap` of mw_store_list is at least this. */
#define MW_STORE_LIST_BYTES 270336

/*
 * Lists keys that begin with a prefix, part by part. `cursor` is empty for the first
 * part. Writes the cursor of the next part, which is empty at the end, and then the keys,
 * each as 16 bits of length, little endian, and its bytes. A server that does not answer
 * is left out. timeout_us: without a byte, for this part; 0: that of the client.
 */
mw_status_t mw_store_list(mw_store_t store, const mw_bytes_t *prefix, const mw_bytes_t *cursor,
                          int64_t timeout_us, void *buf, uint64_t cap, uint64_t *len);

/*
 * Returns once what was stored before is on the servers' disks. MW_ERR_UNREACHABLE: not
 * on all of them within timeout_us (0: 30 s); the text names those.
 */
mw_status_t mw_store_flush(mw_store_t store, int64_t timeout_us);

/*
 * Writes the counts of the client, and what each server says of itself, as JSON; buf, cap
 * and len work as in mw_system_report. Later versions may add keys. timeout_us: how long each
 * server may not answer, which then has null; 0: that of the client.
 */
mw_status_t mw_store_stats(mw_store_t store, int64_t timeout_us, char *buf, uint64_t cap, uint64_t *len);

/* -------------------------------------------------------------- server -- */

#define MW_STORAGE_MEMORY 1u /* gone with the process */
#define MW_STORAGE_FILE 2u   /* files in a folder, where the next server finds the blocks again */

/* When a block of a file is safe from a power cut: after a moment, when the kernel likes,
   or at once. A flush is as good with each. */
#define MW_DURABILITY_GROUP 0u
#define MW_DURABILITY_NONE 1u
#define MW_DURABILITY_EACH 2u

typedef struct {
	uint32_t size;
	uint32_t key_source;     /* MW_KEYS_* */
	mw_bytes_t keys;
	mw_bytes_t listen;       /* "address:port"; port 0: any */
	mw_bytes_t path;         /* MW_STORAGE_FILE: a folder, which is made */
	uint64_t capacity_bytes;
	uint32_t storage;        /* MW_STORAGE_* */
	uint32_t durability;     /* MW_DURABILITY_*; in memory not EACH */
	uint32_t protection;     /* MW_PROTECTION_* */
	uint32_t num_clients;    /* the most at a time; 0: 256; at most 65535 */
	int64_t flush_every_us;  /* MW_DURABILITY_GROUP: the longest time between two flushes; 0: 20 ms; 10 s at most */
	uint64_t flush_bytes;    /* the same: what is flushed sooner, once so much has come; 0: 64 MiB */
	mw_bytes_t metrics;      /* "address:port" of GET /metrics over HTTP, which asks for no key; none: not served */
	uint32_t no_singles;     /* 1: sessions only, no single signed requests */
	uint32_t reserved;       /* 0 */
} mw_store_server_config_t;

/* Opens the storage and begins to serve. MW_ERR_BUSY: another server has the folder. */
mw_status_t mw_store_serve(const mw_store_server_config_t *config, mw_store_server_t *server);

/* Writes "address:port"; buf, cap and len work as in mw_system_report. */
mw_status_t mw_store_server_address(mw_store_server_t server, char *buf, uint64_t cap, uint64_t *len);

/* The same for the address of /metrics; nothing without it. */
mw_status_t mw_store_server_metrics(mw_store_server_t server, char *buf, uint64_t cap, uint64_t *len);

/* Writes the counts as JSON; buf, cap and len work as in mw_system_report. */
mw_status_t mw_store_server_stats(mw_store_server_t server, char *buf, uint64_t cap, uint64_t *len);

/*
 * Takes the lines of log since the last call, each with a line's end, as many as have
 * room; `cap` is at least 4096. Lines that are not taken in time are dropped, and a line
 * says how many.
 */
mw_status_t mw_store_server_log(mw_store_server_t server, char *buf, uint64_t cap, uint64_t *len);

/* Reads MW_KEYS_FILE or MW_KEYS_ENV again. After an error the keys are as they were. */
mw_status_t mw_store_server_reload(mw_store_server_t server);

/*
 * Takes no more requests, lets those that run end for at most timeout_us (-1: no bound),
 * and closes the storage, which takes 30 s at most. Counts, log and /metrics stay until
 * mw_store_server_close. MW_ERR_TIMEOUT: the disk does not answer; what was not flushed may
 * be lost, and the folder stays in use as long as this process lives. A further call returns
 * the same.
 */
mw_status_t mw_store_server_drain(mw_store_server_t server, int64_t timeout_us);

/*
 * Drains the server, unless that has been done, and ends the rest, whatever it returns. The
 * id is invalid afterwards.
 */
mw_status_t mw_store_server_close(mw_store_server_t server, int64_t timeout_us);

#ifdef __cplusplus
}
#endif

#endif
