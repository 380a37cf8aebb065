// Package op is the state of one operation: pending, then exactly one end.
//
//	Pending -> Done | Failed | Cancelled
package op

import (
	"errors"
	"sync/atomic"
)

// State of an operation.
type State int32

// The states. Every one but Pending is final.
const (
	Pending State = iota
	Done
	Failed
	Cancelled
	ending // an End has won the race and has not written the error yet
)

// ErrCancelled is the error of a cancelled operation that was given no other error.
var ErrCancelled = errors.New("operation was cancelled")

// String names the state.
func (s State) String() string {
	switch s {
	case Pending, ending:
		return "pending"
	case Done:
		return "done"
	case Failed:
		return "failed"
	case Cancelled:
		return "cancelled"
	}
	return "unknown"
}

// Op is one operation. The zero value is pending. Safe for concurrent use.
type Op struct {
	state atomic.Int32
	err   error // written once, before state leaves ending
}

// End moves a pending operation to a final state and reports whether this
// call did. Only the first call has an effect; err is nil exactly for Done.
func (o *Op) End(s State, err error) bool {
	if s <= Pending || s >= ending || !o.state.CompareAndSwap(int32(Pending), int32(ending)) {
		return false
	}
	if s == Cancelled && err == nil {
		err = ErrCancelled
	}
	o.err = err
	o.state.Store(int32(s))
	return true
}

// State returns the present state.
func (o *Op) State() State {
	if s := State(o.state.Load()); s != ending {
		return s
	}
	return Pending
}

// Err returns the error of an ended operation; nil while pending or when done.
func (o *Op) Err() error {
	if o.State() == Pending {
		return nil
	}
	return o.err
}
