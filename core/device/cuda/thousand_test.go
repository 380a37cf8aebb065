package cuda

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/testenv"
)

// TestThousandOperations replays graphs of two ranks that cut them differently,
// a thousand operations each.
func TestThousandOperations(t *testing.T) {
	emu := driver(t)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 17))
	emu.Schedule(rng.Uint64(), 8, 8)
	s := layout.Shape{MaxTokens: 2, Hidden: 8, NumExperts: 2, NumRanks: 2}
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	g := newGroup(t, 2, 2, slabs.SizeBytes)
	for _, m := range g.ranks {
		m.threads = threads{plan: 8, row: 8, wait: 8}
	}
	replayRounds(t, g, g.random(rng, s, 1, 0, 0), rng, []int{5, 2}, 10, 100)
}

// TestThousandOperationsOfFP8 is the same of three ranks that cast rows, of which one
// has no tokens, and one is lost in the middle of a graph.
func TestThousandOperationsOfFP8(t *testing.T) {
	emu := driver(t)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 18))
	emu.Schedule(rng.Uint64(), 8, 16)
	s := layout.Shape{MaxTokens: 2, Hidden: 256, NumExperts: 6, NumRanks: 3, RowType: protocol.FP8}
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	g := newGroup(t, 3, 2, slabs.SizeBytes)
	for _, m := range g.ranks {
		m.threads = threads{plan: 8, row: 32, wait: 8}
	}
	g.fewest = 1
	f := &fixedOutputs{g: g, o: g.random(rng, s, 3, protocol.FlagFP8, 0), slabs: &slabs, rng: rng}
	f.o.calls[1].NumTokens, f.o.tokens[1] = 0, 0
	f.o.x[1], f.o.ids[1], f.o.kept[1] = nil, nil, nil
	f.thousand(t, []int{5, 2, 10})
}

// fixedOutputs is an operation with experts that make the same of every row, so that a
// graph needs no host between its phases.
type fixedOutputs struct {
	g     *group
	o     *op
	slabs *layout.Slab
	rng   *rand.Rand
	at    []uint64 // by rank
}

func (f *fixedOutputs) thousand(t *testing.T, lengths []int) {
	f.makeOutputs()
	var graphs []recorded
	for r, n := range lengths {
		graphs = append(graphs, f.g.recordOf(r, n, 0, func(slot int) { f.launch(r, slot) }))
	}
	defer func() {
		for _, rec := range graphs {
			f.g.must(func() error { return f.g.d.lib.GraphExecDestroy(rec.exec) })
		}
	}()
	ranks := 3
	for round := range 20 {
		f.draw(ranks)
		if round == 10 {
			ranks = 2
		}
		for r, rec := range graphs[:ranks] {
			for range 50 / rec.ops {
				f.g.must(func() error { return f.g.d.lib.GraphLaunch(rec.exec, f.g.ranks[r].stream) })
			}
		}
		if round == 10 { // the others wait for it
			f.g.lose(2, 0, 1)
			f.o.forget(2)
		}
		f.check(t, lengths, ranks)
	}
}

func (f *fixedOutputs) makeOutputs() {
	s := f.slabs
	for r, m := range f.g.ranks {
		at, _ := tensor[byte](m, int(s.LocalExperts*s.RowsPerExpert*s.OutputBytes()))
		f.at = append(f.at, at)
		for row := range s.LocalExperts * s.RowsPerExpert {
			expert := r*int(s.LocalExperts) + int(row/s.RowsPerExpert)
			for j := range int(s.Hidden) {
				*dl.At[uint16](uintptr(at) + uintptr(row*s.OutputBytes()) + uintptr(2*j)) = bf16(f.o.output(0, 0, expert, j))
			}
		}
	}
}

func (f *fixedOutputs) launch(r, slot int) {
	m, c := f.g.ranks[r], f.o.calls[r]
	c.Slot = slot
	require.NoError(f.g.t, m.Send(&c))
	require.NoError(f.g.t, m.Receive(&c))
	combine := f.o.combine(r, f.at[r])
	combine.Slot = slot
	require.NoError(f.g.t, m.Publish(combine))
	require.NoError(f.g.t, m.Reduce(combine))
}

// draw gives ranks other rows for other experts, in place.
func (f *fixedOutputs) draw(ranks int) {
	for r := range f.o.x {
		for i := range f.o.x[r] {
			f.o.x[r][i] = bf16(float32(f.rng.NormFloat64()))
		}
		for i := range f.o.ids[r] {
			if f.o.ids[r][i] = f.g.pick(f.rng, f.o.shape.NumExperts, i); r >= ranks {
				f.o.ids[r][i] = -1
			}
		}
	}
}

// check looks at the rows and sums of the latest operation.
func (f *fixedOutputs) check(t *testing.T, lengths []int, ranks int) {
	f.g.sync()
	for r, m := range f.g.ranks[:ranks] {
		require.Zero(t, m.report().Error, "%v", m.report().Detail)
		f.g.snapshot(m, (lengths[r]-1)%2) // of the latest of its graph
		f.g.sync()
		if ranks == 2 {
			for i := range f.o.ids[2] { // they did not come
				f.o.ids[2][i] = -1
			}
		}
		f.o.checkRows(t, m, r)
		f.o.sameRowsAsCPU(f.g, r)
		for token := range f.o.tokens[r] {
			for j := range int(f.o.shape.Hidden) {
				sum := f.o.sum(r, token, func(e int64) float32 { return f.o.output(0, 0, int(e), j) })
				require.Equal(t, rounded(sum), f.o.outs[r][token*int(f.o.shape.Hidden)+j], "rank %d token %d value %d", r, token, j)
			}
		}
	}
}
