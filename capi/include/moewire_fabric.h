/*
 * moewire_fabric.h - the transport layer by itself, for runtimes that want
 * connections, memory that peers can reach, and operations, but no experts.
 * The contract of moewire.h holds here: statuses, sized structs, ids, threads,
 * borrowed memory, fork. C11 and C++.
 *
 * A fabric is one carrier (TCP sockets, or RDMA devices) with its peers, which
 * are numbers of the caller's. Peers find each other by handshakes, small texts of
 * bytes that the caller carries by whatever means it has: what
 * mw_fabric_next_handshake gives here for peer p goes to p's mw_fabric_deliver. A handshake
 * may be lost, come twice or come late. Nobody is called back. No handshake is secret;
 * handshakes, and everything else that goes between peers but for what RDMA devices
 * carry, are authenticated with keys that both have.
 *
 * Who owns what: memory that is registered stays the caller's, which keeps it
 * alive and in place until mw_region_close or mw_fabric_close has returned
 * MW_OK. From a post until the transfer is released, the bytes that it names
 * are the carrier's: not to be written, and those of a read or receive not to be
 * looked at. What peers write into a region changes at any time.
 *
 * Every call may be made from any thread, several at a time on one fabric. Only
 * those with a timeout block, and a wait blocks nobody else. A fabric has a
 * few threads of its own.
 */
#ifndef MOEWIRE_FABRIC_H
#define MOEWIRE_FABRIC_H

#include "moewire.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { uint64_t id; } mw_fabric_t;
typedef struct { uint64_t id; } mw_region_t;   /* registered memory */
typedef struct { uint64_t id; } mw_transfer_t; /* one operation */

/* -------------------------------------------------------------- fabric -- */

#define MW_CARRIER_TCP 1u
/*
 * The RDMA devices of this host, as one carrier: what devices carry is not
 * protected. A region's mw_remote_t is good for the
 * device that connections are on; when that has failed, and connections go to
 * another one, ask for it again.
 */
#define MW_CARRIER_RDMA 2u

/*
 * What receives are for; the same at both ends. Without the flag: writes with
 * immediate. With it: messages.
 */
#define MW_FABRIC_MESSAGES 1u
/* Payloads are encrypted, not only authenticated. The same at both ends. */
#define MW_FABRIC_ENCRYPT 2u
/* With MW_CARRIER_RDMA: as MW_CONFIG_RDMA_DC. Each fabric's own. */
#define MW_FABRIC_RDMA_DC 4u

/*
 * Where the keys are. Their text has one key per line, the current one first:
 * an id (a number below 2^32), blanks, and 64 hexadecimal digits; # begins a
 * comment. Peers share the current key of whoever dials. They are never logged
 * and never part of an error's text.
 */
#define MW_KEYS_FILE 1u  /* `keys` is a path; nobody but its owner may read the file */
#define MW_KEYS_ENV 2u   /* `keys` is an environment variable's name; ; may stand for a new line */
#define MW_KEYS_BYTES 3u /* `keys` is the text; ; may stand for a new line */

/* All mw_bytes_t are UTF-8 without a terminator and are copied. */
typedef struct {
	uint32_t size;
	uint32_t flags;            /* MW_FABRIC_* */
	uint32_t carrier;          /* MW_CARRIER_*; 0: TCP */
	uint32_t key_source;       /* MW_KEYS_* */
	mw_bytes_t keys;
	mw_bytes_t listen;         /* "address:port", several with commas; port 0: any. IPv6 in [] */
	mw_bytes_t interface_name; /* adds the addresses of that network interface */
	mw_bytes_t advertise;      /* what peers are told, if not what `listen` says */
	uint64_t epoch;            /* grows from one life of this process to the next; 0: the clock */
	uint32_t num_peers;        /* remembered at most; 0: 64 */
	uint32_t num_connections;  /* at a time, those being made or ended included; 0: num_peers */
	uint32_t num_transfers;    /* not closed, or not released; 0: 1024; at most 65535 */
	uint32_t num_regions;      /* not closed; 0: 1024; at most 1048575 */
	uint32_t send_depth;       /* slices outstanding per connection; 0: 128; at most 4096 */
	uint32_t recv_depth;       /* receives posted per connection; 0: 128; at most 4096 */
	uint32_t num_unmatched;    /* immediates of one peer that nobody has received; 0: 256 */
	uint32_t num_sockets;      /* per connection; 0: 1; at most 16 */
	uint64_t slice_bytes;      /* larger transfers are cut; 0: what the carrier allows */
	int64_t connect_timeout_us; /* to make a connection; 0: 10 s */
	int64_t drain_timeout_us;  /* to end one before it is set aside; 0: 30 s */
	/* With MW_CARRIER_RDMA, which has no use for listen, interface_name, advertise, num_sockets and
	   MW_FABRIC_ENCRYPT; as in mw_config_t. */
	mw_bytes_t rdma_devices;
	mw_bytes_t rdma_gid;
	mw_bytes_t rdma_near;
	uint32_t tcp_zero_copy;    /* MW_ZERO_COPY_*, with MW_CARRIER_TCP */
	uint32_t reserved;         /* 0 */
} mw_fabric_config_t;

