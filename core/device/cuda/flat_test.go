package cuda

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/internal/dl"
)

// flatColumns are those of flat rows with K selections and one extra column.
func flatColumns(topK int, flags protocol.Flags, extra int64) (widths [layout.NumColumns]int64) {
	if flags&protocol.FlagFlat == 0 {
		return widths
	}
	if flags&protocol.FlagNoRouting == 0 {
		widths[layout.ColumnTopkIdx], widths[layout.ColumnTopkWeights] = 8*int64(topK), 4*int64(topK)
	}
	widths[layout.ColumnExtra] = extra
	return widths
}

// checkColumns compares what came beside row i of rank r with what was sent.
func (o *op) checkColumns(t testing.TB, base uintptr, s *layout.Slab, r, src, token, i int) {
	if !s.Flat {
		return
	}
	at := func(column int) uintptr { return base + uintptr(s.ColumnOff[column]+int64(i)*s.Columns[column]) }
	if width := int(s.Columns[layout.ColumnExtra]); width > 0 {
		got := unsafe.Slice(dl.At[byte](at(layout.ColumnExtra)), width)
		require.Equal(t, o.extra[src][token*width:][:width], got, "extra of row %d", i)
	}
	if s.Columns[layout.ColumnTopkIdx] == 0 {
		return
	}
	ids := unsafe.Slice(dl.At[int64](at(layout.ColumnTopkIdx)), o.topK)
	weights := unsafe.Slice(dl.At[float32](at(layout.ColumnTopkWeights)), o.topK)
	local := s.NumExperts / s.NumRanks
	for k, e := range o.ids[src][token*o.topK:][:o.topK] {
		id, w := int64(-1), float32(0)
		if e >= 0 && e/local == int64(r) {
			id, w = e%local, o.w[src][token*o.topK+k]
		}
		require.Equal(t, id, ids[k], "row %d selection %d", i, k)
		require.Equal(t, w, weights[k], "row %d selection %d", i, k)
	}
}

// flatSum adds up what the ranks that a token went to have made of it.
func (o *op) flatSum(r, token int, value func(rank int64) float32) (sum float32) {
	for rank := range o.shape.NumRanks {
		if o.sentTo(r, int(rank))[token] && !o.lost[int(rank)] {
			sum += value(rank)
		}
	}
	return sum
}

// flatJobs are the rows of rank r's tokens for the CPU's kernels: one for each
// rank, in order, with a weight of 1.
func (o *op) flatJobs(b *device.ReduceBatch, r int, where map[[2]int]device.ReduceJob) {
	b.TopK, b.Weights, b.Jobs = int(o.shape.NumRanks), nil, nil
	for token := range o.tokens[r] {
		for rank := range b.TopK {
			job, there := where[[2]int{token, rank}]
			if !there {
				job.Source = -1
			}
			b.Jobs, b.Weights = append(b.Jobs, job), append(b.Weights, 1)
		}
	}
}

// holes are those of n flat rows that have no ids, and so no weights.
func (o *op) holes(t testing.TB, base uintptr, slabs *layout.Slab, n int) (holes int) {
	for i := range n {
		ids := unsafe.Slice(dl.At[int64](base+uintptr(slabs.ColumnOff[layout.ColumnTopkIdx]+int64(i)*8*int64(o.topK))), o.topK)
		w := unsafe.Slice(dl.At[float32](base+uintptr(slabs.ColumnOff[layout.ColumnTopkWeights]+int64(i)*4*int64(o.topK))), o.topK)
		if ids[0] == -1 && ids[1] == -1 {
			require.Equal(t, []float32{0, 0}, w)
			holes++
		}
	}
	return holes
}

// TestFlatHoles: rows that a rank reserved and did not finish have no ids.
func TestFlatHoles(t *testing.T) {
	g, o, slabs := smallIn(t, 3, protocol.FlagFlat|protocol.FlagOrdered)
	for i := range o.ids[1] {
		o.ids[1][i] = 0 // all at rank 0
	}
	for r, m := range g.ranks {
		if r == 1 { // it gets its places, and no further
			common, err := m.begin(&o.calls[1].Call)
			require.NoError(t, err)
			require.NoError(t, m.end(m.plan(&common, &o.calls[1])))
			continue
		}
		require.NoError(t, m.Send(&o.calls[r]))
		require.NoError(t, m.Receive(&o.calls[r]))
	}
	g.must(func() error { return g.d.lib.StreamSynchronize(g.ranks[1].stream) })
	g.lose(1, 0, 2)
	g.sync()
	base := uintptr(g.ranks[0].Slab(0))
	n := 0
	for src := range 3 {
		n += int(o.ranges[0][src] & 0xffffffff)
	}
	require.EqualValues(t, o.tokens[1]+n, o.counts[0][0])
	require.Equal(t, o.tokens[1], o.holes(t, base, slabs, int(o.counts[0][0])))
}

// TestFlatBesidePacked: ranks that disagree about the form both say so.
func TestFlatBesidePacked(t *testing.T) {
	g, o, _ := smallIn(t, 2, protocol.FlagFlat|protocol.FlagOrdered)
	disagree(t, g, o)
}

// disagree has rank 1 make its call with rows per expert, in a group of two that has
// flat rows. Both say so.
func disagree(t *testing.T, g *group, o *op) {
	t.Helper()
	o.calls[1].Shape.Flat, o.calls[1].Shape.Columns = false, [layout.NumColumns]int64{}
	o.calls[1].Flags = 0
	o.calls[1].Layout, _ = tensor[int64](g.ranks[1], 16)
	for r, m := range g.ranks {
		m.cfg.SlabBytes += 1 << 30
		require.NoError(t, m.Send(&o.calls[r]))
		require.NoError(t, m.Receive(&o.calls[r]))
	}
	g.sync()
	for _, m := range g.ranks {
		require.Equal(t, FailedMismatch, m.Failure().Kind)
		require.ErrorContains(t, m.Failure(), "form: ")
	}
}

// TestFlatGraphs replays graphs of two ranks that cut them differently.
func TestFlatGraphs(t *testing.T) {
	g, o, _ := smallIn(t, 2, protocol.FlagFlat|protocol.FlagOrdered)
	replayRounds(t, g, o, g.rng, []int{3, 2}, 3, 12)
}
