package routing_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device"
	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/routing"
)

// prefill is a shape of a prefill over 2 ranks.
var prefill = shape{ranks: 2, topK: 8, experts: 64, hidden: 7168}

// fastWorld has the kernels that users have.
func fastWorld(b *testing.B, ranks, most int, numBytes int64) *world {
	w := &world{t: b}
	for _, dom := range oneHost(ranks) {
		rows, local := openKernels(b), openKernels(b)
		buf, err := cpu.New(dom, rows, ep.Config{NumBytes: numBytes})
		require.NoError(b, err)
		g := routing.NewGroup(engine{buf, most}, local)
		b.Cleanup(func() { _ = buf.Close(); g.Close() })
		w.bufs, w.groups = append(w.bufs, buf), append(w.groups, g)
	}
	return w
}

func openKernels(b *testing.B) device.Kernels {
	k, err := kernels.Open(kernels.Options{Width: kernels.Widest})
	require.NoError(b, err)
	return k
}

func prefillCrew(b *testing.B, tokens, most int, numBytes int64) *crew {
	c := &crew{world: fastWorld(b, prefill.ranks, most, numBytes), s: prefill}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range prefill.ranks {
		in := input{tokens: tokens, x: randomBytes(rnd, tokens*2*prefill.hidden)}
		for range tokens * prefill.topK {
			in.ids = append(in.ids, int64(rnd.IntN(prefill.experts)))
		}
		c.ins = append(c.ins, in)
	}
	c.members = make([]*member, prefill.ranks)
	c.each(func(r int) error { return c.makeAgain(r) })
	return c
}

// floor makes the passes of a scatter or a gather and nothing else: every rank stores its rows in
// a slab, and then either copies the slab to its result or adds its rows up.
type floor struct {
	kern       device.Kernels
	x, slab    []byte
	out        []byte
	jobs       []device.ReduceJob
	ones       []float32
	numRows, t int
}

func newFloor(b *testing.B, m *member) *floor {
	rb := 2 * m.s.hidden
	f := &floor{kern: openKernels(b), numRows: m.NumRows(), t: m.NumTokens()}
	b.Cleanup(f.kern.Close)
	f.x, f.slab, f.out = make([]byte, f.numRows*rb), make([]byte, f.numRows*rb), make([]byte, f.numRows*rb)
	for t := range f.t {
		for r := range m.s.ranks {
			f.jobs = append(f.jobs, device.ReduceJob{Row: int64((t + r) % f.numRows)})
			f.ones = append(f.ones, 1)
		}
	}
	return f
}

func (f *floor) scatter() { copy(f.slab, f.x); copy(f.out, f.slab) }

func (f *floor) gather(s shape) {
	copy(f.slab, f.x)
	f.kern.Reduce(&device.ReduceBatch{
		Out: f.out[:f.t*2*s.hidden], Hidden: s.hidden, TopK: s.ranks, Sources: [][]byte{f.slab}, Jobs: f.jobs, Weights: f.ones,
	})
}

// turns times ways of doing the same, in turn, so that all meet the same load of the machine.
type turns struct {
	names []string
	ways  map[string]func(r int) error
	took  map[string][]time.Duration
}

func (w *turns) once(c *crew) {
	for _, name := range w.names {
		start := time.Now()
		c.each(w.ways[name])
		w.took[name] = append(w.took[name], time.Since(start))
	}
}

// least is the shortest time of a way: what it takes while nothing else runs.
func (w *turns) least(name string) time.Duration { return slices.Min(w.took[name]) }

func (w *turns) median(name string) time.Duration {
	all := slices.Sorted(slices.Values(w.took[name]))
	return all[len(all)/2]
}

// report has the medians, and how many times the floor's the least times and the medians are.
func (w *turns) report(b *testing.B) {
	b.ReportMetric(0, "ns/op")
	for _, name := range w.names {
		b.ReportMetric(float64(w.median(name).Microseconds())/1000, name+"-ms")
	}
	for _, use := range []string{"scatter", "gather"} {
		b.ReportMetric(float64(w.least(use))/float64(w.least(use+"-floor")), use+"-min-x")
		b.ReportMetric(float64(w.median(use))/float64(w.median(use+"-floor")), use+"-med-x")
	}
}

// prefillTurns are a routing, a scatter and a gather, and the floors of the latter two.
func prefillTurns(b *testing.B, c *crew) *turns {
	num := len(c.members)
	floors := make([]*floor, num)
	scatters, gathers := make([]*routing.ScatterArgs, num), make([]*routing.GatherArgs, num)
	for r, m := range c.members {
		floors[r], scatters[r], gathers[r] = newFloor(b, m), m.scatterArgs(), m.gatherArgs()
	}
	return &turns{
		names: []string{"routing", "scatter-floor", "scatter", "gather-floor", "gather"},
		took:  map[string][]time.Duration{},
		ways: map[string]func(r int) error{
			"scatter-floor": func(r int) error { floors[r].scatter(); return nil },
			"scatter":       func(r int) error { return run(c.groups[r].Scatter(c.members[r].Routing, scatters[r])) },
			"gather-floor":  func(r int) error { floors[r].gather(c.s); return nil },
			"gather":        func(r int) error { return run(c.groups[r].Gather(c.members[r].Routing, gathers[r])) },
			"routing": func(r int) error {
				in := &c.ins[r]
				_, call, err := c.groups[r].Make(&routing.Args{
					NumTokens: in.tokens, NumExperts: c.s.experts, TopK: c.s.topK, TopkIdx: in.ids, Timeout: -1,
				})
				return run(call, err)
			},
		},
	}
}

// BenchmarkPrefill is a scatter and a gather of a prefill beside the floor, in turn: all make two
// passes over the bytes.
func BenchmarkPrefill(b *testing.B) {
	for _, tokens := range []int{1024, 4096} {
		b.Run(fmt.Sprintf("T=%d", tokens), func(b *testing.B) {
			c := prefillCrew(b, tokens, math.MaxInt, 64<<20)
			w := prefillTurns(b, c)
			w.once(c)
			clear(w.took) // memory was not present yet
			for b.Loop() {
				w.once(c)
			}
			w.report(b)
		})
	}
}
