package main

// #include "internal.h"
import "C"

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
)

// dispatch is one call in flight. It is pooled, so the steady state allocates nothing.
type dispatch struct {
	args ep.DispatchArgs
	res  ep.Result
	to   *C.mw_dispatch_result_t
	out  C.mw_dispatch_result_t
	selections
}

var dispatches = sync.Pool{New: func() any { return new(dispatch) }}

func (d *dispatch) free() {
	*d = dispatch{selections: d.selections}
	dispatches.Put(d)
}

//export mwiBufferDispatch
func mwiBufferDispatch(id uint64, a *C.mw_dispatch_args_t, opID *C.uint64_t) C.mw_status_t {
	b, err := buffers.get(id)
	if err != nil {
		return report(err)
	}
	return guard(b, func() error {
		if b.onGPU != nil {
			return b.dispatchGPU(a, opID)
		}
		e, err := b.core()
		if err != nil {
			return err
		}
		d := dispatches.Get().(*dispatch)
		if err := d.read(a, e.NumRanks()); err != nil {
			d.free()
			return err
		}
		phase, slice, err := waitOf(a.phase, a.slice_us)
		if err != nil {
			d.free()
			return err
		}
		p, err := e.Dispatch(&d.args, &d.res, phase, slice)
		if err != nil && err != ep.ErrInProgress {
			d.free()
			return err
		}
		if failed := d.write(b); failed != nil {
			return failed
		}
		*opID = 0
		if p == nil {
			d.free()
			return err // nil, or in progress with nothing begun
		}
		*opID = C.uint64_t(ops.add(&operation{b: b, p: p, d: d}))
		return err
	})
}

// read checks the numbers and turns addresses into slices.
func (d *dispatch) read(a *C.mw_dispatch_args_t, ranks int) error {
	rows, outputs, err := dtypesOf(uint32(a.flags))
	if err != nil {
		return err
	}
	if err := checkNumbers(a); err != nil {
		return err
	}
	if a.stream != 0 {
		return invalid("args->stream is %#x, allowed 0 without MW_DEVICE_CUDA", uint64(a.stream))
	}
	if a.peers_have_more != 0 {
		return invalid("args->peers_have_more is %#x, allowed 0 without MW_DEVICE_CUDA", uint64(a.peers_have_more))
	}
	if a.wait_ns != 0 {
		return invalid("args->wait_ns is %#x, allowed 0 without MW_DEVICE_CUDA", uint64(a.wait_ns))
	}
	t, h, k, e := int64(a.num_tokens), int64(a.hidden), int64(a.num_topk), int64(a.num_experts)
	local := e / int64(ranks)
	if a.flags&C.MW_DISPATCH_FLAT != 0 {
		local = 1 // one block of rows
	}
	d.to = a.result
	d.args = ep.DispatchArgs{
		NumTokens: int(t), Hidden: int(h), TopK: int(k), MaxTokens: int(a.num_max_tokens_per_rank), NumExperts: int(e),
		HasMore: a.flags&C.MW_DISPATCH_HAS_MORE != 0,
		RowType: rows, OutputType: outputs,
		KeepHeld: a.flags&C.MW_DISPATCH_KEEP_HELD != 0,
	}
	keep(&err, &d.args.X)(view[byte]("x", uint64(a.x), t*h*2))
	keep(&err, &d.args.TopkIdx)(d.readIDs(uint32(a.flags), uint64(a.topk_idx), t*k))
	keep(&err, &d.args.ActiveRanks)(mask(uint64(a.active_ranks), int64(a.num_active_ranks)))
	keep(&err, &d.args.RecvCount)(view[int32]("recv_count", uint64(a.recv_count), local))
	keep(&err, &d.args.LayoutRange)(view[int64]("layout_range", uint64(a.layout_range), local*int64(ranks)))
	keep(&err, &d.args.Timeout)(micros("timeout_us", int64(a.timeout_us)))
	if err != nil {
		return err
	}
	return d.readColumns(a)
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

func checkNumbers(a *C.mw_dispatch_args_t) error {
	if a.reserved != 0 {
		return invalid("args->reserved is %d, allowed 0", int32(a.reserved))
	}
	for _, n := range [...]struct {
		name      string
		v, lo, hi int64
	}{
		{"num_max_tokens_per_rank", int64(a.num_max_tokens_per_rank), 1, math.MaxInt32},
		{"num_tokens", int64(a.num_tokens), 0, int64(a.num_max_tokens_per_rank)},
		{"hidden", int64(a.hidden), 1, 1 << 30},
		{"num_topk", int64(a.num_topk), 1, protocol.MaxTopK},
		{"num_experts", int64(a.num_experts), 1, math.MaxInt32},
	} {
		if err := inRange(n.name, n.v, n.lo, n.hi); err != nil {
			return err
		}
	}
	return nil
}

// mask returns the caller's active_ranks, nil if there are none.
func mask(address uint64, n int64) ([]int32, error) {
	if address == 0 {
		return nil, nil
	}
	if n < 0 {
		return nil, invalid("num_active_ranks is %d, allowed 0 and more", n)
	}
	m, err := view[int32]("active_ranks", address, min(n, rankset.MaxRanks))
	if m == nil && err == nil {
		m = []int32{} // given but empty: too short, not absent
	}
	return m, err
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
	if r.Slab == nil {
		return nil // not sent yet
	}
	mem := b.memories.of(r.Slab)
	if mem == nil {
		return fmt.Errorf("%w while a dispatch ended", ep.ErrClosed)
	}
	base := r.Slab.Bytes(0, r.Slab.SizeBytes())
	d.out = C.mw_dispatch_result_t{
		handle:         C.mw_handle_t{id: C.uint64_t(packHandle(b.id, r.Op))},
		memory:         C.mw_memory_t{id: C.uint64_t(mem.id)},
		recv_x:         C.uint64_t(addressOf(r.RecvX)),
		src_info:       C.uint64_t(addressOf(r.SrcInfo)),
		combine_x:      C.uint64_t(addressOf(r.CombineX)),
		memory_address: C.uint64_t(addressOf(base)),
		memory_bytes:   C.uint64_t(len(base)),
	}
	if len(r.Scales) > 0 {
		d.out.recv_scales = C.uint64_t(addressOf(r.Scales))
	}
	if r.PeersHaveMore {
		d.out.peers_have_more = 1
	}
	d.writeColumns()
	C.mwi_write_result(d.to, &d.out)
	return nil
}
