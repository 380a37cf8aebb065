//go:build cgo

package cpu

/*
#cgo CFLAGS: -std=c11 -O3 -Wall -Wextra
#cgo noescape mwcpu_place
#cgo nocallback mwcpu_place
#cgo noescape mwcpu_reduce
#cgo nocallback mwcpu_reduce
#cgo noescape mwcpu_dequantise
#cgo nocallback mwcpu_dequantise
#cgo noescape mwcpu_copy
#cgo nocallback mwcpu_copy
#include "kernels.h"
*/
import "C"

import (
	"runtime"
	"unsafe"

	"github.com/moewire/moewire/core/device"
)

// native calls the C kernels, once per batch.
//
// Addresses reach C either as arguments, which cgo pins, or as integers in the
// arrays below. What the integers refer to is pinned here for the call, which
// costs a few nanoseconds for memory off the Go heap and makes Go heap memory
// (tests) legal too.
type native struct {
	table   *C.struct_mwcpu_kernels
	name    string
	pinner  runtime.Pinner
	targets []C.struct_mwcpu_target
	sources []C.uintptr_t
	terms   []C.struct_mwcpu_term
	copies  []C.struct_mwcpu_copy_job
	casts   []uint32 // scales and rows of a batch's cast; uint32 for alignment
}

func hasNative(width int) bool { return C.mwcpu_select(C.int(width)) != nil }

// newNative returns nil where the machine lacks that width.
func newNative(width int) device.Kernels {
	table := C.mwcpu_select(C.int(width))
	if table == nil {
		return nil
	}
	return &native{table: table, name: C.GoString(table.name)}
}

// Features lists the CPU features that decide which kernels run.
func Features() string {
	var buf [256]C.char
	C.mwcpu_features(&buf[0], C.size_t(len(buf)))
	return C.GoString(&buf[0])
}

func (n *native) Name() string { return n.name }

func (n *native) Place(b *device.PlaceBatch) {
	if len(b.Jobs) == 0 {
		return
	}
	n.targets = n.targets[:0]
	for i := range b.Targets {
		t := &b.Targets[i]
		n.targets = append(n.targets, C.struct_mwcpu_target{
			rows:            n.pin(t.Rows),
			scales:          n.pin(t.Scales),
			src_info:        n.pin(t.SrcInfo),
			rows_per_expert: C.int64_t(t.RowsPerExpert),
		})
	}
	numCast := 0
	if b.CastFP8 {
		numCast = len(b.X) / (2 * b.Hidden)
		bytes := numCast * (4*(b.Hidden/device.QuantBlock) + b.Hidden + 1)
		n.casts = atLeast(n.casts, (bytes+3)/4)
	}
	C.mwcpu_place(n.table, first(b.X), C.int64_t(b.Hidden), C.int64_t(numCast),
		C.enum_mwcpu_scales(b.Scales), unsafe.SliceData(n.targets),
		(*C.struct_mwcpu_place_job)(first(b.Jobs)), C.int64_t(len(b.Jobs)),
		first(n.casts))
	n.pinner.Unpin()
}

func (n *native) Reduce(b *device.ReduceBatch) {
	if b.Hidden == 0 || len(b.Out) == 0 {
		return
	}
	n.sources = n.sources[:0]
	for _, s := range b.Sources {
		n.sources = append(n.sources, n.pin(s))
	}
	n.terms = atLeast(n.terms, b.TopK)
	wide := C.int(0)
	if b.Wide {
		wide = 1
	}
	C.mwcpu_reduce(n.table, wide, first(b.Out), C.int64_t(b.Hidden),
		C.int64_t(len(b.Out)/(2*b.Hidden)), C.int64_t(b.TopK),
		unsafe.SliceData(n.sources),
		(*C.struct_mwcpu_reduce_job)(first(b.Jobs)),
		(*C.float)(first(b.Weights)), unsafe.SliceData(n.terms))
	n.pinner.Unpin()
}

func (n *native) Copy(jobs []device.CopyJob) {
	if len(jobs) == 0 {
		return
	}
	n.copies = n.copies[:0]
	for i := range jobs {
		n.copies = append(n.copies, C.struct_mwcpu_copy_job{
			dst: n.pin(jobs[i].Dst),
			src: n.pin(jobs[i].Src),
			len: C.uint64_t(len(jobs[i].Dst)),
		})
	}
	C.mwcpu_copy(unsafe.SliceData(n.copies), C.int64_t(len(n.copies)))
	n.pinner.Unpin()
}

// Dequantise implements Dequantiser.
func (n *native) Dequantise(b *DequantBatch) {
	if len(b.Ranges) == 0 {
		return
	}
	C.mwcpu_dequantise(n.table, first(b.Dst), first(b.Rows), first(b.Scales),
		C.int64_t(b.Hidden), C.int64_t(b.RowsPerExpert),
		(*C.struct_mwcpu_row_range)(first(b.Ranges)), C.int64_t(len(b.Ranges)))
}

// pin keeps the memory in place until Unpin and returns its address. Memory
// that is not Go's is left alone by Pin.
func (n *native) pin(s []byte) C.uintptr_t {
	p := unsafe.SliceData(s)
	if p == nil {
		return 0
	}
	n.pinner.Pin(p)
	return C.uintptr_t(uintptr(unsafe.Pointer(p)))
}

func first[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }
