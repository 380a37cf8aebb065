package main

import (
	"errors"
	"math"
	"runtime"
	"time"

	"github.com/moewire/moewire/core/internal/libcuda"
)

// result is one line of what was measured. Times are in microseconds, of all
// ranks together.
type result struct {
	Emulated bool   `json:"emulated,omitempty"`
	What     string `json:"what"`
	Code     string `json:"code"`
	NumSMs   int    `json:"num_sms"`
	Ranks    int    `json:"ranks"`
	Tokens   int    `json:"tokens_per_rank"`
	Hidden   int    `json:"hidden"`
	TopK     int    `json:"topk"`
	Experts  int    `json:"experts"`
	FP8      bool   `json:"fp8"`
	Slots    int    `json:"slots"`
	Loads    int    `json:"loads,omitempty"` // the variant that was forced

	CopyGBps float64 `json:"copy_gb_per_s"` // read and written, of a plain device copy

	DispatchUs float64 `json:"dispatch_us"` // per operation; all ranks' before any's combine
	CombineUs  float64 `json:"combine_us"`
	TotalUs    float64 `json:"dispatch_and_combine_us"` // in graphs; the baseline has none

	// Launching took longer than the longest gate: times have some of it.
	LaunchesCounted bool `json:"launches_counted"`

	DispatchBytes int64   `json:"dispatch_bytes"` // that must be read and written at least
	CombineBytes  int64   `json:"combine_bytes"`
	DispatchFloor float64 `json:"dispatch_of_floor"` // floor by time: 1 is the copy's speed
	CombineFloor  float64 `json:"combine_of_floor"`

	Parts map[string]float64 `json:"rank_0_parts_us"` // plain launches, of rank 0's stream

	HostUsPerLaunch float64 `json:"host_us_per_launch"`
	AllocsPerOp     float64 `json:"go_allocations_per_op"`
}

// numLaunches of a dispatch and a combine.
const numLaunches = 6

func run(o *options) (res *result, err error) {
	g, err := open(o)
	if g != nil {
		defer func() { err = errors.Join(err, g.close()) }()
	}
	if err != nil {
		return nil, err
	}
	if err := g.check(); err != nil {
		return nil, err
	}
	res = g.result("moewire", g.code)
	for _, f := range []func(*result) error{g.measureCopy, g.measurePhases, g.measureGraphs, g.measureParts, g.measureHost} {
		if err := f(res); err != nil {
			return nil, err
		}
	}
	g.floors(res)
	res.LaunchesCounted = g.gate.early
	return res, g.check()
}

func (g *group) measurePhases(res *result) error {
	return g.phases(res, g.dispatch, g.combine)
}

func (g *group) result(what, code string) *result {
	o := g.o
	return &result{
		Emulated: o.emulated, What: what, Code: code, NumSMs: g.d.NumSMs, Ranks: o.ranks, Tokens: o.tokens,
		Hidden: o.hidden, TopK: o.topK, Experts: o.experts, FP8: o.fp8, Slots: g.slots, Loads: o.loads,
	}
}

// floors are what this format's rows need: each row of x is read once and
// stored for every expert, each output is read once, each result is stored once.
func (g *group) floors(res *result) {
	tokens, h := int64(g.o.tokens*g.o.ranks), int64(g.o.hidden)
	stored := g.slab.RowBytes
	if g.o.fp8 {
		stored += g.slab.Groups() * 4
	}
	res.DispatchBytes = tokens*2*h + g.distinct*stored
	res.CombineBytes = g.distinct*2*h + tokens*2*h
	usPerByte := 1 / (res.CopyGBps * 1e3)
	res.DispatchFloor = float64(res.DispatchBytes) * usPerByte / res.DispatchUs
	res.CombineFloor = float64(res.CombineBytes) * usPerByte / res.CombineUs
}

// timed runs f behind the gate, until all streams are done.
func (g *group) timed(f func() error) (us float64, err error) {
	c := g.lib.NewCaller()
	events, destroy, err := g.events(len(g.ranks) + 2)
	if err != nil {
		return 0, err
	}
	defer destroy()
	begin, end, done := events[0], events[1], events[2:]
	if err := g.gated(begin, func() error { return errors.Join(f(), g.mark(c, end, done)) }); err != nil {
		return 0, err
	}
	return g.between(begin, end)
}

// between is the time from one event to another, in microseconds.
func (g *group) between(from, to libcuda.Event) (float64, error) {
	ms, err := g.lib.EventElapsed(from, to)
	return float64(ms) * 1e3, err
}

// measureCopy is the best of some plain copies on the device.
func (g *group) measureCopy(res *result) error {
	n := uint64(g.o.copyBytes) / 2
	memory, err := g.d.Alloc(2 * n)
	if err != nil {
		return err
	}
	defer memory.Close()
	from := libcuda.DevicePtr(memory.Address())
	for range 5 {
		us, err := g.timed(func() error {
			return g.lib.CopyAsync(from+libcuda.DevicePtr(n), from, n, g.ranks[0].stream)
		})
		if err != nil {
			return err
		}
		if us > 0 {
			res.CopyGBps = math.Max(res.CopyGBps, float64(2*n)/us/1e3)
		}
	}
	return nil
}

// measureGraphs is the best of some replays, per operation.
func (g *group) measureGraphs(res *result) (err error) {
	graphs := make([]libcuda.GraphExec, len(g.ranks))
	for i, m := range g.ranks {
		if graphs[i], err = g.record(m); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, g.lib.GraphExecDestroy(graphs[i])) }()
	}
	best := math.Inf(1)
	for range g.o.replays {
		us, err := g.timed(func() (err error) {
			for i, m := range g.ranks {
				err = errors.Join(err, g.lib.GraphLaunch(graphs[i], m.stream))
			}
			return err
		})
		if err != nil {
			return err
		}
		best = math.Min(best, us/float64(g.o.opsPerGraph))
	}
	res.TotalUs = best
	return nil
}

func (g *group) record(m *rank) (exec libcuda.GraphExec, err error) {
	if err := g.lib.BeginCapture(m.stream, libcuda.CaptureModeThreadLocal); err != nil {
		return 0, err
	}
	for i := range g.o.opsPerGraph {
		err = errors.Join(err, m.all(i%g.slots))
	}
	captured, failed := g.lib.EndCapture(m.stream)
	if err = errors.Join(err, failed); err != nil {
		return 0, err
	}
	exec, err = g.lib.GraphInstantiate(captured)
	return exec, errors.Join(err, g.lib.GraphDestroy(captured))
}

// measureHost times the calls that launch, and counts what they allocate, behind the
// first ones, in which the runtime may get itself something.
func (g *group) measureHost(res *result) error {
	var spent time.Duration
	var before, after runtime.MemStats
	var allocs uint64
	for i := range g.o.hostOps + 1 {
		runtime.ReadMemStats(&before)
		begin := time.Now()
		for _, m := range g.ranks {
			if err := m.all(0); err != nil {
				return err
			}
		}
		took := time.Since(begin)
		runtime.ReadMemStats(&after)
		if i > 0 {
			spent += took
			allocs += after.Mallocs - before.Mallocs
		}
		if err := g.sync(); err != nil {
			return err
		}
	}
	ops := float64(g.o.hostOps * len(g.ranks))
	res.HostUsPerLaunch = float64(spent.Nanoseconds()) / 1e3 / ops / numLaunches
	res.AllocsPerOp = float64(allocs) / ops
	return nil
}
