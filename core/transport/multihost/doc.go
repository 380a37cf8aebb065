// Package multihost is a group of which some ranks share memory and others do not:
// a transport.Domain made of the shared memory of this host (package shm) and
// of links to the ranks of other hosts (package link).
//
//	Open ─ Listener ─ Metadata ──(any store)──▶ the metadata of all who come
//	          │
//	       Connect ─ local ranks meet in shared memory; then everybody has a
//	          │      control connection with everybody, and a link with who is remote
//	       Domain ─ local: words and bytes; remote: messages
//	          │
//	       Relist ─ Listener ─ Metadata ─ Reconnect ─ Change ─ Commit
//
// Who is local is decided from the metadata, so equally on both sides. When
// everybody is local there is nothing but the shared memory.
//
// The members word of a host is a page that its ranks share. What is agreed on
// between the hosts (type agreement) is taken over into it: in one epoch bits
// only go away, so taking over is a bitwise and. Each rendezvous has its own
// connections and its own agreement; what comes over those of an earlier rendezvous
// concerns an earlier epoch.
//
// Goroutines of a domain with remote ranks: one for all control connections, one
// per carrier, and while old links are drained one more.
package multihost
