// Package node puts one rank's buffer together: a Config says where rows lie (the CPU or
// a CUDA device) and how ranks reach one another; from it New makes the rank's memory,
// and a rendezvous makes the group. It is what the C ABI stands on, and what a Go
// program uses.
//
//	New ─ Metadata ──(any store)──▶ the metadata of all ranks that take part
//	 │
//	Connect ─ a new group: calls are possible
//	 │
//	Update ─ Metadata ─ Connect ─ Install ─ the next epoch: ranks were replaced, left or came
//	 │
//	Close
//
// Errors name fields as docs/configuration.md does. They wrap the sentinels of core/ep,
// core/transport and core/device/cuda.
package node
