package routing

import (
	"fmt"
	"sync"
	"time"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/membership"
)

// Engine is what a group needs of a buffer: *cpu.Buffer has it, but for the type of a pending
// operation.
type Engine interface {
	Rank() int
	NumRanks() int
	// Epoch is the epoch that this rank has joined.
	Epoch() membership.Epoch
	// NoneHeld returns ep.ErrHeld while a caller holds a slot.
	NoneHeld() error
	// OneWayTokens is M of one-way operations with such rows.
	OneWayTokens(hidden int, extraRowBytes [protocol.NumExtras]int) (int, error)
	// Dispatch returns no pending operation, not a nil one of some type, when there is none.
	Dispatch(a *ep.DispatchArgs, res *ep.Result, until ep.Phase, slice time.Duration) (Pending, error)
	Release(n uint64) error
	// LeaveEpoch ends this rank's part in its epoch, if it is still this one.
	LeaveEpoch(epoch membership.Epoch, why error)
	// Surrender is LeaveEpoch for rows in this rank's memory that cannot be, and counts them.
	Surrender(epoch membership.Epoch, why error)
}

// Device is an engine whose rows lie in the memory of a device. What one call launches is on one
// stream, in order.
type Device interface {
	Engine
	// Ready comes before all else of an exchange. It refuses a stream on which none can run.
	Ready(stream uint64) error
	// Room is memory for the rows of a round, with their columns behind.
	Room() uint64
	Move(m *ep.RowMoves, stream uint64) error
	Sum(s *ep.RowSums, stream uint64) error
	Clear(at uint64, n int, stream uint64) error
	// Finish waits until all that was launched is done, for one slice at most.
	Finish(stream uint64, slice time.Duration) error
	// Settle is Finish after a call that has failed: no memory of the caller's is in use any more.
	Settle(stream uint64) error
}

// Pending is an operation of an engine that has not ended.
type Pending interface {
	Wait(until ep.Phase, slice time.Duration) error
	Result(res *ep.Result) error
}

// Group makes the routings of a buffer and runs their calls, one at a time, in the order in which
// they were made: Make, Scatter and Gather make one. All methods are safe for concurrent use. All
// ranks make the same calls in the same order.
type Group struct {
	engine Engine
	device Device         // the engine, if its rows are on a device; else nil
	kern   device.Kernels // nil on a device
	calls  queue

	closing sync.Once

	// What follows belongs to the call that runs.
	to          []int64 // destinations of one round's rows
	listed      []int32 // which rows these are
	weightBytes []byte  // their weights
	rows        []byte  // their sums
	jobs        []device.ReduceJob
	copies      []device.CopyJob
	ones        []float32
	cursor      []int
	moves       [2][]ep.RowMove // of rows, of weights
	terms       []int32
}

// NewGroup makes the group of a buffer. It owns kern, and no other code may use it.
func NewGroup(e Engine, kern device.Kernels) *Group {
	return &Group{engine: e, kern: kern, listed: []int32{}} // nil would mean all rows
}

// NewDeviceGroup is NewGroup of a buffer on a device: rows of its calls are there.
func NewDeviceGroup(d Device) *Group { return &Group{engine: d, device: d} }

// Close ends all calls, and the kernels' threads. Later calls return ep.ErrClosed. It
// comes before the engine is closed: a call may be reading rows in the engine's memory. Idempotent.
func (g *Group) Close() {
	g.closing.Do(func() {
		for _, c := range g.calls.close() {
			c.Cancel()
		}
		if g.kern != nil {
			g.kern.Close()
		}
		g.to, g.listed, g.weightBytes, g.rows, g.jobs, g.copies, g.ones, g.cursor = nil, nil, nil, nil, nil, nil, nil, nil
		g.moves, g.terms = [2][]ep.RowMove{}, nil
	})
}

// inEpoch refuses what was made in another epoch.
func (g *Group) inEpoch(epoch membership.Epoch) error {
	if now := g.engine.Epoch(); now != epoch {
		return fmt.Errorf("%w: the routing is of epoch %d, and the group is in epoch %d: make a new one", ep.ErrStaleHandle, epoch, now)
	}
	return nil
}
