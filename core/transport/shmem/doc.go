// Package shmem is a carrier between processes of one host and one user: a
// transport.Transport over memory that both have mapped. The process that posts a request
// also carries it out: a write, a read, and a send into a receive that is posted, are one
// copy by the posting process. The peer need not run for that.
//
//	Memory ──Register──▶ Region ──Remote──▶ (any way) ──▶ SendRequest of a peer
//	                                                         │ first use: asks the owner's
//	Endpoint ◀──── one unix connection per pair ────▶ Endpoint   manager for the descriptor
//	  lane: receives posted and ended, what is being touched
//	Transport: table of regions, bell; connection manager: one goroutine
//
// Peers can map no memory but that of NewMemory, so Register takes no other.
// Keys, bounds and access are checked by the process that copies. They protect
// from mistakes, not from malice: a peer that was given a memory's descriptor
// can write to all of that memory, for as long as it lives.
//
// What a peer can do to this process is bounded in another way. Every word that is read
// from its memory is checked, its memory cannot shrink, and this process keeps for itself
// the state that it relies on. A broken peer loses its endpoint, with VendorNonsense, or
// makes this process sleep until its deadline. It cannot crash this process, nor make it
// touch other memory.
//
// Nothing is released that a peer is in the middle of touching. Before every chunk a
// process writes into its lane what it will touch, and then checks that it still may. A
// process that takes something back says so first and then checks that the peer does not
// touch it. Only a process that is stopped within those microseconds makes Region.Close
// and Endpoint.Close say ErrBusy, and a retired endpoint wait with its receives; its end
// ends that, too.
//
// The end of a process is seen by a word that the kernel marks (no more requests), and by
// its pidfd and connection (nothing touches memory any more).
//
// Descriptors: 1 per Memory; 5 per transport, and 2 for each connection that has not
// named the endpoint that it wants (at most maxPending); per endpoint 1 until it is
// connected, 2 then, and 2 for each offer before (at most maxOffers). One goroutine per
// transport, with a thread of its own.
package shmem
