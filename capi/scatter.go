package main

// #include "internal.h"
import "C"

import (
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/node"
)

//export mwiBufferScatter
func mwiBufferScatter(id uint64, a *C.mw_scatter_args_t, opID *C.uint64_t) C.mw_status_t {
	return on(buffers, id, func(b *buffer) error {
		r, err := b.routing(uint64(a.routing.id))
		if err != nil {
			return err
		}
		o, err := b.scatter(r, a)
		return b.inFlight(o, err, opID)
	})
}

func (b *buffer) scatter(r *routed, a *C.mw_scatter_args_t) (none node.Operation, err error) {
	args, err := scatterArgs(r, a)
	if err != nil {
		return none, err
	}
	if err := b.tensors.scatter(&args, a, r); err != nil {
		return none, err
	}
	slice, err := micros("slice_us", int64(a.slice_us))
	if err != nil {
		return none, err
	}
	return b.Scatter(r.Routing, &args, slice)
}

func scatterArgs(r *routed, a *C.mw_scatter_args_t) (args routing.ScatterArgs, err error) {
	const known = C.MW_SCATTER_WEIGHTS | C.MW_SCATTER_EXPANDED | C.MW_SCATTER_ZERO_GAPS
	has := func(flag C.uint32_t) bool { return a.flags&flag != 0 }
	switch {
	case a.flags&^known != 0:
		return args, invalid("args->flags is %#x, allowed bits %#x", uint32(a.flags), known)
	case a.reserved != 0:
		return args, invalid("args->reserved is %d, allowed 0", uint32(a.reserved))
	}
	args.Layout, err = layoutOf(r, has(C.MW_SCATTER_EXPANDED), int64(a.expert_alignment))
	if err != nil {
		return args, err
	}
	args.Layout.ZeroGaps = has(C.MW_SCATTER_ZERO_GAPS)
	row, extra := int64(a.row_bytes), int64(a.extra_row_bytes)
	err = inRanges([]ranged{{limits.Range{Name: "row_bytes", Most: 2 * protocol.MaxHidden}, row}, {limits.ExtraRowBytes, extra}})
	if err != nil {
		return args, err
	}
	args.RowBytes, args.ExtraBytes, args.WithWeights = int(row), int(extra), has(C.MW_SCATTER_WEIGHTS)
	keep(&err, &args.Timeout)(micros("timeout_us", int64(a.timeout_us)))
	return args, err
}

// layoutOf checks a layout before sizes are made of it.
func layoutOf(r *routed, expanded bool, alignment int64) (l routing.Layout, err error) {
	if !expanded {
		if alignment != 0 {
			err = invalid("expert_alignment is %d, allowed 0 for compact rows", alignment)
		}
		return l, err
	}
	_, err = r.NumExpandedRows(int(alignment))
	return routing.Layout{Expanded: true, Alignment: int(alignment)}, err
}

//export mwiBufferGather
func mwiBufferGather(id uint64, a *C.mw_gather_args_t, opID *C.uint64_t) C.mw_status_t {
	return on(buffers, id, func(b *buffer) error {
		r, err := b.routing(uint64(a.routing.id))
		if err != nil {
			return err
		}
		o, err := b.gather(r, a)
		return b.inFlight(o, err, opID)
	})
}

func (b *buffer) gather(r *routed, a *C.mw_gather_args_t) (none node.Operation, err error) {
	args, err := gatherArgs(r, a)
	if err != nil {
		return none, err
	}
	if err := b.tensors.gather(&args, a, r); err != nil {
		return none, err
	}
	slice, err := micros("slice_us", int64(a.slice_us))
	if err != nil {
		return none, err
	}
	return b.Gather(r.Routing, &args, slice)
}

func gatherArgs(r *routed, a *C.mw_gather_args_t) (args routing.GatherArgs, err error) {
	const fp32, fp32Out = C.MW_GATHER_FP32_ROWS, C.MW_GATHER_FP32_OUT
	const known = C.MW_GATHER_WEIGHTS | C.MW_GATHER_OWNERS_ONLY | C.MW_GATHER_EXPANDED | fp32 | fp32Out
	has := func(flag C.uint32_t) bool { return a.flags&flag != 0 }
	if a.flags&^known != 0 {
		return args, invalid("args->flags is %#x, allowed bits %#x", uint32(a.flags), known)
	}
	args.Layout, err = layoutOf(r, has(C.MW_GATHER_EXPANDED), int64(a.expert_alignment))
	if err != nil {
		return args, err
	}
	h := int64(a.hidden)
	if err := inRange(limits.Hidden, h); err != nil {
		return args, err
	}
	args.Hidden, args.RowType, args.OutType = int(h), outputType(has(fp32)), outputType(has(fp32Out))
	args.WithWeights, args.OwnersOnly = has(C.MW_GATHER_WEIGHTS), has(C.MW_GATHER_OWNERS_ONLY)
	keep(&err, &args.Timeout)(micros("timeout_us", int64(a.timeout_us)))
	return args, err
}

var biasNames = [C.MW_MAX_BIASES]string{"bias[0]", "bias[1]"}
