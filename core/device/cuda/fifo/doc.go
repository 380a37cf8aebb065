// Package fifo is the host's end of the queue by which kernels ask for things
// (kernels/fifo.cuh): descriptors in pinned host memory, as many as were made
// room for, written by any number of threads of a device and taken by one
// goroutine. core/group/proxy takes them.
//
// A number is a generation, in the upper 16 bits, and a count. Each descriptor
// has one, in order and without gaps: a thread draws the next number only when
// there is room for it, then writes, and releases `seq` last. So if the host finds
// the number that it waits for, it finds the whole descriptor, and a thread that
// gives up leaves none out. What an earlier generation has left never has that number.
//
//	device: draw ─ write ─ release seq        room: number < taken + length
//	host:          acquire seq ─ copy ─ release taken
package fifo
