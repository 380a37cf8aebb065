// Messages to and from ranks that cannot map one another's memory. A link of the host
// carries them (core/link), between rings that the device fills and reads; the
// host's proxy (core/transport/proxy) has the link, and moves no bytes itself.
//
// The proxy leases room for one message per rank, and shows one that has come per
// rank; the device says by descriptors what it has done with them. Leases and
// messages have numbers from 1, per rank and generation of the queue.
#pragma once

#include "fifo.cuh"

// What the proxy says of one rank, in pinned host memory.
struct mw_mail {
  u64 lease; // number of the latest lease; released after what follows
  u64 lease_at, lease_bytes;
  u64 came; // number of the latest message; released after what follows
  u64 came_at, came_bytes;
  u64 full; // number of the lease for which there was no room at the latest look
  u64 pad;
};

// What the device knows of one rank, in its own memory. The counts are zeros when
// a generation of the queue begins.
struct mw_remote {
  u64 sent;     // messages
  u64 released; // messages
  u64 to, from; // where the rings begin: of messages that are sent, that come
};

struct mw_remote_common {
  mw_fifo fifo;
  mw_mail *mail;    // by rank
  mw_remote *ranks; // by rank
  const i64 *message_bytes; // of each lease, at least; not the same at each rendezvous
};

MW_INLINE u64 mw_remote_number(const mw_remote_common &f, u64 n) {
  return mw_peek_gpu(f.fifo.next) >> MW_FIFO_SHIFT << MW_FIFO_SHIFT | n;
}

// Sends what was written there. One thread, behind a barrier of those that wrote.
MW_INLINE bool mw_remote_send(const mw_common &c, const mw_remote_common &f, int rank, u64 bytes) {
  u64 number = mw_remote_number(f, ++f.ranks[rank].sent);
  return mw_fifo_push(c, f.fifo, MW_REMOTE_SEND | (u64)rank << 8, bytes, number);
}

// Releases its memory. One thread, behind a barrier of those that read.
MW_INLINE bool mw_remote_release(const mw_common &c, const mw_remote_common &f, int rank) {
  u64 number = mw_remote_number(f, ++f.ranks[rank].released);
  return mw_fifo_push(c, f.fifo, MW_REMOTE_RELEASE | (u64)rank << 8, 0, number);
}
