package main

// #include "internal.h"
import "C"

import (
	"math"
	"sync"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
)

// combine holds the arguments of one call. It is pooled, as dispatch is.
type combine struct {
	args ep.CombineArgs
	selections
}

var combines = sync.Pool{New: func() any { return new(combine) }}

//export mwiBufferCombine
func mwiBufferCombine(id uint64, a *C.mw_combine_args_t, opID *C.uint64_t) C.mw_status_t {
	b, err := buffers.get(id)
	if err != nil {
		return report(err)
	}
	return guard(b, func() error {
		if b.onGPU != nil {
			return b.combineGPU(a, opID)
		}
		e, n, err := b.handle(uint64(a.handle.id))
		if err != nil {
			return err
		}
		c := combines.Get().(*combine)
		defer func() { c.args = ep.CombineArgs{}; combines.Put(c) }()
		if err := c.read(a, e, n); err != nil {
			return err
		}
		phase, slice, err := waitOf(a.phase, a.slice_us)
		if err != nil {
			return err
		}
		p, err := e.Combine(n, &c.args, phase, slice)
		if err != nil && err != ep.ErrInProgress {
			return err
		}
		*opID = 0
		if p != nil {
			*opID = C.uint64_t(ops.add(&operation{b: b, p: p}))
		}
		return err
	})
}

// handle finds the operation of a handle, which must be this buffer's.
func (b *buffer) handle(id uint64) (*ep.Buffer, uint64, error) {
	owner, n, err := unpackHandle(id)
	if err != nil {
		return nil, 0, err
	}
	if owner != b.id {
		return nil, 0, invalid("handle belongs to buffer %d, this is buffer %d", owner, b.id)
	}
	e, err := b.core()
	return e, n, err
}

func (c *combine) read(a *C.mw_combine_args_t, e *ep.Buffer, n uint64) error {
	const known = C.MW_COMBINE_ZERO_COPY | C.MW_COMBINE_FLAT | selectionFlags
	to := &c.args
	if a.flags&^known != 0 {
		return invalid("args->flags is %#x, allowed bits %#x", uint32(a.flags), known)
	}
	if a.reserved != 0 {
		return invalid("args->reserved is %d, allowed 0", int32(a.reserved))
	}
	if a.stream != 0 {
		return invalid("args->stream is %#x, allowed 0 without MW_DEVICE_CUDA", uint64(a.stream))
	}
	if a.wait_ns != 0 {
		return invalid("args->wait_ns is %#x, allowed 0 without MW_DEVICE_CUDA", uint64(a.wait_ns))
	}
	if err := inRange("num_tokens", int64(a.num_tokens), 0, math.MaxInt32); err != nil {
		return err
	}
	flat := a.flags&C.MW_COMBINE_FLAT != 0
	if err := checkSelections(a, flat); err != nil {
		return err
	}
	outputs, row, err := e.CombineBytes(n)
	if err != nil {
		return err
	}
	t, k := int64(a.num_tokens), int64(a.num_topk)
	*to = ep.CombineArgs{Flat: flat, NumTokens: int(t), TopK: int(k), ZeroCopy: a.flags&C.MW_COMBINE_ZERO_COPY != 0}
	keep(&err, &to.X)(view[byte]("x", uint64(a.x), outputs))
	keep(&err, &to.TopkIdx)(c.readIDs(uint32(a.flags), uint64(a.topk_idx), t*k))
	keep(&err, &to.TopkWeights)(c.readWeights(uint32(a.flags), uint64(a.topk_weights), t*k))
	keep(&err, &to.Out)(view[byte]("out", uint64(a.out), t*row))
	keep(&err, &to.ActiveRanks)(mask(uint64(a.active_ranks), int64(a.num_active_ranks)))
	keep(&err, &to.Timeout)(micros("timeout_us", int64(a.timeout_us)))
	return err
}

// checkSelections refuses selections of a flat combine, which has none.
func checkSelections(a *C.mw_combine_args_t, flat bool) error {
	if !flat {
		return inRange("num_topk", int64(a.num_topk), 1, protocol.MaxTopK)
	}
	if a.topk_idx != 0 || a.topk_weights != 0 || a.num_topk != 0 {
		return invalid("topk_idx, topk_weights or num_topk is given, allowed 0 with MW_COMBINE_FLAT")
	}
	return nil
}

//export mwiCombineBuffer
func mwiCombineBuffer(id, handle uint64, timeoutUs int64, address *C.uint64_t) C.mw_status_t {
	b, err := buffers.get(id)
	if err != nil {
		return report(err)
	}
	return guard(b, func() error {
		slice, err := micros("timeout_us", timeoutUs)
		if err != nil {
			return err
		}
		if b.onGPU != nil {
			at, err := b.combineBufferGPU(handle, nil)
			if err == nil {
				*address = C.uint64_t(at)
			}
			return err
		}
		e, n, err := b.handle(handle)
		if err != nil {
			return err
		}
		x, err := e.CombineBuffer(n, slice)
		if err != nil {
			return err
		}
		*address = C.uint64_t(addressOf(x))
		return nil
	})
}

//export mwiHandleRelease
func mwiHandleRelease(id uint64) C.mw_status_t {
	owner, _, err := unpackHandle(id)
	if err != nil {
		return report(err)
	}
	b, err := buffers.get(owner)
	if err != nil {
		return report(err)
	}
	return guard(b, func() error {
		if b.onGPU != nil {
			return b.releaseGPU(id, nil)
		}
		e, n, err := b.handle(id)
		if err != nil {
			return err
		}
		return e.Release(n)
	})
}
