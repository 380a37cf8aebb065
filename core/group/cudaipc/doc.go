// Package cudaipc lets ranks of one host map one another's device memory.
//
// A rank lays out a memory descriptor in a slab of its domain: what the others need to map
// its memory. There are four ways, by preference:
//
//	process  ranks of one process on one device share its addresses
//	fd       memory made with cuMemCreate is imported by a descriptor, which the
//	         owner sends over a unix socket to any process that shows the memory
//	         descriptor's nonce
//	fabric   the same memory by a fabric handle, which is in the memory descriptor: where
//	         there is no descriptor, or it cannot be had
//	ipc      elsewhere: cuIpcGetMemHandle; a process that shows the nonce may open it
//
// With the first three, memory lives until the last rank releases it, also when its owner
// is killed. A process that reads a memory descriptor with a fabric handle can map the
// memory, if the driver lets it (it has the owner's IMEX channel): the owner is not
// asked.
//
// An IPC handle must be closed everywhere before its owner frees the memory. A process
// that has it open keeps a connection to the owner, and Offer.Holders counts those.
//
// The memory descriptor is the domain's slab 0, so only a buffer that makes no slabs of
// its own can use this package. A memory descriptor is not trusted: its form, its length
// and its sender are checked, what it names is looked up, and the driver says how much
// memory there is.
package cudaipc
