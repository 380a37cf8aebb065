/*
 * moewire_fabric.h - the transport layer by itself, for runtimes that want connections,
 * memory that peers can reach, and transfers, but no experts. The contract of moewire.h
 * holds here: statuses, sized structs, ids, threads, borrowed memory, fork. C11 and C++.
 *
 * A fabric is one carrier (TCP sockets, or RDMA devices) with its peers. The caller
 * chooses the peers' numbers. Peers find each other by handshakes: small pieces of bytes
 * that the caller carries by any means it has. The bytes that mw_fabric_next_handshake
 * gives here for peer p go to mw_fabric_deliver at p. A handshake may be lost, come twice
 * or come late. The library makes no callbacks. No handshake is secret. Keys that both
 * peers have authenticate handshakes and everything else between peers, except the bytes
 * that RDMA devices carry.
 *
 * Ownership: registered memory stays the caller's. The caller keeps it alive and in place
 * until mw_region_close or mw_fabric_close has returned MW_OK. From a post until the
 * transfer is released, the bytes that the transfer names belong to the carrier: the
 * caller must not write them, and must not read those of a read or a receive. Bytes of a
 * region that peers may write can change at any time.
 *
 * Any thread may make any call, and several threads may call one fabric at a time. Only
 * calls with a timeout block, and a wait does not block other calls. A fabric has a few
 * threads of its own.
 */
#ifndef MOEWIRE_FABRIC_H
#define MOEWIRE_FABRIC_H

#include "moewire.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { uint64_t id; } mw_fabric_t;
typedef struct { uint64_t id; } mw_region_t;   /* registered memory */
typedef struct { uint64_t id; } mw_transfer_t; /* one send, receive, read or write */

/* -------------------------------------------------------------- fabric -- */

#define MW_CARRIER_TCP 1u
/*
 * The RDMA devices of this host, as one carrier. Bytes that devices carry are not
 * protected. A region's mw_remote_t is valid for the device that connections use. When
 * that device has failed and connections use another one, call mw_region_remote again and
 * send the peer the new value.
 */
#define MW_CARRIER_RDMA 2u

/*
 * Says what the receives of a connection are for; both ends must agree. Without the flag
 * they are for writes with immediate, with it for messages.
 */
#define MW_FABRIC_MESSAGES 1u
/* Payloads are encrypted, not only authenticated. Both ends must agree. */
#define MW_FABRIC_ENCRYPT 2u
/* With MW_CARRIER_RDMA: as MW_CONFIG_RDMA_DC. Each fabric chooses for itself. */
#define MW_FABRIC_RDMA_DC 4u

/*
 * Where the keys are. The text has one key per line, the current one first: an id (a
 * number below 2^32), blanks, and 64 hexadecimal digits. # begins a comment. Both peers
 * must have the current key of the peer that dials. Keys are never logged and are never
 * part of an error's text.
 */
#define MW_KEYS_FILE 1u  /* `keys` is a path; the file's mode must let no other user read it; the
                            group may read a file of root's */
#define MW_KEYS_ENV 2u   /* `keys` is an environment variable's name; ; may stand for a new line */
#define MW_KEYS_BYTES 3u /* `keys` is the text itself; ; may stand for a new line */

/* Which connection makes room for another one: one that was not used lately, or the oldest. */
#define MW_EVICT_SIEVE 0u
#define MW_EVICT_FIFO 1u

/* All mw_bytes_t are UTF-8 without a terminator and are copied. */
typedef struct {
	uint32_t size;
	uint32_t flags;            /* MW_FABRIC_* */
	uint32_t carrier;          /* MW_CARRIER_*; 0: TCP */
	uint32_t key_source;       /* MW_KEYS_* */
	mw_bytes_t keys;
	mw_bytes_t listen;         /* "address:port", several with commas; port 0: any. IPv6 in [] */
	mw_bytes_t interface_name; /* the name of a network interface, whose addresses are added to
	                              `listen` */
	mw_bytes_t advertise;      /* the addresses that peers are told, if they are not those of
	                              `listen` */
	uint64_t epoch;            /* a number that grows with each restart of this process; 0: taken
	                              from the clock */
	uint32_t num_peers;        /* the most peers that are remembered; 0: 64 */
	uint32_t num_connections;  /* the most connections at a time, including those being made or
	                              ended; 0: num_peers */
	uint32_t num_transfers;    /* the most transfers that are not closed or not released; 0: 1024;
	                              at most 65535 */
	uint32_t num_regions;      /* the most regions that are not closed; 0: 1024; at most 1048575 */
	uint32_t send_depth;       /* slices outstanding per connection; 0: 128; at most 4096 */
	uint32_t recv_depth;       /* receives posted per connection; 0: 128; at most 4096 */
	uint32_t num_unmatched;    /* the most immediates of one peer that wait for a RECEIVE_IMM; 0:
	                              256 */
	uint32_t num_sockets;      /* per connection; 0: 1; at most 16 */
	uint64_t slice_bytes;      /* larger transfers are cut into slices of this size; 0: the most
	                              that the carrier allows */
	int64_t connect_timeout_us; /* the bound for making a connection; 0: 10 s */
	int64_t drain_timeout_us;  /* how long the end of a connection may take before the connection is
	                              set aside; 0: 30 s */
	/* Fields for MW_CARRIER_RDMA, as in mw_config_t. That carrier does not use listen,
	   interface_name, advertise, num_sockets and MW_FABRIC_ENCRYPT. */
	mw_bytes_t rdma_devices;
	mw_bytes_t rdma_gid;
	mw_bytes_t rdma_near;
	uint32_t tcp_zero_copy;    /* MW_ZERO_COPY_*, with MW_CARRIER_TCP */
	uint32_t eviction;         /* MW_EVICT_* */
} mw_fabric_config_t;

