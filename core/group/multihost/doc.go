// Package multihost is a group of which some ranks share memory and others do not. It is
// a domain.Domain made of the shared memory of this host (package shm) and of links to
// the ranks of other hosts (package link).
//
//	Open ─ Listener ─ Metadata ──(any store)──▶ the metadata of all that come
//	          │
//	       Connect ─ local ranks meet in shared memory; then every rank has a
//	          │      control connection with every other, and a link with each remote one
//	       Domain ─ local: words and bytes; remote: messages
//	          │
//	       Relist ─ Listener ─ Metadata ─ Reconnect ─ Change ─ Commit
//
// The metadata decides which ranks are local, so both sides decide alike. When every rank
// is local there is nothing but the shared memory.
//
// The members word of a host is a page that its ranks share. What the hosts agree on
// (type agreement) is taken over into it: in one epoch bits only go away, so taking over
// is a bitwise and. Each rendezvous has its own connections and its own agreement;
// messages over those of an earlier rendezvous concern an earlier epoch.
//
// Goroutines of a domain with remote ranks: one for all control connections, one
// per carrier, and while old links are drained one more.
package multihost
