// Package shm is the transport between processes of one host: every rank owns
// one memfd, which its peers map.
//
//	Open ─ Listener ─ Metadata ──(any store)──▶ all ranks' metadata
//	          │
//	       Connect ─ one unix connection per pair of ranks (the higher rank
//	          │      dials): hello + descriptors both ways, then a barrier
//	       Domain ─ words and bytes in the memfds, futex wake, pidfd liveness
//
// A memfd has no name, and the listeners are in the abstract name space, so
// nothing is left behind by a process that is killed.
//
// A rank's memfd, all offsets in bytes:
//
//	0               bell, sleepers, each alone on a cache line
//	4096            slab table: 1024 × (offset, bytes)
//	20480           control region of core/ep (rounded up to a page)
//	n × 2 MiB       slabs, each a new range at the end of the file
package shm
