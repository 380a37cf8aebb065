package node

import (
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/op"
)

// Operation is a call that was not complete when it returned. The zero value is none. All
// methods are safe for concurrent use; none but Pending is for the zero value.
type Operation struct {
	of      unfinished
	serial  uint64 // which of the operations that `of` serves, one after another
	results bool   // of a dispatch with results that are still to come
}

// unfinished is an operation of one engine. A pointer is in it, so that an Operation
// needs no memory of its own.
type unfinished interface {
	wait(serial uint64, until ep.Phase, slice time.Duration) error
	result(res *Result) error
	state(serial uint64) op.State
	cancel(serial uint64)
	close(serial uint64)
}

// Pending reports whether there is an operation.
func (o Operation) Pending() bool { return o.of != nil }

// Wait drives the operation until the phase is reached, or for one slice (negative: no
// limit but its own): ep.ErrInProgress means to call again. An ended operation returns
// its error at every later call. On CUDA Wait launches the second phase and returns.
func (o Operation) Wait(until ep.Phase, slice time.Duration) error {
	return o.of.wait(o.serial, until, slice)
}

// HasResults reports whether Result will find more than the call has returned: that is so
// for a dispatch on the CPU.
func (o Operation) HasResults() bool { return o.results }

// Result copies what is known of a dispatch on the CPU: the addresses from ep.PhaseSent
// on, everything at ep.PhaseDone. On CUDA the call itself has returned it.
func (o Operation) Result(res *Result) error { return o.of.result(res) }

// State returns how far the operation is.
func (o Operation) State() op.State { return o.of.state(o.serial) }

// Cancel gives the operation up and releases its handle. It does nothing to an ended one.
func (o Operation) Cancel() { o.of.cancel(o.serial) }

// Close cancels the operation, if it has not ended, and frees it. It is called once, and
// last: a later call of any method changes nothing, and returns ErrOperationClosed.
func (o Operation) Close() { o.of.close(o.serial) }

// ErrOperationClosed is what Wait on CUDA returns after Close.
var ErrOperationClosed = ep.Invalid("the operation was closed")

// onHost is an operation on the CPU.
type onHost struct{ *cpu.Pending }

func pendingOn(p *cpu.Pending, results bool) Operation {
	if p == nil {
		return Operation{}
	}
	return Operation{of: onHost{p}, results: results}
}

func (o onHost) wait(_ uint64, until ep.Phase, slice time.Duration) error {
	return o.Wait(until, slice)
}
func (o onHost) state(uint64) op.State { return o.State() }
func (o onHost) cancel(uint64)         { o.Cancel() }
func (o onHost) close(uint64)          { o.Cancel() }

func (o onHost) result(res *Result) error {
	err := o.Result(&res.Result)
	res.show()
	return err
}
