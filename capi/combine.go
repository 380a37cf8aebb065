package main

// #include "internal.h"
import "C"

import (
	"sync"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/node"
)

// combine holds the arguments of one call. It is pooled, as dispatch is.
type combine struct {
	args   ep.CombineArgs
	device ep.DeviceCombine // on CUDA
	selections
}

var combines = sync.Pool{New: func() any { return new(combine) }}

//export mwiBufferCombine
func mwiBufferCombine(id uint64, a *C.mw_combine_args_t, opID *C.uint64_t) C.mw_status_t {
	return on(buffers, id, func(b *buffer) error { return b.combine(a, opID) })
}

func (b *buffer) combine(a *C.mw_combine_args_t, opID *C.uint64_t) error {
	h, err := b.handle(uint64(a.handle.id))
	if err != nil {
		return err
	}
	c := combines.Get().(*combine)
	o, err := c.call(b, a, h)
	c.args = ep.CombineArgs{}
	combines.Put(c)
	if err != nil && err != ep.ErrInProgress {
		return err
	}
	*opID = 0
	if o.Pending() {
		*opID = C.uint64_t(ops.add(operation{b: b, Operation: o}))
	}
	return err
}

func (c *combine) call(b *buffer, a *C.mw_combine_args_t, h node.Handle) (node.Operation, error) {
	if err := c.read(a, b, h); err != nil {
		return node.Operation{}, err
	}
	phase, slice, err := waitOf(a.phase, a.slice_us)
	if err != nil {
		return node.Operation{}, err
	}
	return b.Combine(h, &c.args, phase, slice)
}

// handle finds the dispatch of a handle, which must be this buffer's.
func (b *buffer) handle(id uint64) (node.Handle, error) {
	owner, n, err := unpackHandle(id)
	if err != nil {
		return 0, err
	}
	if owner != b.id {
		return 0, invalid("handle belongs to buffer %d, this is buffer %d", owner, b.id)
	}
	return node.Handle(n), nil
}

func (c *combine) read(a *C.mw_combine_args_t, b *buffer, h node.Handle) (err error) {
	const known = C.MW_COMBINE_ZERO_COPY | C.MW_COMBINE_FLAT | selectionFlags
	if a.flags&^known != 0 {
		return invalid("args->flags is %#x, allowed bits %#x", uint32(a.flags), known)
	}
	if a.reserved != 0 {
		return invalid("args->reserved is %d, allowed 0", int32(a.reserved))
	}
	if err := inRange(limits.NumTokens, int64(a.num_tokens)); err != nil {
		return err
	}
	flat := a.flags&C.MW_COMBINE_FLAT != 0
	if err := checkSelections(a, flat); err != nil {
		return err
	}
	c.args.Flat, c.args.ZeroCopy = flat, a.flags&C.MW_COMBINE_ZERO_COPY != 0
	c.args.NumTokens, c.args.TopK = int(a.num_tokens), int(a.num_topk)
	if c.args.Timeout, err = micros("timeout_us", int64(a.timeout_us)); err != nil {
		return err
	}
	return b.tensors.combine(c, a, b, h)
}

// checkSelections refuses selections of a flat combine, which has none.
func checkSelections(a *C.mw_combine_args_t, flat bool) error {
	if !flat {
		return inRange(limits.TopK, int64(a.num_topk))
	}
	if a.topk_idx != 0 || a.topk_weights != 0 || a.num_topk != 0 {
		return invalid("topk_idx, topk_weights or num_topk is given, allowed 0 with MW_COMBINE_FLAT")
	}
	return nil
}

//export mwiCombineBuffer
func mwiCombineBuffer(id, handle uint64, timeoutUs int64, address *C.uint64_t) C.mw_status_t {
	return on(buffers, id, func(b *buffer) error {
		slice, err := micros("timeout_us", timeoutUs)
		if err != nil {
			return err
		}
		return b.combineBuffer(handle, node.Stream{}, slice, address)
	})
}

//export mwiCombineBufferOn
func mwiCombineBufferOn(id, handle, stream uint64, address *C.uint64_t) C.mw_status_t {
	return on(buffers, id, func(b *buffer) error {
		if err := b.tensors.streams(); err != nil {
			return err // whatever the handle
		}
		return b.combineBuffer(handle, node.OnStream(stream), -1, address)
	})
}

func (b *buffer) combineBuffer(id uint64, on node.Stream, slice time.Duration, address *C.uint64_t) error {
	h, err := b.handle(id)
	if err != nil {
		return err
	}
	at, err := b.CombineBuffer(h, on, slice)
	if err != nil {
		return err
	}
	if *address = C.uint64_t(at.Device); at.Bytes != nil {
		*address = C.uint64_t(addressOf(at.Bytes))
	}
	return nil
}

//export mwiHandleRelease
func mwiHandleRelease(id uint64) C.mw_status_t { return release(id, node.Stream{}) }

//export mwiHandleReleaseOn
func mwiHandleReleaseOn(id, stream uint64) C.mw_status_t {
	if stream == C.MW_STREAM_NONE {
		return release(id, node.NoStream())
	}
	return release(id, node.OnStream(stream))
}

func release(id uint64, stream node.Stream) C.mw_status_t {
	owner, h, err := unpackHandle(id)
	if err != nil {
		return report(err)
	}
	return on(buffers, owner, func(b *buffer) error { return b.Release(node.Handle(h), stream) })
}
