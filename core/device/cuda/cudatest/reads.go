package cudatest

import (
	"testing"
	"unsafe"
)

// CountReads counts what kernels read, as long as the test lasts; again: from zero
// on. It needs kernels that are Watched, else it counts the loads of memory_order.cuh alone.
func (d *Driver) CountReads(t testing.TB) {
	d.emulated(d.counts).Call(1)
	t.Cleanup(func() { d.counts.Call(0) })
}

// SpoilReads has kernels overwrite what they read to read it once (mw_read_quad), as long as the
// test lasts: a second read finds something else there.
func (d *Driver) SpoilReads(t testing.TB) {
	d.emulated(d.spoils).Call(1)
	t.Cleanup(func() { d.spoils.Call(0) })
}

// Reads is how often a kernel has read in the pinned memory that begins at an
// address, which on a device lies on the far side of the bus; 0: its loads of
// memory_order.cuh, in whichever memory.
func (d *Driver) Reads(kernel string, pinned uint64) int {
	name := append([]byte(kernel), 0)
	return int(d.counted.Call(uintptr(unsafe.Pointer(&name[0])), uintptr(pinned)))
}
