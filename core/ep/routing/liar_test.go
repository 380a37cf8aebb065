package routing_test

import (
	"encoding/binary"
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
func lyingMakes(t *testing.T, a *routing.Args, at int, lie func(a *ep.DispatchArgs)) (errs [2]error) {
	w := newWorld(t, oneHost(2), 16)
	g := routing.NewGroup(&liar{engine: engine{w.bufs[1], 16}, at: at, lie: lie}, kernels.NewReference())
	t.Cleanup(g.Close)
	w.groups[1] = g
	w.each(func(rank int) error {
		_, c, err := w.groups[rank].Make(a)
		errs[rank] = run(c, err)
		return nil
	})
	return errs
}

// TestFewerRowsThanSaid: else the rows that are missing would be token 0 with expert 0.
func TestFewerRowsThanSaid(t *testing.T) {
	errs := lyingMakes(t, args(2, 40), 3, func(a *ep.DispatchArgs) { a.TopkIdx[0] = -1 }) // token 32 to rank 0
	require.ErrorIs(t, errs[0], ep.ErrMismatch)
	require.ErrorContains(t, errs[0], "39 rows come from rank 1, which said 40")
}

// TestManyRowsSaid: a header sizes no memory beyond what a routing holds. The rank that it comes to
// ends its epoch, since the others do not know.
func TestManyRowsSaid(t *testing.T) {
	const topK = 64
	a := args(2, 3)
	a.TopK, a.TopkIdx, a.Timeout = topK, slices.Repeat([]int64{-1}, 3*topK), time.Second
	errs := lyingMakes(t, a, 0, func(a *ep.DispatchArgs) {
		binary.LittleEndian.PutUint32(a.X, 1<<25)
		binary.LittleEndian.PutUint32(a.X[4:], 1<<25)
	})
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