/*
 * Opens a carrier. With fewer connections than peers, one that was not used
 * lately makes room for another: transfers on it end with MW_ERR_UNREACHABLE.
 */
mw_status_t mw_fabric_create(const mw_fabric_config_t *config, mw_fabric_t *fabric);

/*
 * Carrier, addresses, bounds and counts as JSON: as mw_system_report. Keys may
 * be added. The text may be longer at the next call.
 */
mw_status_t mw_fabric_report(mw_fabric_t fabric, char *buf, uint64_t cap, uint64_t *len);

/* Bytes of a handshake at most: what `cap` of mw_fabric_next_handshake must be at least. */
#define MW_MAX_HANDSHAKE_BYTES 1024

/*
 * Takes the next handshake to be carried, and says to which peer. Waits for one at
 * most timeout_us (0: not at all; -1: until there is one, or the fabric is
 * closed). MW_IN_PROGRESS: there is none, and nothing is written. Handshakes are
 * few: some for each connection that is made or ends.
 */
mw_status_t mw_fabric_next_handshake(mw_fabric_t fabric, int64_t timeout_us, uint64_t *peer, void *buf,
                                uint64_t cap, uint64_t *len);

/*
 * Hands over a handshake that `peer` has sent. One that is old changes nothing.
 * MW_ERR_METADATA: the bytes are no handshake; MW_ERR_PEER_MISMATCH: the peer's
 * fabric has another mode; MW_ERR_WOULD_BLOCK: num_peers others are known
 * and something is under way with each (else one is forgotten).
 */
mw_status_t mw_fabric_deliver(mw_fabric_t fabric, uint64_t peer, const void *handshake, uint64_t len);

/*
 * Waits until there is a connection to a peer, at most timeout_us (-1: no
 * bound), and begins to make one. Either side's call is enough. MW_IN_PROGRESS:
 * not yet; carry handshakes and call again. MW_ERR_WOULD_BLOCK: as many connections
 * as num_connections, or as many peers as num_peers, are in use, the former
 * still after timeout_us; call again. MW_ERR_UNREACHABLE: the last attempt
 * failed; another one may begin a moment later.
 */
mw_status_t mw_fabric_connect(mw_fabric_t fabric, uint64_t peer, int64_t timeout_us);

/* Ends the connection to a peer, if there is one. The next post makes another. */
mw_status_t mw_fabric_disconnect(mw_fabric_t fabric, uint64_t peer);

/*
 * Ends all transfers with MW_ERR_CLOSED, waits in other threads with them, then
 * takes down connections, regions and the carrier. MW_OK: all memory is the
 * caller's again and the ids are gone. MW_ERR_BUSY: something was still outstanding
 * after timeout_us (-1: no bound); memory is not free, call again.
 */
mw_status_t mw_fabric_close(mw_fabric_t fabric, int64_t timeout_us);

/* ------------------------------------------------------------- regions -- */

#define MW_ACCESS_WRITE 1u /* peers may write */
#define MW_ACCESS_READ 2u  /* peers may read */

/* Registers memory: for this side's transfers, and for peers by `access`. */
mw_status_t mw_region_register(mw_fabric_t fabric, uint64_t address, uint64_t num_bytes,
                               uint32_t access, mw_region_t *region);

/*
 * What a peer needs to reach a region: plain numbers, to be sent to it. Worth
 * nothing once the region is closed, or without a connection.
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
 * Ends a registration: what peers try with it is refused from here on.
 * MW_ERR_BUSY while transfers that name it are not released.
 */
