package main

// #include "internal.h"
import "C"

import (
	"fmt"
	"math"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/gpu"
)

// gpuHandle finds the operation of a handle, which must be this buffer's.
func (b *buffer) gpuHandle(id uint64) (*gpu.Buffer, gpu.Handle, error) {
	owner, n, err := unpackHandle(id)
	if err != nil {
		return nil, 0, err
	}
	if owner != b.id {
		return nil, 0, invalid("handle belongs to buffer %d, this is buffer %d", owner, b.id)
	}
	g, err := b.gpuCore()
	return g, gpu.Handle(n + 1), err
}

// combineGPU launches a combine: its first phase or both.
func (b *buffer) combineGPU(a *C.mw_combine_args_t, opID *C.uint64_t) error {
	g, h, err := b.gpuHandle(uint64(a.handle.id))
	if err != nil {
		return err
	}
	phase, err := gpuPhase(a.phase, a.slice_us)
	if err != nil {
		return err
	}
	c := launches.Get().(*launch)
	defer c.free()
	if err := c.readCombine(a, g.NumRanks()); err != nil {
		return err
	}
	if err := b.onGPU.checkInPlace(h, a.flags&C.MW_COMBINE_ZERO_COPY != 0, c.combine.X); err != nil {
		return err
	}
	ticket, err := g.Combine(h, &c.combine, phase)
	if err != nil {
		return err
	}
	b.onGPU.of(h, func(s *slotUse) { s.stream = c.combine.Stream })
	*opID = 0
	if phase == gpu.PhaseSent {
		*opID = C.uint64_t(b.promise(second{core: g, ticket: ticket, stream: c.combine.Stream}))
	}
	return nil
}

func (c *launch) readCombine(a *C.mw_combine_args_t, ranks int) error {
	const known = C.MW_COMBINE_ZERO_COPY | C.MW_COMBINE_FLAT
	switch {
	case a.flags&^known != 0:
		return invalid("args->flags is %#x, allowed bits %#x", uint32(a.flags), known)
	case a.reserved != 0:
		return invalid("args->reserved is %d, allowed 0", int32(a.reserved))
	}
	if err := inRange("num_tokens", int64(a.num_tokens), 0, math.MaxInt32); err != nil {
		return err
	}
	flat := a.flags&C.MW_COMBINE_FLAT != 0
	if err := checkSelections(a, flat); err != nil {
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
	c.combine = gpu.CombineArgs{
		Flat: flat, X: uint64(a.x), TopkIdx: uint64(a.topk_idx), TopkWeights: uint64(a.topk_weights), Out: uint64(a.out),
		NumTokens: int(a.num_tokens), TopK: int(a.num_topk), ActiveRanks: active, Stream: uint64(a.stream), Timeout: timeout,
		WaitNs: uint64(a.wait_ns),
	}
	if a.x == 0 { // flat combines need x, too: only the device knows whether there are rows
		return invalid("x is NULL, allowed expert outputs, or the handle's combine buffer")
	}
	return nil
}

// checkInPlace checks that with zero_copy x is the combine buffer.
func (g *onGPU) checkInPlace(h gpu.Handle, zeroCopy bool, x uint64) (err error) {
	if zeroCopy {
		g.of(h, func(s *slotUse) {
			if s.combineX != x {
				err = invalid("x is at %#x, allowed with zero_copy: the handle's combine buffer, at %#x", x, s.combineX)
			}
		})
	}
	return err
}

// combineBufferGPU returns the combine buffer. After a combine, a stream waits for the
// ranks that read there: the stream of the handle's latest call if on is nil.
func (b *buffer) combineBufferGPU(id uint64, on *uint64) (at uint64, err error) {
	g, h, err := b.gpuHandle(id)
	if err != nil {
		return 0, err
	}
	stream, _ := b.streamOf(h, on) // if there is none, the core returns the error
	return g.CombineX(h, stream)
}

// streamOf returns the given stream, or the stream of a handle's latest call. It returns
// false if the handle's slot serves a later dispatch.
func (b *buffer) streamOf(h gpu.Handle, on *uint64) (stream uint64, ok bool) {
	ok = b.onGPU.of(h, func(s *slotUse) { stream = s.stream })
	if on != nil {
		stream = *on
	}
	return stream, ok
}

//export mwiCombineBufferOn
func mwiCombineBufferOn(id, handle, stream uint64, address *C.uint64_t) C.mw_status_t {
	b, err := buffers.get(id)
	if err != nil {
		return report(err)
	}
	return guard(b, func() error {
		if b.onGPU == nil {
			return invalid("buffer is on the CPU, which has no streams")
		}
		at, err := b.combineBufferGPU(handle, &stream)
		if err == nil {
			*address = C.uint64_t(at)
		}
		return err
	})
}

// releaseGPU releases a handle on a stream: on that of the handle's latest call if on is
// nil, and on none with MW_STREAM_NONE.
func (b *buffer) releaseGPU(id uint64, on *uint64) error {
	g, h, err := b.gpuHandle(id)
	if err != nil {
		return err
	}
	if on != nil && *on == C.MW_STREAM_NONE {
		return g.LeaveToGraph(h)
	}
	stream, ok := b.streamOf(h, on)
	if !ok {
		return fmt.Errorf("%w: its slot serves a later dispatch", ep.ErrStaleHandle)
	}
	return g.Release(h, stream)
}

//export mwiHandleReleaseOn
func mwiHandleReleaseOn(id, stream uint64) C.mw_status_t {
	owner, _, err := unpackHandle(id)
	if err != nil {
		return report(err)
	}
	b, err := buffers.get(owner)
	if err != nil {
		return report(err)
	}
	return guard(b, func() error {
		if b.onGPU == nil {
			return invalid("handle is of a buffer on the CPU, which has no streams")
		}
		return b.releaseGPU(id, &stream)
	})
}
