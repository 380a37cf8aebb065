package main

import (
	"errors"
	"math"

	"github.com/moewire/moewire/core/internal/libcuda"
)

// phases times dispatches and combines, each by itself, the best of some runs.
// A phase of all ranks goes before the next, of the engine and of the baseline:
// so neither is told from a difference, and both wait as often.
func (g *group) phases(res *result, dispatch, combine func(slot int) error) error {
	res.DispatchUs, res.CombineUs = math.Inf(1), math.Inf(1)
	for range g.o.replays {
		d, c, err := g.phasesOnce(dispatch, combine)
		if err != nil {
			return err
		}
		res.DispatchUs, res.CombineUs = math.Min(res.DispatchUs, d), math.Min(res.CombineUs, c)
	}
	return nil
}

// phasesOnce is the mean of several operations behind one gate.
func (g *group) phasesOnce(dispatch, combine func(slot int) error) (d, c float64, err error) {
	n := g.o.opsPerGraph
	events, destroy, err := g.events(1 + 2*n + len(g.ranks))
	if err != nil {
		return 0, 0, err
	}
	defer destroy()
	marks, done := events[:1+2*n], events[1+2*n:]
	caller := g.lib.NewCaller()
	err = g.gated(marks[0], func() (err error) {
		for i := range n {
			err = errors.Join(err, dispatch(i%g.slots), g.mark(caller, marks[2*i+1], done),
				combine(i%g.slots), g.mark(caller, marks[2*i+2], done))
		}
		return err
	})
	for i := 0; i < n && err == nil; i++ {
		ds, failed := g.between(marks[2*i], marks[2*i+1])
		cs, failedToo := g.between(marks[2*i+1], marks[2*i+2])
		d, c, err = d+ds/float64(n), c+cs/float64(n), errors.Join(failed, failedToo)
	}
	return d, c, err
}

// partNames are the launches' of an operation, in order.
var partNames = [...]string{"send", "receive", "publish", "reduce"}

// parts are rank m's of one operation.
func (m *rank) parts() [len(partNames)]func() error {
	m.dispatch.Slot, m.combine.Slot = 0, 0
	return [...]func() error{
		func() error { return m.Send(&m.dispatch) }, func() error { return m.Receive(&m.dispatch) },
		func() error { return m.Publish(&m.combine) }, func() error { return m.Reduce(&m.combine) },
	}
}

// measureParts times the parts of rank 0's operation, the least of some.
func (g *group) measureParts(res *result) error {
	res.Parts = map[string]float64{}
	events, destroy, err := g.events(2 + len(partNames))
	if err != nil {
		return err
	}
	defer destroy()
	marks := events[1:]
	for range g.o.replays {
		if err := g.gated(events[0], func() error { return g.launchParts(marks) }); err != nil {
			return err
		}
		for i, name := range partNames {
			us, err := g.between(marks[i], marks[i+1])
			if err != nil {
				return err
			}
			if res.Parts[name] == 0 || us < res.Parts[name] {
				res.Parts[name] = us
			}
		}
	}
	return nil
}

// launchParts goes part by part over the ranks, with marks around rank 0's.
func (g *group) launchParts(marks []libcuda.Event) error {
	c, first := g.lib.NewCaller(), g.ranks[0].stream
	err := c.Record(marks[0], first)
	for i := range partNames {
		for r, m := range g.ranks {
			err = errors.Join(err, m.parts()[i]())
			if r == 0 {
				err = errors.Join(err, c.Record(marks[i+1], first))
			}
		}
	}
	return err
}