/*
 * Opens a carrier. If there are fewer connections than peers, a connection (`eviction`)
 * makes room for another one: transfers on it end with MW_ERR_UNREACHABLE.
 */
mw_status_t mw_fabric_create(const mw_fabric_config_t *config, mw_fabric_t *fabric);

/*
 * Writes carrier, addresses, bounds and counts as JSON; buf, cap and len work as in
 * mw_system_report. Later versions may add keys to the JSON. The text may be longer at
 * the next call.
 */
mw_status_t mw_fabric_report(mw_fabric_t fabric, char *buf, uint64_t cap, uint64_t *len);

/* The most bytes of a handshake: `cap` of mw_fabric_next_handshake must be at least this. */
#define MW_MAX_HANDSHAKE_BYTES 1024

/*
 * Takes the next handshake to be carried, and writes the peer that it is for. The call
 * waits for one at most timeout_us (0: not at all; -1: until there is one, or the fabric
 * is closed). MW_IN_PROGRESS means that there is none, and nothing is written. Handshakes
 * are few: some for each connection that is made or ends.
 */
mw_status_t mw_fabric_next_handshake(mw_fabric_t fabric, int64_t timeout_us, uint64_t *peer, void *buf,
                                uint64_t cap, uint64_t *len);

/*
 * Hands over a handshake that `peer` has sent. An old handshake changes nothing.
 * MW_ERR_METADATA: the bytes are not a handshake. MW_ERR_PEER_MISMATCH: the peer's fabric
 * has another mode. MW_ERR_WOULD_BLOCK: num_peers other peers are known, and each of them
 * is in use; a peer that is not in use would be forgotten instead.
 */
mw_status_t mw_fabric_deliver(mw_fabric_t fabric, uint64_t peer, const void *handshake, uint64_t len);

/*
 * Begins to make a connection to a peer, and waits for it at most timeout_us (-1: no
 * bound). A call of either side is enough. MW_IN_PROGRESS: there is no connection yet;
 * carry handshakes and call again. MW_ERR_WOULD_BLOCK: num_connections connections were
 * still in use after timeout_us, or num_peers peers are in use; call again.
 * MW_ERR_UNREACHABLE: the last attempt failed; another one may begin a moment later.
 */
mw_status_t mw_fabric_connect(mw_fabric_t fabric, uint64_t peer, int64_t timeout_us);

/* Ends the connection to a peer, if there is one. The next post makes another. */
mw_status_t mw_fabric_disconnect(mw_fabric_t fabric, uint64_t peer);

/*
 * Ends all transfers with MW_ERR_CLOSED, and with them the waits in other threads. Then
 * it takes down connections, regions and the carrier. MW_OK: all memory is the caller's
 * again, and the ids are invalid. MW_ERR_BUSY: the carrier still used memory after
 * timeout_us (-1: no bound); that memory is not free, so call again.
 */
mw_status_t mw_fabric_close(mw_fabric_t fabric, int64_t timeout_us);

/* ------------------------------------------------------------- regions -- */

#define MW_ACCESS_WRITE 1u /* peers may write */
#define MW_ACCESS_READ 2u  /* peers may read */

/* Registers memory for transfers of this side, and for transfers of peers as `access` allows. */
mw_status_t mw_region_register(mw_fabric_t fabric, uint64_t address, uint64_t num_bytes,
                               uint32_t access, mw_region_t *region);

/*
 * The plain numbers that a peer needs to reach a region. The caller sends them to the
 * peer. They are useless once the region is closed, or without a connection.
 */
typedef struct {
	uint32_t size;
	uint32_t reserved;  /* 0 */
	uint64_t address;   /* in the carrier's own terms */
	uint64_t num_bytes;
	uint64_t key;
} mw_remote_t;

