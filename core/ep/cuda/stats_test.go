package cuda_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/telemetry"
)

// counted is what plain loops over the routing say of one rank.
type counted struct {
	operations, tokens, selected uint64
	to, from, experts            []uint64
}

// add counts one operation of all ranks.
func (c *counted) add(all []*op, self int) {
	s := shapeOf(len(all))
	local := int(s.NumExperts) / len(all)
	for source, o := range all {
		for t := range o.args.NumTokens {
			seen := map[int64]bool{}
			for _, e := range o.ids.values[t*topK : (t+1)*topK] {
				if e < 0 {
					continue
				}
				if source == self {
					c.selected++
				}
				if seen[e] { // one expert twice is one row
					continue
				}
				seen[e] = true
				owner := int(e) / local
				if source == self {
					c.to[owner]++
				}
				if owner == self {
					c.from[source]++
					c.experts[int(e)%local]++
				}
			}
		}
	}
	c.operations++
	c.tokens += uint64(all[self].args.NumTokens)
}

func newCounted(ranks int) *counted {
	return &counted{to: make([]uint64, ranks), from: make([]uint64, ranks), experts: make([]uint64, 2)}
}

func sum(values []uint64) (total uint64) {
	for _, v := range values {
		total += v
	}
	return total
}

// check compares the statistics with the loops.
func (c *counted) check(t *testing.T, r *rank) {
	s, err := r.Stats()
	require.NoError(t, err)
	h := uint64(shapeOf(r.ranks).Hidden)
	require.Equal(t, c.to, s.RowsTo)
	require.Equal(t, c.from, s.RowsFrom)
	require.Equal(t, c.experts, s.Experts)
	require.Equal(t, 2*c.operations, s.Records)
	for _, k := range []telemetry.Totals{s.Dispatch, s.Combine} {
		require.Equal(t, c.operations, k.Done)
		require.Zero(t, k.Failed+k.Cancelled)
		require.Equal(t, c.tokens, k.Tokens)
		require.Equal(t, c.operations, sum(k.Times))
		require.Equal(t, c.operations, sum(k.Waits))
		require.LessOrEqual(t, k.Wait, k.Time)
		require.LessOrEqual(t, k.Max, k.Time)
		require.LessOrEqual(t, sum(k.Last), c.operations)
	}
	require.Equal(t, sum(c.to), s.Dispatch.RowsOut)
	require.Equal(t, sum(c.from), s.Dispatch.RowsIn)
	require.Equal(t, sum(c.to)*(2*h+4), s.Dispatch.Bytes)
	require.Equal(t, c.selected, s.Combine.RowsOut)
	require.Equal(t, (c.selected+sum(c.from))*2*h, s.Combine.Bytes, "read, and copied")
	n := r.Counters()
	require.Equal(t, []uint64{c.operations, c.operations}, []uint64{n.NumDispatches, n.NumCombines})
	require.Equal(t, sum(c.from)*2*h, n.NumBytesCopied)
	require.Equal(t, c.selected*2*h, n.NumBytesReduced)
	require.Equal(t, c.to, n.NumRowsSentTo)
}

// TestStats: what the device has counted is what loops over the routing count, in
// plain calls and in graphs, in one epoch and in the next.
func TestStats(t *testing.T) {
	for _, ranks := range []int{1, 3} {
		t.Run(fmt.Sprintf("R=%d", ranks), func(t *testing.T) { statsOf(t, ranks) })
	}
}

func statsOf(t *testing.T, ranks int) {
	group := newGroup(t, ranks)
	want := make([]*counted, ranks)
	for i := range want {
		want[i] = newCounted(ranks)
	}
	run := func(all []*op, times int) {
		for range times {
			for i := range want {
				want[i].add(all, i)
			}
		}
	}
	for i := range uint64(3) {
		all := ops(t, group, 100+i)
		roundOf(all)
		run(all, 1)
	}
	checkAll(t, group, want)
	all := ops(t, group, 110)
	replayed(group, all, 3)
	run(all, 3)
	checkAll(t, group, want)
	update(t, group)
	all = ops(t, group, 111)
	roundOf(all)
	run(all, 1)
	checkAll(t, group, want)
}

func checkAll(t *testing.T, group []*rank, want []*counted) {
	for i, r := range group {
		want[i].check(t, r)
	}
}

// replayed launches a graph of n operations of each rank.
func replayed(group []*rank, all []*op, n int) {
	var graphs []libcuda.GraphExec
	for _, o := range all {
		graphs = append(graphs, record(o, n))
	}
	for i, r := range group {
		r.must(func() error { return r.emu.GraphLaunch(graphs[i], libcuda.Stream(r.stream)) })
	}
	for i, r := range group {
		r.sync()
		r.must(func() error { return r.emu.GraphExecDestroy(graphs[i]) })
	}
}