mw_status_t mw_region_close(mw_region_t region);

/* ----------------------------------------------------------- transfers -- */

#define MW_TRANSFER_SEND 1u        /* MESSAGES: into a receive of the peer */
#define MW_TRANSFER_RECV 2u        /* MESSAGES: a message of the peer */
#define MW_TRANSFER_WRITE 3u       /* into a region of the peer */
#define MW_TRANSFER_WRITE_IMM 4u   /* the same, then a number for a RECEIVE_IMM there */
#define MW_TRANSFER_READ 5u        /* out of a region of the peer */
#define MW_TRANSFER_RECEIVE_IMM 6u /* the number of a WRITE_IMM of the peer */

typedef struct {
	uint32_t size;
	uint32_t kind;             /* MW_TRANSFER_* */
	uint64_t peer;
	mw_region_t region;        /* on this side; 0 if num_bytes is 0 and with RECEIVE_IMM */
	uint64_t offset;           /* in it */
	uint64_t num_bytes;        /* SEND, RECV: at most slice_bytes */
	uint64_t remote_address;   /* WRITE, WRITE_IMM, READ: the peer's mw_remote_t */
	uint64_t remote_num_bytes;
	uint64_t remote_key;
	uint64_t remote_offset;
	uint32_t imm;              /* WRITE_IMM */
	uint32_t reserved;         /* 0 */
} mw_transfer_args_t;

/*
 * Begins a transfer. Never blocks. On an error nothing has happened:
 * MW_ERR_CONNECTING and MW_ERR_WOULD_BLOCK ask for the same call again, later.
 * It is carried out even if nobody waits for it, in slices of at most
 * slice_bytes, and in any order with others.
 *
 *  - WRITE and WRITE_IMM are done when their bytes are at the peer. The number
 *    of a WRITE_IMM arrives after its bytes.
 *  - Numbers that arrive before their RECEIVE_IMM are kept, in order of their
 *    arrival, up to num_unmatched for each peer; then the peer's WRITE_IMMs
 *    wait, and fail when they have waited too long.
 *  - A message that is larger than its receive ends both, and the connection.
 *    Messages have numbers: each side counts what it sends to a peer, from 1.
 *  - When a connection ends, so do the transfers on it.
 */
mw_status_t mw_transfer_post(mw_fabric_t fabric, const mw_transfer_args_t *args,
                             mw_transfer_t *transfer);

#define MW_UNTIL_ENDED 1    /* done, failed or cancelled */
#define MW_UNTIL_RELEASED 2 /* and its memory is the caller's again */

typedef struct {
	uint32_t size;
	int32_t status;     /* MW_OK; why it failed; MW_IN_PROGRESS while it has not ended */
	uint64_t num_bytes; /* moved; of RECEIVE_IMM those of the write, or of its last slice */
	uint32_t imm;       /* of RECEIVE_IMM; of RECV the message's number modulo 2^32 */
	uint32_t released;  /* 1: nothing touches its memory any more */
} mw_transfer_result_t;

/*
 * Waits until a transfer has come so far, at most timeout_us (0: only looks;
 * -1: no bound). MW_OK when it has, MW_IN_PROGRESS when not; *result is written
 * in both cases. How the transfer itself ended is result->status.
 */
mw_status_t mw_transfer_wait(mw_transfer_t transfer, int32_t until, int64_t timeout_us,
                             mw_transfer_result_t *result);

/*
 * Why a transfer failed, in words: as mw_system_report. Empty while it has not
 * ended, and if it is done.
 */
mw_status_t mw_transfer_error(mw_transfer_t transfer, char *buf, uint64_t cap, uint64_t *len);

/*
 * Gives a transfer up, unless it has ended: it ends with MW_ERR_CANCELLED and
 * waits for its end wake up. Its bytes may move all the same; its memory is the
 * carrier's until it is released. A receive is released by what comes into it,
 * or with its connection.
 */
mw_status_t mw_transfer_cancel(mw_transfer_t transfer);

/*
 * Ends the use of the id, which every transfer needs. One that has not ended is
 * cancelled; until it is released its region cannot be closed.
 */
mw_status_t mw_transfer_close(mw_transfer_t transfer);

#ifdef __cplusplus
}
#endif

#endif
