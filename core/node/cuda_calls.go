package node

import (
	"fmt"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
)

// slotUse is the latest dispatch in a slot.
type slotUse struct {
	handle   cuda.Handle
	stream   uint64 // the stream of the handle's latest call
	combineX uint64
}

// use notes which dispatch has a slot now: the latest one. Its goroutine may come here
// before that of the dispatch that it has replaced.
func (g *onCUDA) use(res *cuda.Result, stream uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := &g.slots[res.Slot]; res.Handle > s.handle {
		*s = slotUse{handle: res.Handle, stream: stream, combineX: res.CombineX}
	}
}

// forget clears the slots, for a new core, which numbers its handles from the first one
// again.
func (g *onCUDA) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slots = [len(g.slots)]slotUse{}
}

// useOf finds the dispatch of a handle; false if its slot serves a later one.
func (g *onCUDA) useOf(h cuda.Handle, f func(*slotUse)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.slots {
		if g.slots[i].handle == h {
			f(&g.slots[i])
			return true
		}
	}
	return false
}

// dispatch launches a dispatch: its first phase or both. There is nothing to wait for, so
// a slice has no meaning.
func (g *onCUDA) dispatch(a *ep.DispatchArgs, res *Result, until ep.Phase, _ time.Duration) (Operation, error) {
	b := g.buffer.Load()
	if b == nil {
		return Operation{}, errNoCore
	}
	if err := b.Dispatch(a, &res.Device, until); err != nil {
		return Operation{}, err
	}
	g.use(&res.Device, a.Device.Stream)
	res.Handle, res.Memory = Handle(res.Device.Handle), &g.memory
	if until == ep.PhaseDone {
		return Operation{}, nil
	}
	return g.promise(second{core: b, handle: res.Device.Handle, stream: a.Device.Stream}), nil
}

// combine launches a combine: its first phase or both.
func (g *onCUDA) combine(h Handle, a *ep.CombineArgs, until ep.Phase, _ time.Duration) (Operation, error) {
	b := g.buffer.Load()
	if b == nil {
		return Operation{}, errNoCore
	}
	if err := g.checkInPlace(cuda.Handle(h), a); err != nil {
		return Operation{}, err
	}
	ticket, err := b.Combine(cuda.Handle(h), a, until)
	if err != nil {
		return Operation{}, err
	}
	g.useOf(cuda.Handle(h), func(s *slotUse) { s.stream = a.Device.Stream })
	if until == ep.PhaseDone {
		return Operation{}, nil
	}
	return g.promise(second{core: b, ticket: ticket, stream: a.Device.Stream}), nil
}

// checkInPlace checks that with ZeroCopy X is the combine buffer.
func (g *onCUDA) checkInPlace(h cuda.Handle, a *ep.CombineArgs) (err error) {
	if a.ZeroCopy && a.Device != nil { // without addresses the core refuses the call
		g.useOf(h, func(s *slotUse) {
			if x := a.Device.X; s.combineX != x {
				err = ep.Invalid("x is at %#x, allowed with zero_copy: the handle's combine buffer, at %#x", x, s.combineX)
			}
		})
	}
	return err
}

func (g *onCUDA) combineBytes(Handle) (outputs, row int64, err error) { return 0, 0, nil }

// combineBuffer has the stream wait for the ranks that read there.
func (g *onCUDA) combineBuffer(h Handle, on Stream, _ time.Duration) (CombineBuffer, error) {
	b := g.buffer.Load()
	if b == nil {
		return CombineBuffer{}, errNoCore
	}
	stream, _ := g.streamOf(cuda.Handle(h), on) // if there is none, the core returns the error
	at, err := b.CombineX(cuda.Handle(h), stream)
	return CombineBuffer{Device: at}, err
}

// streamOf returns the driver's stream. It returns false if the handle's slot serves a
// later dispatch.
func (g *onCUDA) streamOf(h cuda.Handle, on Stream) (stream uint64, ok bool) {
	ok = g.useOf(h, func(s *slotUse) { stream = s.stream })
	if on.kind == streamGiven {
		stream = on.handle
	}
	return stream, ok
}

func (g *onCUDA) release(h Handle, on Stream) error {
	b := g.buffer.Load()
	if b == nil {
		return errNoCore
	}
	if on.kind == streamNone {
		return b.LeaveToGraph(cuda.Handle(h))
	}
	stream, ok := g.streamOf(cuda.Handle(h), on)
	if !ok {
		return fmt.Errorf("%w: its slot serves a later dispatch", ep.ErrStaleHandle)
	}
	return b.Release(cuda.Handle(h), stream)
}
