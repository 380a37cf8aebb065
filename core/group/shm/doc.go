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
//	20480           control region of core/ep (rounded up to a page)
//	n × 2 MiB       slabs, each a new range at the end of the file
//
// Descriptors of a process: 2 for the watcher, if it watches anything; per
// hostDomain 2 (own memory, members page), 1 per other rank known (the last
// process under that number), 1 more if that is not this process itself
// (pidfd, or the connection where there are no pidfds), 1 per former
// process that may still live (at most maxFormer); and the connection to each
// peer that has no pidfds itself. While a rendezvous runs: 2 for the listener, 2
// shared by the domain, 3 per peer. One thread for the watcher.
package shm
