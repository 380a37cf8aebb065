package main

import (
	"errors"

	"github.com/moewire/moewire/core/device/cuda/gpubench/baseline"
	"github.com/moewire/moewire/core/internal/libcuda"
)

func (o *options) baselineShape() baseline.Shape {
	return baseline.Shape{
		Ranks: o.ranks, Tokens: o.tokens, Hidden: o.hidden, TopK: o.topK, Experts: o.experts, FP8: o.fp8,
	}
}

// runBaseline times the baseline of four copies, on the same tensors.
func runBaseline(o *options) (res *result, err error) {
	g, err := open(o)
	if g != nil {
		defer func() { err = errors.Join(err, g.close()) }()
	}
	if err != nil {
		return nil, err
	}
	code, name, err := o.onlyCompiled(g.lib, baseline.Compile)
	if err != nil {
		return nil, err
	}
	var tensors []baseline.Tensors
	var streams []libcuda.Stream
	for _, m := range g.ranks {
		tensors = append(tensors, baseline.Tensors{
			X: m.dispatch.X, TopkIdx: m.dispatch.TopkIdx, Weights: m.combine.Weights, Out: m.combine.Out,
		})
		streams = append(streams, m.stream)
	}
	e, err := baseline.New(g.lib, code, o.baselineShape(), tensors, streams)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	res = g.result("four copies (our own writing)", name)
	return res, errors.Join(g.measureCopy(res), g.measureBaseline(res, e))
}

// measureBaseline times it as the engine's phases are.
func (g *group) measureBaseline(res *result, e *baseline.Exchange) error {
	err := g.phases(res, func(int) error { return e.Dispatch() }, func(int) error { return e.Combine() })
	if err != nil {
		return err
	}
	g.floors(res)
	res.LaunchesCounted = g.gate.early
	return g.sumsOfFilled(e)
}

// sumsOfFilled compares sums where all outputs are one value.
func (g *group) sumsOfFilled(e *baseline.Exchange) error {
	if err := errors.Join(e.Dispatch(), g.sync()); err != nil {
		return err
	}
	n := uint64(g.o.experts) * uint64(g.o.tokens) * uint64(2*g.o.hidden)
	for r, m := range g.ranks {
		if err := g.lib.MemsetAsync(libcuda.DevicePtr(e.Packed(r)), filling, n, m.stream); err != nil {
			return err
		}
	}
	if err := errors.Join(e.Combine(), g.sync()); err != nil {
		return err
	}
	for r, m := range g.ranks {
		if err := g.checkSums(r, m); err != nil {
			return err
		}
	}
	return nil
}
