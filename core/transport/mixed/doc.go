// Package mixed is a group of which some ranks share memory and others do not:
// a transport.Domain made of the shared memory of this host (package shm) and
// of links to the ranks of other hosts (package link).
//
//	Open ─ Listener ─ Metadata ──(any store)──▶ the metadata of all who come
//	          │
//	       Connect ─ near ranks meet in shared memory; then everybody has a
//	          │      control connection with everybody, and a link with who is far
//	       Domain ─ near: words and bytes; far: messages
//	          │
//	       Relist ─ Listener ─ Metadata ─ Reconnect ─ Change ─ Commit
//
// Who is near is decided from the metadata, so equally on both sides. When
// everybody is near there is nothing but the shared memory.
//
// The members word of a host is a page that its ranks share. What is agreed on
// between the hosts (type council) is taken over into it: in one epoch bits
// only go away, so taking over is a bitwise and. Each meeting has its own
// connections and its own council; what comes over those of an earlier meeting
// concerns an earlier epoch.
//
// Goroutines of a domain with far ranks: one for all control connections, one
// per carrier, and while old links are drained one more.
package mixed
