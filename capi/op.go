package main

// #include "internal.h"
import "C"

import (
	"sync"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/op"
)

// operation is a mw_op_t: a call that was not complete when it returned.
type operation struct {
	b     *buffer
	p     *ep.Pending
	later *later // on CUDA, in place of p; there an operation serves again once it is closed

	mu sync.Mutex // guards writes to d; never held during a wait
	d  *dispatch  // nil for a combine, and once its result is complete
}

// wait drives the operation and keeps the caller's result up to date until it
// is complete.
func (o *operation) wait(id uint64, until ep.Phase, slice time.Duration) error {
	if o.later != nil {
		if until == ep.PhaseSent {
			return nil
		}
		return o.later.launch(id)
	}
	if err := o.p.Wait(until, slice); err != nil {
		return err
	}
	ended := o.p.State() != op.Pending
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.d == nil {
		return nil
	}
	if err := o.p.Result(&o.d.res); err != nil {
		return err
	}
	if err := o.d.write(o.b); err != nil {
		return err
	}
	if ended {
		o.d = nil
	}
	return nil
}

// cancel cancels the operation and releases its handle, unless the operation has ended.
func (o *operation) cancel(id uint64) {
	if o.later == nil {
		o.p.Cancel()
		return
	}
	o.later.cancel(id)
}

// close cancels the operation. The library does not write to the caller's memory after
// it.
func (o *operation) close(id uint64) {
	if o.later != nil {
		o.later.close(id, o)
		return
	}
	o.p.Cancel()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.d = nil
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
		return o.wait(id, until, slice)
	})
}

//export mwiOpCancel
func mwiOpCancel(id uint64) C.mw_status_t {
	o, err := ops.get(id)
	if err != nil {
		return report(err)
	}
	return guard(o.b, func() error {
		o.cancel(id)
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
		o.close(id)
		return nil
	})
}
