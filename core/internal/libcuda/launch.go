package libcuda

import (
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
)

// Caller makes the calls of the hot path. They allocate nothing. One goroutine
// at a time.
type Caller struct {
	lib                  *Library
	launch, record, wait *dl.Hot
	query, push, pop     *dl.Hot
	args                 [dl.MaxHotArgs]uintptr
	extra                [5]uintptr
	numBytes             uint64
	status               int32
	popped               Context
}

// NewCaller makes a Caller.
func (l *Library) NewCaller() *Caller {
	return &Caller{
		lib:    l,
		launch: l.call.launchKernel.Hot(), record: l.call.eventRecord.Hot(),
		wait: l.call.streamWaitEvent.Hot(), query: l.call.streamIsCapturing.Hot(),
		push: l.call.ctxPushCurrent.Hot(), pop: l.call.ctxPopCurrent.Hot(),
	}
}

// Grid is the shape of a launch.
type Grid struct {
	Blocks, Threads uint32 // in one dimension
	SharedBytes     uint32 // dynamic
}

// Launch queues a kernel on a stream. params is the block of its parameters, as
// the kernel lays it out; the driver copies it.
func (c *Caller) Launch(f Function, g Grid, s Stream, params unsafe.Pointer, numBytes uintptr) error {
	// Caller is on the heap and params lives as long as this call, so that the
	// addresses hold.
	c.numBytes = uint64(numBytes)
	c.extra = [5]uintptr{
		LaunchParamBufferPointer, uintptr(params),
		LaunchParamBufferSize, uintptr(unsafe.Pointer(&c.numBytes)), LaunchParamEnd,
	}
	c.args = [dl.MaxHotArgs]uintptr{
		uintptr(f), uintptr(g.Blocks), 1, 1, uintptr(g.Threads), 1, 1,
		uintptr(g.SharedBytes), uintptr(s), 0, uintptr(unsafe.Pointer(&c.extra)),
	}
	return c.lib.check("cuLaunchKernel", c.launch.CallAll(&c.args))
}

// Record records an event on a stream.
func (c *Caller) Record(e Event, s Stream) error {
	return c.lib.check("cuEventRecord", c.record.Call(uintptr(e), uintptr(s), 0))
}

// Wait makes a stream wait for an event.
func (c *Caller) Wait(s Stream, e Event) error {
	return c.lib.check("cuStreamWaitEvent", c.wait.Call(uintptr(s), uintptr(e), 0))
}

// Capturing reports whether what is given to a stream goes into a graph.
func (c *Caller) Capturing(s Stream) (bool, error) {
	err := c.lib.check("cuStreamIsCapturing", c.query.Call(uintptr(s), uintptr(unsafe.Pointer(&c.status)), 0))
	return c.status == CaptureStatusActive, err
}

// Push is Library.PushContext.
func (c *Caller) Push(ctx Context) error {
	return c.lib.check("cuCtxPushCurrent_v2", c.push.Call(uintptr(ctx), 0, 0))
}

// Pop is Library.PopContext.
func (c *Caller) Pop() error {
	return c.lib.check("cuCtxPopCurrent_v2", c.pop.Call(uintptr(unsafe.Pointer(&c.popped)), 0, 0))
}
