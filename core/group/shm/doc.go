// Package shm is the transport between processes of one host: every rank owns
// one memfd, which its peers map.
//
//	Open ─ Listener ─ Metadata ──(any store)──▶ the metadata of all that come
//	          │
//	       Connect ─ one unix connection per pair of ranks (the higher rank
//	          │      dials): hello + descriptors both ways, then a barrier
//	       Domain ─ words and bytes in the memfds, futex wake, liveness
//	          │
//	       Relist ─ Listener ─ Metadata ─ Reconnect ─ Change ─ Commit
//
// A rank number is held by one process after another. At a later rendezvous survivors
// (Relist, Reconnect) bring the memory that they have. Their peers know it by its
// identity and keep it mapped where it is. New ranks (Open, Connect) bring fresh memory.
// Nothing of a domain changes before Commit.
//
// A memfd has no name, and the listeners are in the abstract name space, so
// nothing is left behind by a process that is killed.
//
// A rank's memfd, all offsets in bytes:
//
//	0               bell, sleepers, each alone on a cache line
//	256             holder: the thread that the kernel marks the end of
//	4096            slab table: 1024 × (offset, bytes)
//	20480           control region of core/ep/cpu (rounded up to a page)
//	n × 2 MiB       slabs, each a new range at the end of the file
//
// Descriptors of a process: 2 for the watcher, if it watches anything; 1 per other
// process of which any hostDomain knows a rank (its pidfd, which they share), former
// ones that may still live included (a domain keeps at most maxFormer); per hostDomain 3
// (own memory, members page, and the memory of the next rank, for programs that look from
// outside once its process has ended). So with n domains of R ranks, each in a process of
// its own, 2 + (R-1) + 3n.
//
// A domain has 1 more per other rank whose memory is in reserved huge pages, or on kernels
// before 5.14 (that memory's file); and the connection to each peer if one of the two has
// no pidfds.
//
// While a rendezvous runs: 2 for the listener, 2 copies of the domain's, 1 per
// peer (its connection), 1 per peer whose process is new, and at most 2 that a message has
// brought. One thread for the watcher.
package shm
