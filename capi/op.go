package main

// #include "internal.h"
import "C"

import (
	"errors"
	"sync"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/node"
	"github.com/moewire/moewire/core/op"
)

// operation is a mw_op_t: a call that was not complete when it returned.
type operation struct {
	b *buffer
	node.Operation
	result *result // nil: nothing is left to write
}

// result is what an operation still has to write to its caller's memory.
type result struct {
	mu sync.Mutex // guards writes to d; never held during a wait
	d  *dispatch  // nil once it is complete
}

func resultOf(o node.Operation, d *dispatch) *result {
	if !o.HasResults() {
		return nil
	}
	return &result{d: d}
}

// wait drives the operation and keeps the caller's result up to date until it
// is complete.
func (o *operation) wait(id uint64, until ep.Phase, slice time.Duration) error {
	if err := o.Wait(until, slice); errors.Is(err, node.ErrOperationClosed) {
		return ops.missing(id)
	} else if err != nil || o.result == nil {
		return err
	}
	return o.result.update(o)
}

func (r *result) update(o *operation) error {
	ended := o.State() != op.Pending
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.d == nil {
		return nil
	}
	if err := o.Result(&r.d.res); err != nil {
		return err
	}
	if err := r.d.write(o.b); err != nil {
		return err
	}
	if ended {
		r.d = nil
	}
	return nil
}

// close cancels the operation. Afterwards the library does not write to the caller's
// memory.
func (o *operation) close() {
	o.Close()
	if r := o.result; r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.d = nil
	}
}

var ops = newTable[operation]("operation")

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
		o.Cancel()
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
		o.close()
		return nil
	})
}
