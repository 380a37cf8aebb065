// Package verbs is the carrier over RDMA: reliable connected queue pairs of
// one port of one device, through libibverbs, which is loaded when the first
// transport is made.
//
// The package keeps its promises by these rules. Every work request is signalled, so each
// accepted one ends in one completion, which says where it belongs by (endpoint, slot,
// generation). The completion queue has room for all that may be outstanding: an endpoint
// reserves its depths when it is made. A queue pair leaves by the error state, never by
// reset, which would lose completions. It is destroyed only when every completion has
// been polled. Asynchronous events are acknowledged before anything is done about them,
// because destroying a queue pair waits for that.
//
// Memory that C reads (work requests, their pieces) is outside the Go heap; so must be
// memory that is registered.
package verbs
