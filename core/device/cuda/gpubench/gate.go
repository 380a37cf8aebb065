package main

import (
	"errors"

	"github.com/moewire/moewire/core/internal/libcuda"
)

// gate is work on the device that everything timed waits for: while it lasts the
// host launches all of it, so that no time has the host's launching in it.
type gate struct {
	from, numBytes uint64 // of half the memory, which is copied to the other
	copies         int
	early          bool // it could not be made long enough
}

const (
	gateBytes     = 256 << 20
	gateCopies    = 8
	maxGateCopies = 1024
)

func (g *group) makeGate() error {
	n := uint64(min(gateBytes, g.o.copyBytes)) / 2
	memory, err := g.d.Alloc(2 * n)
	if err != nil {
		return err
	}
	g.closers = append(g.closers, memory.Close)
	g.gate = gate{from: memory.Address(), numBytes: n, copies: gateCopies}
	return nil
}

// gated has f launch behind the gate, and waits until all of it is done. If the
// gate had opened before f was through, all is run anew with a longer one. opened
// is recorded on every stream when it opens.
func (g *group) gated(opened libcuda.Event, f func() error) error {
	c := g.lib.NewCaller()
	for {
		err := errors.Join(g.shut(), g.release(c, opened), f())
		late, failed := g.opened(opened)
		if err = errors.Join(err, failed, g.sync()); err != nil || !late || g.o.emulated {
			return err
		}
		if g.gate.copies >= maxGateCopies {
			g.gate.early = true
			return nil
		}
		g.gate.copies *= 2
	}
}

// opened says whether the gate is open already.
func (g *group) opened(e libcuda.Event) (bool, error) {
	if g.o.emulated {
		return false, nil
	}
	err := g.lib.EventQuery(e)
	if errors.Is(err, libcuda.ErrNotReady) {
		return false, nil
	}
	return err == nil, err
}

// shut queues the gate's work on the first stream.
func (g *group) shut() (err error) {
	from := libcuda.DevicePtr(g.gate.from)
	for range g.gate.copies {
		to := from + libcuda.DevicePtr(g.gate.numBytes)
		err = errors.Join(err, g.lib.CopyAsync(to, from, g.gate.numBytes, g.ranks[0].stream))
	}
	return err
}

// release records an event on the first stream, which all others wait for.
func (g *group) release(c *libcuda.Caller, e libcuda.Event) error {
	err := c.Record(e, g.ranks[0].stream)
	for _, m := range g.ranks[1:] {
		err = errors.Join(err, c.Wait(m.stream, e))
	}
	return err
}

// mark records an event once all streams have come as far.
func (g *group) mark(c *libcuda.Caller, e libcuda.Event, done []libcuda.Event) (err error) {
	first := g.ranks[0].stream
	for i, m := range g.ranks {
		err = errors.Join(err, c.Record(done[i], m.stream), c.Wait(first, done[i]))
	}
	return errors.Join(err, g.release(c, e))
}

// events makes some, and what destroys them.
func (g *group) events(n int) (events []libcuda.Event, destroy func(), err error) {
	destroy = func() {
		for _, e := range events {
			_ = g.lib.EventDestroy(e)
		}
	}
	for range n {
		e, err := g.lib.EventCreate(0)
		if err != nil {
			destroy()
			return nil, nil, err
		}
		events = append(events, e)
	}
	return events, destroy, nil
}
