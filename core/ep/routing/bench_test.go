package routing_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device"
	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/routing"
)

// prefill is a shape of a prefill over 2 ranks.
var prefill = shape{ranks: 2, topK: 8, experts: 64, hidden: 7168}

const prefillTokens = 1024

// fastWorld has the kernels that users have.
func fastWorld(b *testing.B, ranks int, numBytes int64) *world {
	w := &world{t: b}
	for _, dom := range oneHost(ranks) {
		rows, local := openKernels(b), openKernels(b)
		buf, err := cpu.New(dom, rows, ep.Config{NumBytes: numBytes})
		require.NoError(b, err)
		g := routing.NewGroup(engine{buf, math.MaxInt}, local)
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

func prefillCrew(b *testing.B, numBytes int64) *crew {
	c := &crew{world: fastWorld(b, prefill.ranks, numBytes), s: prefill}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range prefill.ranks {
		in := input{tokens: prefillTokens, x: randomBytes(rnd, prefillTokens*2*prefill.hidden)}
		for range prefillTokens * prefill.topK {
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

// BenchmarkPrefill is a scatter and a gather of a prefill beside the floor, in turn: both make two
// passes over the bytes.
func BenchmarkPrefill(b *testing.B) {
	c := prefillCrew(b, 64<<20)
	floors := make([]*floor, prefill.ranks)
	for r, m := range c.members {
		floors[r] = newFloor(b, m)
	}
	scatters, gathers := make([]*routing.ScatterArgs, prefill.ranks), make([]*routing.GatherArgs, prefill.ranks)
	for r, m := range c.members {
		scatters[r], gathers[r] = m.scatterArgs(), m.gatherArgs()
	}
	ways := map[string]func(r int) error{
		"scatter/floor": func(r int) error { floors[r].scatter(); return nil },
		"scatter/ours":  func(r int) error { return run(c.groups[r].Scatter(c.members[r].Routing, scatters[r])) },
		"gather/floor":  func(r int) error { floors[r].gather(prefill); return nil },
		"gather/ours":   func(r int) error { return run(c.groups[r].Gather(c.members[r].Routing, gathers[r])) },
		"routing": func(r int) error {
			in := &c.ins[r]
			_, call, err := c.groups[r].Make(&routing.Args{NumTokens: in.tokens, NumExperts: prefill.experts, TopK: prefill.topK, TopkIdx: in.ids, Timeout: -1})
			return run(call, err)
		},
	}
	for _, name := range []string{"routing", "scatter/floor", "scatter/ours", "gather/floor", "gather/ours"} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				c.each(ways[name])
			}
		})
	}
}
