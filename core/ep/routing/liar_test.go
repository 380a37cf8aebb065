package routing_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/routing"
)

// liar is a rank that sends something else in one of its operations.
type liar struct {
	engine
	num, at int
	lie     func(a *ep.DispatchArgs)
}

func (l *liar) Dispatch(a *ep.DispatchArgs, res *ep.Result, until ep.Phase, slice time.Duration) (routing.Pending, error) {
	if l.num == l.at {
		l.lie(a)
	}
	l.num++
	return l.engine.Dispatch(a, res, until, slice)
}

// lyingMakes makes a routing on two ranks, and returns both errors. Rank 1 lies in operation `at`.
func lyingMakes(t *testing.T, a *routing.Args, at int, lie func(a *ep.DispatchArgs)) (w *world, errs [2]error) {
	w = newWorld(t, oneHost(2), 16)
	g := routing.NewGroup(&liar{engine: engine{w.bufs[1], 16}, at: at, lie: lie}, kernels.NewReference())
	t.Cleanup(g.Close)
	w.groups[1] = g
	w.each(func(rank int) error {
		_, c, err := w.groups[rank].Make(a)
		errs[rank] = run(c, err)
		return nil
	})
	return w, errs
}

// put writes a number into row 0, which goes to rank 0.
func put(a *ep.DispatchArgs, word int, v int32) {
	binary.LittleEndian.PutUint32(a.X[4*word:], uint32(v))
}

// TestWhatNoRankSends: a rank that finds such rows in its memory leaves and says why, and counts a
// violation. The other one sees it out.
func TestWhatNoRankSends(t *testing.T) {
	for says, c := range map[string]struct {
		at  int // operation: headers come in 0, 16 tokens in each later one
		lie func(a *ep.DispatchArgs)
	}{
		"0 rows of rank 1 in a routing's first round, allowed 1":              {0, func(a *ep.DispatchArgs) { a.TopkIdx[0] = -1 }},
		"rank 1 sends 41 rows of 40 tokens":                                   {0, func(a *ep.DispatchArgs) { put(a, 1, 41) }},
		"rank 1 sends 40 rows of 2147483648 tokens, allowed 2147483647":       {0, func(a *ep.DispatchArgs) { put(a, 0, math.MinInt32) }},
		"16 rows of rank 1, which said 3":                                     {0, func(a *ep.DispatchArgs) { put(a, 1, 3) }},
		"39 rows of rank 1, which said 40":                                    {3, func(a *ep.DispatchArgs) { a.TopkIdx[0] = -1 }},
		"15 rows of rank 1, which said 40":                                    {1, func(a *ep.DispatchArgs) { a.TopkIdx[0] = -1 }},
		"row 0 of rank 1 is of token -1 of 40":                                {1, func(a *ep.DispatchArgs) { put(a, 0, -1) }},
		"row 1 of rank 1 is of token 1 of 40":                                 {1, func(a *ep.DispatchArgs) { put(a, 0, 1) }},
		"row 0 of rank 1 is of token 16 of 40":                                {1, func(a *ep.DispatchArgs) { put(a, 0, 16) }},
		"row 16 of rank 1 is of token 0 of 40":                                {2, func(a *ep.DispatchArgs) { put(a, 0, 0) }},
		"row 0 of rank 1 has expert 2, allowed -1 to 1":                       {1, func(a *ep.DispatchArgs) { put(a, 1, 2) }},
		"row 32 of rank 1 has expert -2, allowed -1 to 1; update the members": {3, func(a *ep.DispatchArgs) { put(a, 1, -2) }},
	} {
		t.Run(says, func(t *testing.T) {
			a := args(2, 40)
			a.TopK, a.TopkIdx, a.InRank = 1, make([]int64, 40), bytes.Repeat([]byte{1, 0}, 40) // all to rank 0
			w, errs := lyingMakes(t, a, c.at, c.lie)
			require.ErrorIs(t, errs[0], ep.ErrFenced)
			require.ErrorContains(t, errs[0], "what came to its memory cannot be: "+says)
			require.Equal(t, uint64(1), w.bufs[0].Counters().NumViolations)
			require.Zero(t, w.bufs[1].Counters().NumViolations)
			_, later, err := w.groups[0].Make(a)
			require.ErrorContains(t, run(later, err), says)
			_, later, err = w.groups[1].Make(a)
			require.ErrorIs(t, run(later, err), ep.ErrLost, "it has seen the other one leave")
		})
	}
}

// TestMemoryOfWhatComes: a rank may say that it sends more rows than there are, up to what a routing
// holds. They take no memory.
func TestMemoryOfWhatComes(t *testing.T) {
	const topK, most = 64, 64 << 20 // bytes; the ids of all these rows have 4 GiB
	a := args(2, 40)
	a.TopK, a.TopkIdx = topK, make([]int64, 40*topK)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, errs := lyingMakes(t, a, 0, func(a *ep.DispatchArgs) { put(a, 0, 1<<24); put(a, 1, 1<<24) })
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, errs[0], "40 rows of rank 1, which said 16777216")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(most))
}

// TestManyRowsSaid: more rows than a routing holds are refused before they come. The rank that they
// would come to ends its epoch, since the others do not know.
func TestManyRowsSaid(t *testing.T) {
	const topK = 64
	a := args(2, 3)
	a.TopK, a.TopkIdx, a.Timeout = topK, slices.Repeat([]int64{-1}, 3*topK), time.Second
	_, errs := lyingMakes(t, a, 0, func(a *ep.DispatchArgs) { put(a, 0, 1<<25); put(a, 1, 1<<25) })
	require.ErrorIs(t, errs[0], ep.ErrLost)
	require.ErrorContains(t, errs[0], "33554435 rows of 64 expert ids come to rank 0, allowed 33554431")
	require.ErrorIs(t, errs[1], ep.ErrLost)
}

// TestManySelections: sums of what all ranks say may be too large for a count.
func TestManySelections(t *testing.T) {
	w := newWorld(t, oneHost(2), 16)
	makes := func(most int32) (errs [2]error) {
		w.each(func(rank int) error {
			a := args(2, 3)
			a.ExpertCounts = []int32{most, 0}
			_, c, err := w.groups[rank].Make(a)
			errs[rank] = run(c, err)
			return nil
		})
		return errs
	}
	require.Equal(t, [2]error{}, makes(1<<30-1))
	errs := makes(1 << 30)
	require.ErrorIs(t, errs[0], ep.ErrLost)
	require.ErrorContains(t, errs[0], "2147483648 selections of expert 0 in all ranks' num_tokens_per_expert, allowed 2147483647")
	require.ErrorIs(t, errs[1], ep.ErrLost)
}
