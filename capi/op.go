package main

// #include "internal.h"
import "C"

import (
	"errors"

	"github.com/moewire/moewire/core/ep"
)

// operation is a mw_op_t: a call that was not complete when it returned.
type operation struct {
	b *buffer
	p *ep.Pending
	d *dispatch // nil for a combine
}

var ops = newTable[*operation]("operation")

//export mwiOpWait
func mwiOpWait(id uint64, phase int32, timeoutUs int64) C.mw_status_t {
	o, err := ops.get(id)
	if err != nil {
		return report(err)
	}
	return guard(o.b, func() error {
		until, err := phaseOf(phase)
		if err != nil {
			return err
		}
		slice, err := micros("timeout_us", timeoutUs)
		if err != nil {
			return err
		}
		err = o.p.Wait(until, slice)
		if o.d != nil && err == nil {
			o.d.write(o.b)
		}
		return err
	})
}

//export mwiOpCancel
func mwiOpCancel(id uint64) C.mw_status_t {
	o, err := ops.get(id)
	if err != nil {
		return report(err)
	}
	return guard(o.b, func() error {
		o.p.Cancel()
		return nil
	})
}

//export mwiOpClose
func mwiOpClose(id uint64) C.mw_status_t {
	o, err := ops.take(id)
	if err != nil {
		return report(err)
	}
	return guard(nil, func() error {
		o.p.Cancel()
		return nil
	})
}

//export mwiBufferCounters
func mwiBufferCounters(id uint64, out *C.mw_counters_t) C.mw_status_t {
	b, err := buffers.get(id)
	if err != nil {
		return report(err)
	}
	return guard(b, func() error {
		e, err := b.connected()
		if err != nil {
			return err
		}
		c := e.Counters()
		out.num_ranks = C.uint32_t(e.NumRanks())
		out.num_dispatches, out.num_combines = C.uint64_t(c.NumDispatches), C.uint64_t(c.NumCombines)
		out.num_rows_sent, out.num_rows_received = C.uint64_t(c.NumRowsSent), C.uint64_t(c.NumRowsReceived)
		out.num_rows_reduced = C.uint64_t(c.NumRowsReduced)
		out.num_bytes_placed, out.num_bytes_reduced = C.uint64_t(c.NumBytesPlaced), C.uint64_t(c.NumBytesReduced)
		out.num_bytes_copied, out.slab_bytes = C.uint64_t(c.NumBytesCopied), C.uint64_t(c.SlabBytes)
		out.wait_ns = C.uint64_t(c.Wait)
		for r := range c.NumRowsSentTo {
			out.num_rows_sent_to[r] = C.uint64_t(c.NumRowsSentTo[r])
			out.wait_ns_for[r] = C.uint64_t(c.WaitFor[r])
		}
		return nil
	})
}

// errNotBuilt is why a carrier or device is absent from this version.
var errNotBuilt = errors.New("this version of Moewire has no such part yet")