mw_status_t mw_region_remote(mw_region_t region, mw_remote_t *remote);

/*
 * Ends a registration: from here on, transfers of peers that name the region are refused.
 * MW_ERR_BUSY: a transfer of this side that names the region is not released yet.
 */
mw_status_t mw_region_close(mw_region_t region);

/* ----------------------------------------------------------- transfers -- */

#define MW_TRANSFER_SEND 1u        /* with MESSAGES: a message into a receive of the peer */
#define MW_TRANSFER_RECV 2u        /* with MESSAGES: a receive for a message of the peer */
#define MW_TRANSFER_WRITE 3u       /* write into a region of the peer */
#define MW_TRANSFER_WRITE_IMM 4u   /* the same, followed by a number for a RECEIVE_IMM of the peer */
#define MW_TRANSFER_READ 5u        /* read out of a region of the peer */
#define MW_TRANSFER_RECEIVE_IMM 6u /* receive the number of a WRITE_IMM of the peer */

typedef struct {
	uint32_t size;
	uint32_t kind;             /* MW_TRANSFER_* */
	uint64_t peer;
	mw_region_t region;        /* the region of this side; 0 if num_bytes is 0, and with RECEIVE_IMM */
	uint64_t offset;           /* in that region */
	uint64_t num_bytes;        /* SEND, RECV: at most slice_bytes */
	uint64_t remote_address;   /* WRITE, WRITE_IMM, READ: the peer's mw_remote_t */
	uint64_t remote_num_bytes;
	uint64_t remote_key;
	uint64_t remote_offset;
	uint32_t imm;              /* WRITE_IMM */
	uint32_t reserved;         /* 0 */
} mw_transfer_args_t;

/*
 * Begins a transfer. The call never blocks. On an error nothing has happened; after
 * MW_ERR_CONNECTING and MW_ERR_WOULD_BLOCK make the same call again later. The transfer
 * is carried out even if no thread waits for it. It goes in slices of at most
 * slice_bytes, and in any order with other transfers.
 *
 *  - A WRITE or WRITE_IMM is done when its bytes are at the peer. The number of a
 *    WRITE_IMM arrives after its bytes.
 *  - Numbers that arrive before their RECEIVE_IMM are kept in order of arrival, up to
 *    num_unmatched for each peer. Beyond that, the WRITE_IMMs of that peer wait, and fail
 *    when they have waited too long.
 *  - A message that is larger than its receive makes both fail, and ends the connection.
 *    Messages have numbers: each side counts its messages to a peer, from 1.
 *  - When a connection ends, the transfers on it end, too.
 */
mw_status_t mw_transfer_post(mw_fabric_t fabric, const mw_transfer_args_t *args,
                             mw_transfer_t *transfer);

#define MW_UNTIL_ENDED 1    /* done, failed or cancelled */
#define MW_UNTIL_RELEASED 2 /* ended, and its memory is the caller's again */

typedef struct {
	uint32_t size;
	int32_t status;     /* MW_OK, the error of a failed transfer, or MW_IN_PROGRESS while it has not
	                       ended */
	uint64_t num_bytes; /* bytes moved; for RECEIVE_IMM those of the write, or of its last slice */
	uint32_t imm;       /* for RECEIVE_IMM the number; for RECV the message's number modulo 2^32 */
	uint32_t released;  /* 1: the carrier no longer touches its memory */
} mw_transfer_result_t;

/*
 * Waits until a transfer has reached `until`, at most timeout_us (0: no wait; -1: no
 * bound). Returns MW_OK if it has, MW_IN_PROGRESS if not, and writes *result in both
 * cases. result->status says how the transfer itself ended.
 */
mw_status_t mw_transfer_wait(mw_transfer_t transfer, int32_t until, int64_t timeout_us,
                             mw_transfer_result_t *result);

/*
 * Writes why a transfer failed, as text; buf, cap and len work as in mw_system_report.
 * The text is empty while the transfer has not ended, and if it succeeded.
 */
mw_status_t mw_transfer_error(mw_transfer_t transfer, char *buf, uint64_t cap, uint64_t *len);

/*
 * Cancels a transfer that has not ended: it ends with MW_ERR_CANCELLED, and threads that
 * wait for its end wake up. Its bytes may still move, and its memory belongs to the
 * carrier until the transfer is released. A cancelled receive is released when a message
 * comes into it, or when its connection ends.
 */
mw_status_t mw_transfer_cancel(mw_transfer_t transfer);

/*
 * Frees the id; every transfer needs this call. A transfer that has not ended is
 * cancelled. Its region cannot be closed until the transfer is released.
 */
mw_status_t mw_transfer_close(mw_transfer_t transfer);

#ifdef __cplusplus
}
#endif

#endif
