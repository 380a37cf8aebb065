package node

import (
	"errors"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
)

// Handle names one dispatch of a buffer. 0 is none.
type Handle uint64

// Result says where the rows of a dispatch are: on the CPU in the slices of ep.Result, on
// CUDA at the addresses of Device.
type Result struct {
	Handle Handle // 0: the dispatch has not been sent
	ep.Result
	Device cuda.Result
}

// Stream says where on the device a call takes place that belongs to a handle. The zero
// value is the stream of the handle's latest call, and the only one on the CPU.
type Stream struct {
	kind   streamKind
	handle uint64
}

type streamKind int

const (
	streamLatest streamKind = iota
	streamGiven
	streamNone
)

// OnStream is a stream of the driver, a CUstream as a number.
func OnStream(handle uint64) Stream { return Stream{streamGiven, handle} }

// NoStream makes Release launch nothing, for the handle of a dispatch that was recorded
// into a graph: see cuda.Buffer.LeaveToGraph.
func NoStream() Stream { return Stream{kind: streamNone} }

// calls are the operations of an engine. Each returns errNoCore without a core.
type calls interface {
	dispatch(a *ep.DispatchArgs, res *Result, until ep.Phase, slice time.Duration) (Operation, error)
	combine(h Handle, a *ep.CombineArgs, until ep.Phase, slice time.Duration) (Operation, error)
	combineBytes(h Handle) (outputs, row int64, err error)
	combineBuffer(h Handle, on Stream, slice time.Duration) (CombineBuffer, error)
	release(h Handle, on Stream) error
}

var errNoCore = errors.New("no core")

// checked replaces errNoCore.
func (b *Buffer) checked(err error) error {
	if err == errNoCore {
		return b.noCore()
	}
	return err
}

// Dispatch sends this rank's rows to the experts of their tokens, and waits for the rows
// of all other ranks, until the phase is reached or the slice has passed (negative: no
// limit). See cpu.Buffer.Dispatch; on CUDA it launches that and returns, see
// cuda.Buffer.Dispatch. The operation is pending when something is left to wait for.
func (b *Buffer) Dispatch(a *ep.DispatchArgs, res *Result, until ep.Phase, slice time.Duration) (Operation, error) {
	res.Handle, res.Memory, res.Slab = 0, nil, nil // not those of an earlier dispatch
	o, err := b.engine.dispatch(a, res, until, slice)
	return o, b.checked(err)
}

// Combine brings expert outputs back to the tokens of a dispatch and reduces them. See
// cpu.Buffer.Combine; on CUDA, cuda.Buffer.Combine.
func (b *Buffer) Combine(h Handle, a *ep.CombineArgs, until ep.Phase, slice time.Duration) (Operation, error) {
	o, err := b.engine.combine(h, a, until, slice)
	return o, b.checked(err)
}

// CombineBytes returns the size of a handle's expert outputs, and of one row of a
// combine's result. It is for the CPU; on CUDA the memory is not looked at, and both are 0.
func (b *Buffer) CombineBytes(h Handle) (outputs, row int64, err error) {
	outputs, row, err = b.engine.combineBytes(h)
	return outputs, row, b.checked(err)
}

// CombineBuffer is where expert outputs go so that Combine need not copy them.
type CombineBuffer struct {
	Bytes  []byte // on the CPU
	Device uint64 // on CUDA, the address
}

// CombineBuffer waits until no rank reads the outputs of an earlier combine of the handle,
// for one slice at most: ep.ErrInProgress means to call again. On CUDA the stream waits.
func (b *Buffer) CombineBuffer(h Handle, on Stream, slice time.Duration) (CombineBuffer, error) {
	c, err := b.engine.combineBuffer(h, on, slice)
	return c, b.checked(err)
}

// Release tells every rank that this rank is done with a handle. Its rows may be
// overwritten from now on; on CUDA, from when the stream reaches this.
func (b *Buffer) Release(h Handle, on Stream) error { return b.checked(b.engine.release(h, on)) }
