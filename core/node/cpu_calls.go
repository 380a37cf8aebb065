package node

import (
	"time"

	"github.com/moewire/moewire/core/ep"
)

// handleOf returns the handle of an operation's number, and numberOf the reverse.
func handleOf(number uint64) Handle { return Handle(number + 1) }
func numberOf(h Handle) uint64      { return uint64(h) - 1 }

// ErrNoStreams is what a call on the CPU gets that names a stream.
var ErrNoStreams = ep.Invalid("buffer is on the CPU, which has no streams")

func (g *onCPU) dispatch(a *ep.DispatchArgs, res *Result, until ep.Phase, slice time.Duration) (Operation, error) {
	e := g.buffer.Load()
	if e == nil {
		return Operation{}, errNoCore
	}
	p, err := e.Dispatch(a, &res.Result, until, slice)
	res.show()
	return pendingOn(p, true), err
}

// show says what the slab of a dispatch on the CPU says, once there is one.
func (r *Result) show() {
	if r.Slab != nil {
		r.Handle = handleOf(r.Op)
	}
}

func (g *onCPU) combine(h Handle, a *ep.CombineArgs, until ep.Phase, slice time.Duration) (Operation, error) {
	e := g.buffer.Load()
	if e == nil {
		return Operation{}, errNoCore
	}
	p, err := e.Combine(numberOf(h), a, until, slice)
	return pendingOn(p, false), err
}

func (g *onCPU) combineBytes(h Handle) (outputs, row int64, err error) {
	e := g.buffer.Load()
	if e == nil {
		return 0, 0, errNoCore
	}
	return e.CombineBytes(numberOf(h))
}

func (g *onCPU) combineBuffer(h Handle, on Stream, slice time.Duration) (CombineBuffer, error) {
	e := g.buffer.Load()
	switch {
	case on != Stream{}:
		return CombineBuffer{}, ErrNoStreams
	case e == nil:
		return CombineBuffer{}, errNoCore
	}
	x, err := e.CombineBuffer(numberOf(h), slice)
	return CombineBuffer{Bytes: x}, err
}

func (g *onCPU) release(h Handle, on Stream) error {
	e := g.buffer.Load()
	switch {
	case on != Stream{}:
		return ErrNoStreams
	case e == nil:
		return errNoCore
	}
	return e.Release(numberOf(h))
}
