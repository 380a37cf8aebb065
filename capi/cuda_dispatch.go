package main

// #include "internal.h"
import "C"

import (
	"fmt"
	"sync"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/gpu"
	"github.com/moewire/moewire/core/ep/layout"
)

// launch holds the arguments of one call on CUDA. It is pooled, as dispatch is.
type launch struct {
	dispatch gpu.DispatchArgs
	combine  gpu.CombineArgs
	res      gpu.Result
	out      C.mw_dispatch_result_t
}

var launches = sync.Pool{New: func() any { return new(launch) }}

func (c *launch) free() {
	*c = launch{}
	launches.Put(c)
}

// dispatchGPU launches a dispatch: its first phase or both.
func (b *buffer) dispatchGPU(a *C.mw_dispatch_args_t, opID *C.uint64_t) error {
	g, err := b.gpuCore()
	if err != nil {
		return err
	}
	phase, err := gpuPhase(a.phase, a.slice_us)
	if err != nil {
		return err
	}
	c := launches.Get().(*launch)
	defer c.free()
	if err := c.readDispatch(a, g.NumRanks()); err != nil {
		return err
	}
	if err := g.Dispatch(&c.dispatch, &c.res, phase); err != nil {
		return err
	}
	b.onGPU.use(&c.res, c.dispatch.Stream)
	mem := b.memories.of(&b.onGPU.memory)
	if mem == nil {
		return fmt.Errorf("%w while a dispatch was launched", ep.ErrClosed)
	}
	c.write(b.id, mem.id)
	C.mwi_write_result(a.result, &c.out)
	*opID = 0
	if phase == gpu.PhaseSent {
		*opID = C.uint64_t(b.promise(second{core: g, handle: c.res.Handle, stream: c.dispatch.Stream}))
	}
	return nil
}

func gpuPhase(phase C.int32_t, sliceUs C.int64_t) (gpu.Phase, error) {
	p, _, err := waitOf(phase, sliceUs)
	if p == ep.PhaseSent {
		return gpu.PhaseSent, err
	}
	return gpu.PhaseDone, err
}

// readDispatch checks what core/ep/gpu does not. Addresses are the device's: this code
// does not read the memory there.
func (c *launch) readDispatch(a *C.mw_dispatch_args_t, ranks int) error {
	rows, outputs, err := dtypesOf(uint32(a.flags))
	if err != nil {
		return err
	}
	if err := checkNumbers(a); err != nil {
		return err
	}
	if err := refuseOnGPU(uint32(a.flags)); err != nil {
		return err
	}
	timeout, err := micros("timeout_us", int64(a.timeout_us))
	if err != nil {
		return err
	}
	active, err := gpuMask(uint64(a.active_ranks), int64(a.num_active_ranks), ranks)
	if err != nil {
		return err
	}
	c.dispatch = gpu.DispatchArgs{
		X: uint64(a.x), TopkIdx: uint64(a.topk_idx), NumTokens: int(a.num_tokens), Hidden: int(a.hidden),
		TopK: int(a.num_topk), MaxTokens: int(a.num_max_tokens_per_rank), NumExperts: int(a.num_experts),
		RowType: rows, OutputType: outputs,
		ActiveRanks: active, RecvCount: uint64(a.recv_count), LayoutRange: uint64(a.layout_range),
		HasMore: a.flags&C.MW_DISPATCH_HAS_MORE != 0, PeersHaveMore: uint64(a.peers_have_more), WaitNs: uint64(a.wait_ns),
		Stream: uint64(a.stream), Timeout: timeout, KeepHeld: a.flags&C.MW_DISPATCH_KEEP_HELD != 0,
	}
	return c.readColumns(a)
}

// readColumns reads the columns that come with flat rows, and the weights for sums.
func (c *launch) readColumns(a *C.mw_dispatch_args_t) error {
	d := &c.dispatch
	d.TopkWeights = uint64(a.topk_weights)
	if d.Flat = a.flags&C.MW_DISPATCH_FLAT != 0; !d.Flat {
		d.PreReduce = a.flags&C.MW_DISPATCH_PRE_REDUCE != 0
		return aloneButForWeights(a)
	}
	if d.NoRouting = a.flags&C.MW_DISPATCH_NO_ROUTING != 0; d.NoRouting && a.topk_weights != 0 {
		return errWeightsWithoutRouting
	}
	for i := range extraNames {
		width, err := extraWidth(a, i)
		if err != nil {
			return err
		}
		d.Extra[i], d.ExtraRowBytes[i] = uint64(a.extra[i]), int(width)
	}
	return nil
}

// gpuMask checks active_ranks, of which a kernel reads R entries.
func gpuMask(at uint64, n int64, ranks int) (uint64, error) {
	if at != 0 && n < int64(ranks) {
		return 0, invalid("active_ranks has %d entries, allowed %d and more", n, ranks)
	}
	return at, nil
}

// write gives the caller the addresses of a dispatch.
func (c *launch) write(buffer, memory uint64) {
	r := &c.res
	c.out = C.mw_dispatch_result_t{
		handle:      C.mw_handle_t{id: C.uint64_t(packHandle(buffer, uint64(r.Handle)-1))},
		memory:      C.mw_memory_t{id: C.uint64_t(memory)},
		recv_x:      C.uint64_t(r.RecvX),
		recv_scales: C.uint64_t(r.Scales),
		src_info:    C.uint64_t(r.SrcInfo),
		combine_x:   C.uint64_t(r.CombineX),
	}
	c.out.recv_topk_idx = C.uint64_t(r.Columns[layout.ColumnTopkIdx])
	c.out.recv_topk_weights = C.uint64_t(r.Columns[layout.ColumnTopkWeights])
	for i := range c.out.recv_extra {
		c.out.recv_extra[i] = C.uint64_t(r.Columns[layout.ColumnExtra+i])
	}
}
