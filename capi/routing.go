package main

// #include "internal.h"
import "C"

import (
	"encoding/binary"
	"unsafe"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/node"
)

// routed is a mw_routing_t.
type routed struct {
	*node.Routing
	buffer uint64
}

var routings = newTable[*routed]("routing")

// madeRouting finds a routing that may be used.
func madeRouting(id uint64) (*routed, error) {
	r, err := routings.get(id)
	if err != nil {
		return nil, err
	}
	return r, r.Made()
}

// routing finds a routing that may be used, which must be this buffer's.
func (b *buffer) routing(id uint64) (*routed, error) {
	r, err := madeRouting(id)
	if err == nil && r.buffer != b.id {
		err = invalid("routing %d belongs to buffer %d, this is buffer %d", id, r.buffer, b.id)
	}
	return r, err
}

//export mwiRoutingCreate
func mwiRoutingCreate(id uint64, a *C.mw_routing_args_t, to, opID *C.uint64_t) C.mw_status_t {
	return on(buffers, id, func(b *buffer) error {
		args, err := routingArgs(a, int64(b.NumRanks()))
		if err != nil {
			return err
		}
		if args.Stream, err = b.tensors.stream(a.stream); err != nil {
			return err
		}
		slice, err := micros("slice_us", int64(a.slice_us))
		if err != nil {
			return err
		}
		r, o, err := b.MakeRouting(&args, slice)
		if err == nil || err == ep.ErrInProgress {
			*to = C.uint64_t(routings.add(&routed{r, b.id}))
		}
		return b.inFlight(o, err, opID)
	})
}

// inFlight gives the caller the operation of a call that has begun.
func (b *buffer) inFlight(o node.Operation, err error, opID *C.uint64_t) error {
	if err != nil && err != ep.ErrInProgress {
		return err
	}
	*opID = 0
	if o.Pending() {
		*opID = C.uint64_t(ops.add(operation{b: b, Operation: o}))
	}
	return err
}

func routingArgs(a *C.mw_routing_args_t, ranks int64) (args routing.Args, err error) {
	if a.reserved != 0 {
		return args, invalid("args->reserved is %d, allowed 0", uint32(a.reserved))
	}
	t, k, e := int64(a.num_tokens), int64(a.num_topk), int64(a.num_experts)
	err = inRanges([]ranged{
		{limits.NumTokens, t},
		{limits.Range{Name: limits.TopK.Name, Most: limits.TopK.Most}, k}, // 0: no ids
		{limits.NumExperts, e},
	})
	if err != nil {
		return args, err
	}
	args.NumTokens, args.TopK, args.NumExperts = int(t), int(k), int(e)
	keep(&err, &args.Timeout)(micros("timeout_us", int64(a.timeout_us)))
	keep(&err, &args.TopkIdx)(view[int64]("topk_idx", uint64(a.topk_idx), t*k))
	if a.is_token_in_rank != 0 {
		keep(&err, &args.InRank)(view[byte]("is_token_in_rank", uint64(a.is_token_in_rank), t*ranks))
	}
	if a.num_tokens_per_expert != 0 {
		keep(&err, &args.ExpertCounts)(view[int32]("num_tokens_per_expert", uint64(a.num_tokens_per_expert), e))
	}
	return args, err
}

//export mwiRoutingClose
func mwiRoutingClose(id uint64) C.mw_status_t {
	_, err := routings.take(id)
	return report(err)
}

// onRouting runs an exported function that reads a routing.
func onRouting(id uint64, f func(r *routed) error) C.mw_status_t {
	return guard(nil, func() error {
		r, err := madeRouting(id)
		if err != nil {
			return err
		}
		return f(r)
	})
}

//export mwiRoutingInfo
func mwiRoutingInfo(id uint64, info *C.mw_routing_info_t) C.mw_status_t {
	return onRouting(id, func(r *routed) error {
		info.num_ranks = C.uint32_t(r.NumRanks())
		info.num_tokens, info.num_rows = C.int64_t(r.NumTokens()), C.int64_t(r.NumRows())
		info.num_topk, info.num_experts = C.int64_t(r.TopK()), C.int64_t(r.NumExperts())
		info.num_local_experts = C.int64_t(len(r.Counts()))
		info.num_bytes = C.uint64_t(r.Bytes())
		return nil
	})
}

//export mwiRoutingNumRows
func mwiRoutingNumRows(id uint64, alignment int64, numRows *C.int64_t) C.mw_status_t {
	return onRouting(id, func(r *routed) error {
		n, err := r.NumExpandedRows(int(alignment))
		if err == nil {
			*numRows = C.int64_t(n)
		}
		return err
	})
}

//export mwiRoutingRead
func mwiRoutingRead(id uint64, what uint32, alignment int64, buf unsafe.Pointer, size uint64, length *C.uint64_t) C.mw_status_t {
	return onRouting(id, func(r *routed) error {
		if what != C.MW_ROUTING_EXPANDED_ROWS && alignment != 0 {
			return invalid("expert_alignment is %d, allowed 0 without MW_ROUTING_EXPANDED_ROWS", alignment)
		}
		table, err := r.table(what, int(alignment))
		if err != nil {
			return err
		}
		return table.copyOut(buf, size, length)
	})
}

// table32 is one of a routing's tables.
type table32 struct {
	values  []int32
	is64Bit bool // int64
}

func (r *routed) table(what uint32, alignment int) (t table32, err error) {
	switch what {
	case C.MW_ROUTING_COUNTS:
		t.values = r.Counts()
	case C.MW_ROUTING_LOCAL_IDS:
		t = table32{r.LocalIDs(), true}
	case C.MW_ROUTING_SOURCE_TOKENS:
		t.values = r.SourceTokens()
	case C.MW_ROUTING_ROWS_FROM:
		t = table32{r.rowsFrom(), true}
	case C.MW_ROUTING_TOKENS_FOR:
		for rank := range r.NumRanks() {
			t.values = append(t.values, int32(r.NumTokensFor(rank)))
		}
	case C.MW_ROUTING_EXPANDED_ROWS:
		t.values, err = r.Expanded(routing.Layout{Expanded: true, Alignment: alignment})
	default:
		err = invalid("what is %d, allowed %d to %d", what, C.MW_ROUTING_COUNTS, C.MW_ROUTING_EXPANDED_ROWS)
	}
	return t, err
}

func (r *routed) rowsFrom() (first []int32) {
	end := 0
	for rank := range r.NumRanks() {
		var begin int
		begin, end = r.RowsFrom(rank)
		first = append(first, int32(begin))
	}
	return append(first, int32(end))
}

// copyOut writes the values, or only their length if buf is NULL.
func (t table32) copyOut(buf unsafe.Pointer, size uint64, length *C.uint64_t) error {
	width := 4
	if t.is64Bit {
		width = 8
	}
	n := uint64(len(t.values) * width)
	*length = C.uint64_t(n)
	if buf == nil {
		return nil
	}
	if size < n {
		return invalid("cap is %d, needed %d", size, n)
	}
	to := unsafe.Slice((*byte)(buf), n)
	for i, v := range t.values {
		if t.is64Bit {
			binary.NativeEndian.PutUint64(to[8*i:], uint64(int64(v)))
		} else {
			binary.NativeEndian.PutUint32(to[4*i:], uint32(v))
		}
	}
	return nil
}
