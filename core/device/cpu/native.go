//go:build cgo

package cpu

/*
#cgo CFLAGS: -std=c11 -O3 -Wall -Wextra
#cgo noescape mwcpu_place
#cgo nocallback mwcpu_place
#cgo noescape mwcpu_cast
#cgo nocallback mwcpu_cast
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
	"sync"
	"unsafe"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/protocol"
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
	stores  Stores
	how     C.struct_mwcpu_how
	pinner  runtime.Pinner
	targets []C.struct_mwcpu_target
	sources []C.uintptr_t
	terms   []C.struct_mwcpu_term
	copies  []C.struct_mwcpu_copy_job
	casts   []uint32 // scales and rows of a batch's cast; uint32 for alignment

	threads int
	least   int   // bytes that make a part worth a thread's while
	team    *team // nil with one thread
	closing sync.Once
	batch   batch // what the parts of it need
}

// batch is the batch in progress, with its number of parts.
type batch struct {
	step    step
	parts   int
	place   *device.PlaceBatch
	reduce  *device.ReduceBatch
	how     C.struct_mwcpu_how
	numCast int
	already C.int // its rows were cast in a step of their own
}

type step int

const (
	stepPlace step = iota
	stepCast
	stepReduce
)

func hasNative(width int) bool { return C.mwcpu_select(C.int(width)) != nil }

// streamFrom is from how many bytes on StoresAuto streams a batch's rows
// (docs/performance.md has what was measured): fewer are better left in the
// caches for the next reader.
const streamFrom = 1 << 20

const canStream = runtime.GOARCH == "amd64"

// newNative makes kernels of a width that the machine has.
func newNative(o Options) device.Kernels {
	table := C.mwcpu_select(C.int(o.Width))
	n := &native{table: table, name: C.GoString(table.name), stores: o.Stores, threads: max(o.Threads, 1), least: leastShare}
	n.how.prefetch = C.int32_t(max(o.Prefetch, 0))
	if n.threads > 1 {
		n.team = newTeam(n.threads, n.work)
	}
	return n
}

func (n *native) Close() {
	n.closing.Do(func() {
		if n.team != nil {
			n.team.close()
		}
	})
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
	row := int(b.RowType.RowBytes(int64(b.Hidden)))
	n.batch = batch{place: b, how: n.how}
	if b.RowType.IsFP8() {
		n.beginCast(b)
	}
	n.batch.how.streaming = n.streaming(len(b.Jobs) * row)
	n.split(stepPlace, len(b.Jobs)*row, len(b.Jobs))
	n.end()
}

// beginCast makes room for the rows of a cast, and casts them all if threads
// are to share the batch; one alone casts each when it comes to it.
func (n *native) beginCast(b *device.PlaceBatch) {
	tokens := len(b.X) / (2 * b.Hidden)
	bytes := tokens * (4*(b.Hidden/protocol.QuantBlock) + b.Hidden + 1)
	n.casts = atLeast(n.casts, (bytes+3)/4)
	n.batch.numCast = tokens
	if n.partsFor(len(b.Jobs)*b.Hidden, len(b.Jobs)) > 1 {
		n.split(stepCast, tokens*2*b.Hidden, tokens)
		n.batch.already = 1
	}
}

// streaming is whether so many bytes are better stored past the caches.
func (n *native) streaming(bytes int) C.int32_t {
	if n.stores == StoresStreaming || (n.stores == StoresAuto && canStream && bytes >= streamFrom) {
		return 1
	}
	return 0
}

func (n *native) partsFor(bytes, items int) int {
	return max(1, min(n.threads, bytes/n.least, items))
}

// split does one step of the batch, in parts if it is worth it.
func (n *native) split(s step, bytes, items int) {
	n.batch.step, n.batch.parts = s, n.partsFor(bytes, items)
	if n.batch.parts == 1 {
		n.work(0)
		return
	}
	n.team.run(n.batch.parts)
}

// end forgets the caller's memory.
func (n *native) end() {
	n.batch = batch{}
	n.pinner.Unpin()
}

// work does one part of a step. The parts of a batch share nothing that they
// write, but each line of memory at their borders.
func (n *native) work(part int) {
	switch n.batch.step {
	case stepPlace:
		n.placePart(part)
	case stepCast:
		n.castPart(part)
	case stepReduce:
		n.reducePart(part)
	}
}

// share is one part of num items: its begin and end.
func (b *batch) share(part, num int) (first, last int) {
	return num * part / b.parts, num * (part + 1) / b.parts
}

func (n *native) placePart(part int) {
	b := n.batch.place
	first, last := n.batch.share(part, len(b.Jobs))
	jobs := b.Jobs[first:last]
	C.mwcpu_place(n.table, n.batch.how, start(b.X), C.int64_t(b.Hidden), C.int64_t(n.batch.numCast), n.batch.already,
		scalesOf(b.RowType), unsafe.SliceData(n.targets),
		(*C.struct_mwcpu_place_job)(start(jobs)), C.int64_t(len(jobs)), start(n.casts))
}

func (n *native) castPart(part int) {
	b := n.batch.place
	first, last := n.batch.share(part, n.batch.numCast)
	C.mwcpu_cast(n.table, start(b.X), C.int64_t(b.Hidden), C.int64_t(n.batch.numCast),
		scalesOf(b.RowType), C.int64_t(first), C.int64_t(last), start(n.casts))
}

func (n *native) Reduce(b *device.ReduceBatch) {
	if b.Hidden == 0 || len(b.Out) == 0 {
		return
	}
	n.sources = n.sources[:0]
	for _, s := range b.Sources {
		n.sources = append(n.sources, n.pin(s))
	}
	n.terms = atLeast(n.terms, b.TopK*n.threads)
	n.batch = batch{reduce: b, how: n.how}
	n.split(stepReduce, len(b.Out)*b.TopK, len(b.Out)/b.OutRowBytes())
	n.end()
}

func (n *native) reducePart(part int) {
	b := n.batch.reduce
	row := b.OutRowBytes()
	first, last := n.batch.share(part, len(b.Out)/row)
	form := C.struct_mwcpu_form{fp32: bit(b.RowType == protocol.FP32), runs: bit(b.Runs), fp32_out: bit(b.OutType == protocol.FP32)}
	C.mwcpu_reduce(n.table, n.batch.how, form, start(b.Out[first*row:]), C.int64_t(b.Hidden),
		C.int64_t(last-first), C.int64_t(b.TopK), unsafe.SliceData(n.sources),
		(*C.struct_mwcpu_reduce_job)(start(b.Jobs[first*b.TopK:])),
		(*C.float)(start(b.Weights[first*b.TopK:])), unsafe.SliceData(n.terms[part*b.TopK:]))
}

// The block of the C kernels is that of the protocol.
var _ = [1]struct{}{C.MWCPU_BLOCK - protocol.QuantBlock: {}}

func scalesOf(rows protocol.DType) C.enum_mwcpu_scales {
	switch rows {
	case protocol.FP8Pow2:
		return C.MWCPU_POW2
	case protocol.FP8UE8M0:
		return C.MWCPU_UE8M0
	}
	return C.MWCPU_FLOAT32
}

func bit(set bool) C.int32_t {
	if set {
		return 1
	}
	return 0
}

// plainFrom is from how many bytes on a batch is copied by Go's copy. That streams large pieces past
// the caches, which memmove begins later. For fewer bytes memmove is better: what it wrote is still in
// the caches when it is read. With a reader behind it, Go's copy took twice as long at 1 to 4 MiB, 1.4
// times at 8, as long at 12, and 0.8 of the time at 32 (L2 of 1 MiB, L3 of 32 MiB).
const plainFrom = 16 << 20

func (n *native) Copy(jobs []device.CopyJob) {
	total := 0
	for i := range jobs {
		total += len(jobs[i].Dst)
	}
	switch {
	case total == 0:
	case total >= plainFrom:
		copyPlain(jobs)
	default:
		n.copyInC(jobs)
	}
}

func copyPlain(jobs []device.CopyJob) {
	for i := range jobs {
		copy(jobs[i].Dst, jobs[i].Src)
	}
}

func (n *native) copyInC(jobs []device.CopyJob) {
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
	C.mwcpu_dequantise(n.table, start(b.Dst), start(b.Rows), start(b.Scales),
		C.int64_t(b.Hidden), C.int64_t(b.RowsPerExpert),
		(*C.struct_mwcpu_row_range)(start(b.Ranges)), C.int64_t(len(b.Ranges)))
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

func start[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }
