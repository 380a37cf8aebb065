package main

// #include "internal.h"
import "C"

import (
	"errors"
	"math"
	"time"
	"unsafe"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/fabric"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
)

// A transfer's id is the number of its first request, which has free lowest bits, with
// the id of its fabric in these bits.
func transferID(o *fabricObject, r op.Ref) uint64 { return r.RequestID(0) | o.id }

func onTransfer(id uint64, f func(o *fabricObject, r op.Ref) error) C.mw_status_t {
	o, _, err := ofFabric("transfer", id)
	if err != nil {
		return report(err)
	}
	return guard(o, func() error { return f(o, op.RefOf(id)) })
}

// amount checks a number before it becomes signed.
func amount(name string, v C.uint64_t) (int64, error) {
	if uint64(v) > math.MaxInt64 {
		return 0, invalid("%s is %d, allowed 0 to %d", name, uint64(v), int64(math.MaxInt64))
	}
	return int64(v), nil
}

func requestOf(o *fabricObject, a *C.mw_transfer_args_t) (r fabric.Request, err error) {
	if a.kind < C.MW_TRANSFER_SEND || a.kind > C.MW_TRANSFER_RECEIVE_IMM {
		return r, invalid("args->kind is %d, allowed %d to %d", uint32(a.kind), C.MW_TRANSFER_SEND, C.MW_TRANSFER_RECEIVE_IMM)
	}
	if a.reserved != 0 {
		return r, invalid("args->reserved is %d, allowed 0", uint32(a.reserved))
	}
	r = fabric.Request{
		Kind: fabric.Kind(a.kind), Peer: endpoint.Peer(a.peer), Imm: uint32(a.imm),
		Remote: transport.RemoteRegion{
			Addr: uint64(a.remote_address), SizeBytes: uint64(a.remote_num_bytes), Key: uint64(a.remote_key),
		},
	}
	if id := uint64(a.region.id); id != 0 {
		if id&maxFabrics != o.id || id>>fabricBits == 0 {
			return r, invalid("args->region %d is not one of fabric %d", id, o.id)
		}
		r.Region = fabric.RegionID(id >> fabricBits)
	}
	if r.Off, err = amount("args->offset", a.offset); err != nil {
		return r, err
	}
	if r.Bytes, err = amount("args->num_bytes", a.num_bytes); err != nil {
		return r, err
	}
	r.RemoteOff, err = amount("args->remote_offset", a.remote_offset)
	return r, err
}

//export mwiTransferPost
func mwiTransferPost(id uint64, args *C.mw_transfer_args_t, transfer *C.uint64_t) C.mw_status_t {
	return onFabric(id, func(o *fabricObject) error {
		r, err := requestOf(o, args)
		if err != nil {
			return err
		}
		ref, err := o.Post(&r)
		if err != nil {
			return err
		}
		*transfer = C.uint64_t(transferID(o, ref))
		return nil
	})
}

//export mwiTransferWait
func mwiTransferWait(id uint64, until int32, timeoutUs int64, result *C.mw_transfer_result_t) C.mw_status_t {
	return onTransfer(id, func(o *fabricObject, ref op.Ref) error {
		if until != C.MW_UNTIL_ENDED && until != C.MW_UNTIL_RELEASED {
			return invalid("until is %d, allowed MW_UNTIL_ENDED and MW_UNTIL_RELEASED", until)
		}
		deadline, err := deadlineOf(timeoutUs)
		if err != nil {
			return err
		}
		res, err := waitUntil(o, ref, until, timeoutUs, deadline)
		if timedOut := errors.Is(err, op.ErrTimedOut); err != nil && !timedOut {
			return err
		} else if timedOut {
			err = errNone
		}
		result.status, result.num_bytes, result.imm = endOf(&res), C.uint64_t(res.NumBytes), C.uint32_t(res.Imm)
		if res.Released {
			result.released = 1
		}
		return err
	})
}

func waitUntil(o *fabricObject, ref op.Ref, until int32, timeoutUs int64, deadline time.Time) (op.Result, error) {
	if timeoutUs == 0 { // this needs no timer
		res, err := o.Look(ref)
		if err == nil && (res.State == op.Pending || until == C.MW_UNTIL_RELEASED && !res.Released) {
			err = op.ErrTimedOut
		}
		return res, err
	}
	if until == C.MW_UNTIL_RELEASED {
		return o.WaitReleased(ref, deadline)
	}
	return o.Wait(ref, deadline)
}

// endOf returns how a transfer has ended, as a status.
func endOf(r *op.Result) C.int32_t {
	switch {
	case r.State == op.Pending:
		return C.MW_IN_PROGRESS
	case r.Err == nil:
		return C.MW_OK
	}
	return C.int32_t(statusOf(r.Err))
}

//export mwiTransferError
func mwiTransferError(id uint64, buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	return onTransfer(id, func(o *fabricObject, ref op.Ref) error {
		res, err := o.Look(ref)
		if err != nil {
			return err
		}
		text := ""
		if res.Err != nil {
			text = res.Err.Error()
		}
		return copyOut([]byte(text), unsafe.Pointer(buf), size, length)
	})
}

//export mwiTransferCancel
func mwiTransferCancel(id uint64) C.mw_status_t {
	return onTransfer(id, func(o *fabricObject, ref op.Ref) error {
		_, err := o.Cancel(ref)
		return err
	})
}

//export mwiTransferClose
func mwiTransferClose(id uint64) C.mw_status_t {
	return onTransfer(id, func(o *fabricObject, ref op.Ref) error { return o.Drop(ref) })
}
