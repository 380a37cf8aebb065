//go:build !asan

package cpu

import (
	"testing"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/protocol"
)

// (The address sanitizer's own instrumentation allocates.)
func TestSteadyStateDoesNotAllocate(t *testing.T) {
	r := newRand(t)
	for _, k := range all(t) {
		place := &device.PlaceBatch{
			X: offHeap(t, 2*256), Hidden: 256, RowType: protocol.FP8,
			Targets: slabs(t, 9, 1, 1, 256, true), Jobs: make([]device.PlaceJob, 1),
		}
		for i := range place.Targets {
			place.Targets[i].Rows = offHeap(t, 512) // room for bf16 as well
		}
		reduce := randomReduce(t, r, 3, 256, 4, false, activation)
		copies := make([]device.CopyJob, 20)
		for i := range copies {
			copies[i] = device.CopyJob{Dst: offHeap(t, 64), Src: offHeap(t, 64)}
		}
		deq := &DequantBatch{Dst: offHeap(t, 512), Rows: place.Targets[0].Rows, Scales: place.Targets[0].Scales,
			Hidden: 256, RowsPerExpert: 1, Ranges: []RowRange{{Count: 1}}}
		round := func() {
			k.Place(place)
			place.RowType = rowType(!place.RowType.IsFP8())
			k.Reduce(reduce)
			k.Copy(copies)
			k.(Dequantiser).Dequantise(deq)
		}
		if n := testing.AllocsPerRun(100, round); n != 0 {
			t.Errorf("%s: %v allocations per round", k.Name(), n)
		}
	}
}
