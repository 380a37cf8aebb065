package main

// #include "internal.h"
import "C"

import (
	"fmt"
	"sync"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/node"
)

// dispatch is one call in flight. It is pooled, so the steady state allocates nothing.
type dispatch struct {
	args   ep.DispatchArgs
	device ep.DeviceDispatch // on CUDA
	res    node.Result
	to     *C.mw_dispatch_result_t
	out    C.mw_dispatch_result_t
	selections
}

var dispatches = sync.Pool{New: func() any { return new(dispatch) }}

// free drops what it holds of the caller's.
func (d *dispatch) free() {
	d.args = ep.DispatchArgs{}
	d.to, d.res.Slab, d.res.Memory = nil, nil, nil // the rest of a result keeps nothing, and is written as a whole
	dispatches.Put(d)
}

//export mwiBufferDispatch
func mwiBufferDispatch(id uint64, a *C.mw_dispatch_args_t, opID *C.uint64_t) C.mw_status_t {
	return on(buffers, id, func(b *buffer) error { return b.dispatch(a, opID) })
}

func (b *buffer) dispatch(a *C.mw_dispatch_args_t, opID *C.uint64_t) error {
	d := dispatches.Get().(*dispatch)
	o, err := d.call(b, a)
	if err != nil && err != ep.ErrInProgress {
		d.free()
		return err
	}
	if failed := d.write(b); failed != nil {
		return failed
	}
	*opID = 0
	if o.Pending() {
		*opID = C.uint64_t(ops.add(operation{b: b, Operation: o, result: resultOf(o, d)}))
	}
	if !o.HasResults() {
		d.free()
	}
	return err // nil, or in progress, with nothing begun if there is no operation
}

func (d *dispatch) call(b *buffer, a *C.mw_dispatch_args_t) (node.Operation, error) {
	if err := d.read(a, b.tensors, b.NumRanks()); err != nil {
		return node.Operation{}, err
	}
	phase, slice, err := waitOf(a.phase, a.slice_us)
	if err != nil {
		return node.Operation{}, err
	}
	return b.Dispatch(&d.args, &d.res, phase, slice)
}

// read checks the numbers and turns addresses into what the buffer's engine takes.
func (d *dispatch) read(a *C.mw_dispatch_args_t, of tensors, ranks int) error {
	rows, outputs, err := dtypesOf(uint32(a.flags))
	if err != nil {
		return err
	}
	if err := checkNumbers(a); err != nil {
		return err
	}
	d.to = a.result
	d.readForm(a)
	d.args.RowType, d.args.OutputType = rows, outputs
	if d.args.Timeout, err = micros("timeout_us", int64(a.timeout_us)); err != nil {
		return err
	}
	if err := d.readWidths(a); err != nil {
		return err
	}
	return of.dispatch(d, a, ranks)
}

// readForm sets fields one by one: the rest of the arguments is zero, and need not be
// written again.
func (d *dispatch) readForm(a *C.mw_dispatch_args_t) {
	to, has := &d.args, func(flag C.uint32_t) bool { return a.flags&flag != 0 }
	to.NumTokens, to.Hidden, to.TopK = int(a.num_tokens), int(a.hidden), int(a.num_topk)
	to.MaxTokens, to.NumExperts = int(a.num_max_tokens_per_rank), int(a.num_experts)
	to.Flat, to.NoRouting = has(C.MW_DISPATCH_FLAT), has(C.MW_DISPATCH_NO_ROUTING)
	to.PreReduce, to.HasMore = has(C.MW_DISPATCH_PRE_REDUCE), has(C.MW_DISPATCH_HAS_MORE)
	to.KeepHeld = has(C.MW_DISPATCH_KEEP_HELD)
}

