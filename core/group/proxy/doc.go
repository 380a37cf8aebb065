// Package proxy lets kernels send and receive messages over a domain.Remote,
// whatever carries them: verbs, sockets. It posts, a device fills and reads.
//
//	kernel: fill a lease ─ descriptor ──▶ proxy: Post        lease again
//	        read a message ◀── mail ───── proxy: NextAt
//	        release it ──── descriptor ─▶ proxy: Release     show the next one
//
// Descriptors come over a bounded queue (core/device/cuda/fifo), mail lies in pinned
// memory, one line per rank (kernels/remote.cuh). Messages lie in the rings of core/link:
// device memory where the carrier can register it, else pinned host memory that kernels
// reach over the bus. So the link takes care of order, credits and reconnection, and the
// proxy copies nothing.
//
// One goroutine does it. It goes on as long as there is something to do. Then it looks
// Config.Spins times more, giving the processor away in between. Then it sleeps between
// two looks, for an eighth of the time since anything came, from 20 µs to Config.Nap.
// Ring ends a sleep: a link does so when a message comes or room is free, and code that
// launches a kernel should. A graph that is replayed rings nothing: its first descriptor
// waits for such a sleep, so layers that are some hundred µs apart lose a tenth of that
// at most.
//
// The goroutine is not bound to a thread, and no thread to processors near the device. A
// bound goroutine that gives its processor away waits for the system to switch threads
// twice: 27 µs, against 0.3 µs otherwise (Go 1.26, two cores). Bind the process, if that
// matters.
//
// Bounds: one lease and one shown message per rank; descriptors, the queue's
// length; messages under way, the link's. Nothing is allocated while it runs.
//
// core/ep/cuda uses it, for the kernels of kernels/dispatch_remote.cu and combine_remote.cu.
package proxy
