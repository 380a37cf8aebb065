package main

// #include "internal.h"
import "C"

import (
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/node"
)

// tensors turns the addresses of a call into what the buffer's engine takes, and its
// results into addresses. A buffer has one of the two for its whole life.
type tensors interface {
	dispatch(d *dispatch, a *C.mw_dispatch_args_t, ranks int) error
	combine(c *combine, a *C.mw_combine_args_t, b *buffer, h node.Handle) error
	result(d *dispatch)
	scatter(to *routing.ScatterArgs, a *C.mw_scatter_args_t, r *routed) error
	gather(to *routing.GatherArgs, a *C.mw_gather_args_t, r *routed) error
	stream(given C.uint64_t) (uint64, error) // of a call that makes a routing
	streams() error                          // why there are none
}

func tensorsOf(cfg *node.Config) tensors {
	if cfg.CUDA != nil {
		return deviceTensors{}
	}
	return hostTensors{}
}

// hostTensors lie in the memory of this process: addresses become slices.
type hostTensors struct{}

func (hostTensors) dispatch(d *dispatch, a *C.mw_dispatch_args_t, ranks int) (err error) {
	if err := noDevice(a.stream, a.peers_have_more, a.wait_ns); err != nil {
		return err
	}
	to, t, local := &d.args, int64(a.num_tokens), int64(a.num_experts)/int64(ranks)
	if to.Flat {
		local = 1 // one block of rows
	}
	keep(&err, &to.X)(view[byte]("x", uint64(a.x), t*int64(a.hidden)*2))
	keep(&err, &to.TopkIdx)(d.readIDs(uint32(a.flags), uint64(a.topk_idx), t*int64(a.num_topk)))
	keep(&err, &to.ActiveRanks)(mask(uint64(a.active_ranks), int64(a.num_active_ranks)))
	keep(&err, &to.RecvCount)(view[int32]("recv_count", uint64(a.recv_count), local))
	keep(&err, &to.LayoutRange)(view[int64]("layout_range", uint64(a.layout_range), local*int64(ranks)))
	if to.PreReduce || to.Flat && !to.NoRouting {
		keep(&err, &to.TopkWeights)(d.readWeights(uint32(a.flags), uint64(a.topk_weights), t*int64(a.num_topk)))
	}
	for i, width := range to.ExtraRowBytes {
		if width > 0 {
			keep(&err, &to.Extra[i])(view[byte](extraNames[i], uint64(a.extra[i]), t*int64(width)))
		}
	}
	return err
}

// noDevice refuses the fields that only calls on CUDA have.
func noDevice(stream, peersHaveMore, waitNs C.uint64_t) error {
	name, given := "wait_ns", waitNs
	switch {
	case stream|peersHaveMore|waitNs == 0:
		return nil
	case stream != 0:
		name, given = "stream", stream
	case peersHaveMore != 0:
		name, given = "peers_have_more", peersHaveMore
	}
	return invalid("args->%s is %#x, allowed 0 without MW_DEVICE_CUDA", name, uint64(given))
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

func (hostTensors) combine(c *combine, a *C.mw_combine_args_t, b *buffer, h node.Handle) error {
	if err := noDevice(a.stream, 0, a.wait_ns); err != nil {
		return err
	}
	outputs, row, err := b.CombineBytes(h)
	if err != nil {
		return err
	}
	to, t, k := &c.args, int64(a.num_tokens), int64(a.num_topk)
	keep(&err, &to.X)(view[byte]("x", uint64(a.x), outputs))
	keep(&err, &to.TopkIdx)(c.readIDs(uint32(a.flags), uint64(a.topk_idx), t*k))
	keep(&err, &to.TopkWeights)(c.readWeights(uint32(a.flags), uint64(a.topk_weights), t*k))
	keep(&err, &to.Out)(view[byte]("out", uint64(a.out), t*row))
	keep(&err, &to.ActiveRanks)(mask(uint64(a.active_ranks), int64(a.num_active_ranks)))
	return err
}

func (hostTensors) result(d *dispatch) {
	r, out := &d.res, &d.out
	base := r.Slab.Bytes(0, r.Slab.SizeBytes())
	out.memory_address, out.memory_bytes = C.uint64_t(addressOf(base)), C.uint64_t(len(base))
	out.recv_x, out.src_info = C.uint64_t(addressOf(r.RecvX)), C.uint64_t(addressOf(r.SrcInfo))
	out.recv_scales, out.combine_x = present(r.Scales), C.uint64_t(addressOf(r.CombineX))
	if r.PeersHaveMore {
		out.peers_have_more = 1
	}
	if !r.Flat {
		return
	}
	out.recv_topk_idx = present(r.Columns[layout.ColumnTopkIdx])
	out.recv_topk_weights = present(r.Columns[layout.ColumnTopkWeights])
	for i := range out.recv_extra {
		out.recv_extra[i] = present(r.Columns[layout.ColumnExtra+i])
	}
}

func (hostTensors) stream(given C.uint64_t) (uint64, error) { return 0, noDevice(given, 0, 0) }

// scatter reads what the sizes of args are known for.
func (hostTensors) scatter(args *routing.ScatterArgs, a *C.mw_scatter_args_t, r *routed) (err error) {
	if err := noDevice(a.stream, 0, 0); err != nil {
		return err
	}
	t, rows := int64(r.NumTokens()), int64(r.NumRowsIn(args.Layout))
	row, extra := int64(args.RowBytes), int64(args.ExtraBytes)
	keep(&err, &args.X)(view[byte]("x", uint64(a.x), t*row))
	keep(&err, &args.Out)(view[byte]("out", uint64(a.out), rows*row))
	keep(&err, &args.Extra)(view[byte]("extra", uint64(a.extra), t*extra))
	keep(&err, &args.OutExtra)(view[byte]("out_extra", uint64(a.out_extra), rows*extra))
	if args.WithWeights {
		received, _ := r.WeightsIn(args.Layout)
		keep(&err, &args.Weights)(view[float32]("topk_weights", uint64(a.topk_weights), t*int64(r.TopK())))
		keep(&err, &args.OutWeights)(view[float32]("out_weights", uint64(a.out_weights), int64(received)))
	}
	return err
}

func (hostTensors) gather(args *routing.GatherArgs, a *C.mw_gather_args_t, r *routed) (err error) {
	if err := noDevice(a.stream, 0, 0); err != nil {
		return err
	}
	t, rows, h := int64(r.NumTokens()), int64(r.NumRowsIn(args.Layout)), int64(args.Hidden)
	row := args.RowType.RowBytes(h)
	keep(&err, &args.X)(view[byte]("x", uint64(a.x), rows*row))
	keep(&err, &args.Out)(view[byte]("out", uint64(a.out), t*args.OutType.RowBytes(h)))
	for i, address := range a.bias {
		if address != 0 {
			keep(&err, &args.Bias[i])(view[byte](biasNames[i], uint64(address), t*row))
		}
	}
	if args.WithWeights {
		sent, _ := r.WeightsIn(args.Layout)
		keep(&err, &args.Weights)(view[float32]("topk_weights", uint64(a.topk_weights), int64(sent)))
		keep(&err, &args.OutWeights)(view[float32]("out_weights", uint64(a.out_weights), t*int64(r.TopK())))
	}
	return err
}

func (hostTensors) streams() error { return node.ErrNoStreams }

// present is the address of a tensor, 0 if the result has none.
func present(tensor []byte) C.uint64_t {
	if len(tensor) == 0 {
		return 0
	}
	return C.uint64_t(addressOf(tensor))
}