// dtypesOf checks the flags of a dispatch and says which types they ask for.
func dtypesOf(flags uint32) (rows, outputs protocol.DType, err error) {
	const round, ue8m0 = C.MW_DISPATCH_ROUND_SCALE, C.MW_DISPATCH_UE8M0
	const known = C.MW_DISPATCH_FP8 | C.MW_DISPATCH_HAS_MORE | round | ue8m0 | C.MW_DISPATCH_FP32_OUTPUTS | C.MW_DISPATCH_FLAT |
		C.MW_DISPATCH_NO_ROUTING | C.MW_DISPATCH_PRE_REDUCE | C.MW_DISPATCH_KEEP_HELD | selectionFlags
	switch {
	case flags&^known != 0:
		err = invalid("args->flags is %#x, allowed bits %#x", flags, known)
	case flags&C.MW_DISPATCH_NO_ROUTING != 0 && flags&C.MW_DISPATCH_FLAT == 0:
		err = invalid("args->flags is %#x: MW_DISPATCH_NO_ROUTING needs MW_DISPATCH_FLAT", flags)
	case flags&C.MW_DISPATCH_PRE_REDUCE != 0 && flags&C.MW_DISPATCH_FLAT != 0:
		err = invalid("args->flags is %#x: MW_DISPATCH_PRE_REDUCE is not allowed with MW_DISPATCH_FLAT", flags)
	case flags&round != 0 && flags&C.MW_DISPATCH_FP8 == 0:
		err = invalid("args->flags is %#x: MW_DISPATCH_ROUND_SCALE needs MW_DISPATCH_FP8", flags)
	case flags&ue8m0 != 0 && flags&round == 0:
		err = invalid("args->flags is %#x: MW_DISPATCH_UE8M0 needs MW_DISPATCH_ROUND_SCALE", flags)
	}
	return rowType(flags), outputType(flags&C.MW_DISPATCH_FP32_OUTPUTS != 0), err
}

func rowType(flags uint32) protocol.DType {
	switch {
	case flags&C.MW_DISPATCH_UE8M0 != 0:
		return protocol.FP8UE8M0
	case flags&C.MW_DISPATCH_ROUND_SCALE != 0:
		return protocol.FP8Pow2
	case flags&C.MW_DISPATCH_FP8 != 0:
		return protocol.FP8
	}
	return protocol.BF16
}

func outputType(fp32 bool) protocol.DType {
	if fp32 {
		return protocol.FP32
	}
	return protocol.BF16
}

// checkNumbers looks at the numbers from which sizes of memory are made, before the engine does.
func checkNumbers(a *C.mw_dispatch_args_t) error {
	if a.reserved != 0 {
		return invalid("args->reserved is %d, allowed 0", int32(a.reserved))
	}
	return inRanges([]ranged{
		{limits.MaxTokens, int64(a.num_max_tokens_per_rank)},
		{limits.Range{Name: limits.NumTokens.Name, Most: int64(a.num_max_tokens_per_rank)}, int64(a.num_tokens)},
		{limits.Hidden, int64(a.hidden)},
		{limits.TopK, int64(a.num_topk)},
		{limits.NumExperts, int64(a.num_experts)},
	})
}

func waitOf(phase C.int32_t, sliceUs C.int64_t) (ep.Phase, time.Duration, error) {
	slice, err := micros("slice_us", int64(sliceUs))
	if err != nil {
		return 0, 0, err
	}
	p, err := phaseOf(int32(phase))
	return p, slice, err
}

func phaseOf(phase int32) (ep.Phase, error) {
	switch phase {
	case 0, C.MW_PHASE_DONE:
		return ep.PhaseDone, nil
	case C.MW_PHASE_SENT:
		return ep.PhaseSent, nil
	}
	return 0, invalid("phase is %d, allowed 0, %d and %d", phase, C.MW_PHASE_SENT, C.MW_PHASE_DONE)
}

// write gives the caller the part of the result that is known by now.
func (d *dispatch) write(b *buffer) error {
	r := &d.res
	if r.Handle == 0 {
		return nil // not sent yet
	}
	mem := b.memories.of(r.Memory)
	if mem == nil {
		return fmt.Errorf("%w while a dispatch ended", ep.ErrClosed)
	}
	d.out = C.mw_dispatch_result_t{
		handle: C.mw_handle_t{id: C.uint64_t(packHandle(b.id, uint64(r.Handle)))},
		memory: C.mw_memory_t{id: C.uint64_t(mem.id)},
	}
	b.tensors.result(d)
	C.mwi_write_result(d.to, &d.out)
	return nil
}
